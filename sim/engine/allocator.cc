// Best fit with caching and coalescing, as PyTorch has it (Zachary DeVito's expandable segments
// included). PyTorch keeps free blocks in a balanced tree of (stream, size, address); here each
// lane has a bin for every size that ever occurred: a training step asks for the same few dozen
// sizes again and again, so bins stop appearing after the first micro-batch, where each size lies
// among them is remembered, and an allocation is a pop. Freeing looks at two neighbours.
#include "sim/engine/allocator.h"

#include <algorithm>
#include <bit>

#include "sim/base/error.h"

namespace stepcast {
namespace {

// The names are those of CUDACachingAllocator.cpp.
constexpr std::int64_t kMinBlockSize = 512;
constexpr std::int64_t kSmallSize = 1 << 20;
constexpr std::int64_t kSmallBuffer = 2 << 20;
constexpr std::int64_t kMinLargeAlloc = 10 << 20;
constexpr std::int64_t kLargeBuffer = 20 << 20;
constexpr std::int64_t kRoundLarge = 2 << 20;

constexpr int kFew = 8;  // entries that are looked through as fast as halved

constexpr std::int64_t kAddressSpace = std::int64_t{1} << 54;  // of an expandable segment

std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

std::int64_t segment_size(std::int64_t request) {
  if (request <= kSmallSize) return kSmallBuffer;
  return request < kMinLargeAlloc ? kLargeBuffer : round_up(request, kRoundLarge);
}

}  // namespace

// ------------------------------------------------------------------------------- the free blocks

// Without branches on what is compared: the sizes asked for follow no pattern.
std::size_t CachingAllocator::FreeBlocks::search(std::int64_t size) const {
  std::size_t first = 0;
  for (std::size_t left = sizes_.size(); left > 0;) {
    const std::size_t half = (left + 1) / 2;
    first += sizes_[first + half - 1] < size ? half : 0;
    left -= half;
  }
  return first;
}

// Sizes are multiples of 512; the product spreads them over its upper bits.
std::size_t CachingAllocator::FreeBlocks::lower_bound(std::int64_t size) {
  const std::uint64_t spread = static_cast<std::uint64_t>(size) * 0x9e3779b97f4a7c15;
  Known& known = known_[spread >> (64 - kKnownBits)];
  if (known.size != size) known = {size, search(size)};
  return known.bin;
}

std::size_t CachingAllocator::FreeBlocks::bin_of(std::int64_t size) {
  const std::size_t bin = lower_bound(size);
  if (bin < sizes_.size() && sizes_[bin] == size) return bin;
  sizes_.insert(sizes_.begin() + static_cast<std::ptrdiff_t>(bin), size);
  bins_.emplace(bins_.begin() + static_cast<std::ptrdiff_t>(bin));
  known_.fill({});
  filled_.assign(sizes_.size() / 64 + 1, 0);
  for (std::size_t i = 0; i < bins_.size(); ++i) {
    if (!bins_[i].empty()) filled_[i / 64] |= std::uint64_t{1} << i % 64;
  }
  return bin;
}

// Where a block of this address stands, or belongs. Lowest addresses are asked for most.
std::vector<CachingAllocator::FreeBlocks::Entry>::iterator CachingAllocator::FreeBlocks::place_of(
    std::vector<Entry>& entries, std::int64_t address) {
  auto end = entries.end();
  for (int steps = 0; steps < kFew; ++steps, --end) {
    if (end == entries.begin() || (end - 1)->address > address) return end;
  }
  return std::lower_bound(entries.begin(), end, address,
                          [](const Entry& entry, std::int64_t a) { return entry.address > a; });
}

void CachingAllocator::FreeBlocks::insert(std::int64_t size, std::int64_t address, BlockId id) {
  const std::size_t bin = bin_of(size);
  std::vector<Entry>& entries = bins_[bin];
  entries.insert(place_of(entries, address), {address, id});
  filled_[bin / 64] |= std::uint64_t{1} << bin % 64;
}

void CachingAllocator::FreeBlocks::erase(std::int64_t size, std::int64_t address) {
  const std::size_t bin = lower_bound(size);
  std::vector<Entry>& entries = bins_[bin];
  entries.erase(place_of(entries, address));
  if (entries.empty()) filled_[bin / 64] &= ~(std::uint64_t{1} << bin % 64);
}

int CachingAllocator::FreeBlocks::next_bin(std::size_t from) const {
  if (from >= sizes_.size()) return -1;
  std::size_t word = from / 64;
  std::uint64_t bits = filled_[word] >> from % 64 << from % 64;
  while (bits == 0) {
    if (++word == filled_.size()) return -1;
    bits = filled_[word];
  }
  return static_cast<int>(word) * 64 + std::countr_zero(bits);
}

CachingAllocator::FreeBlocks::Cursor CachingAllocator::FreeBlocks::after(Cursor cursor) const {
  const auto bin = static_cast<std::size_t>(cursor.bin);
  if (cursor.from_last + 1 < bins_[bin].size()) return {cursor.bin, cursor.from_last + 1};
  return {next_bin(bin + 1), 0};
}

BlockId CachingAllocator::FreeBlocks::block(Cursor cursor) const {
  const std::vector<Entry>& entries = bins_[static_cast<std::size_t>(cursor.bin)];
  return entries[entries.size() - 1 - cursor.from_last].id;
}

std::vector<BlockId> CachingAllocator::FreeBlocks::all() const {
  std::vector<BlockId> ids;
  for (const std::vector<Entry>& entries : bins_) {
    for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) ids.push_back(entry->id);
  }
  return ids;
}

// ------------------------------------------------------------------------------------- the blocks

CachingAllocator::CachingAllocator(const AllocatorOptions& options) : options_(options) {}

BlockId CachingAllocator::new_block(std::int64_t address, std::int64_t size, int lane) {
  BlockId id = static_cast<BlockId>(blocks_.size());
  if (unused_.empty()) {
    blocks_.emplace_back();
  } else {
    id = unused_.back();
    unused_.pop_back();
    at(id) = Block{};
  }
  Block& block = at(id);
  block.address = address;
  block.size = size;
  block.lane = static_cast<std::int8_t>(lane);
  return id;
}

void CachingAllocator::insert_after(BlockId block, BlockId fresh) {
  const BlockId next = at(block).next;
  at(fresh).previous = block;
  at(fresh).next = next;
  at(block).next = fresh;
  if (next != kNone) at(next).previous = fresh;
}

void CachingAllocator::put_free(BlockId id) {
  Block& block = at(id);
  block.is_free = true;
  lane_of(block).free.insert(block.size, block.address, id);
}

void CachingAllocator::take_free(BlockId id) {
  Block& block = at(id);
  block.is_free = false;
  lane_of(block).free.erase(block.size, block.address);
}

// Cuts `size` bytes off the front; the rest becomes a free block if it is worth it.
void CachingAllocator::split(BlockId id, std::int64_t size) {
  const Block block = at(id);
  const std::int64_t rest = block.size - size;
  const bool any = is_small(block.lane) || options_.expandable_segments;
  if (any ? rest < kMinBlockSize : rest <= kSmallSize) return;
  const BlockId remainder = new_block(block.address + size, rest, block.lane);
  at(id).size = size;
  insert_after(id, remainder);
  put_free(remainder);
}

// `block` takes in a free neighbour that is mapped like it.
void CachingAllocator::merge(BlockId id, BlockId neighbour) {
  if (neighbour == kNone) return;
  Block& block = at(id);
  const Block other = at(neighbour);
  if (!other.is_free || other.is_mapped != block.is_mapped) return;
  take_free(neighbour);
  block.size += other.size;
  if (block.previous == neighbour) {
    block.address = other.address;
    block.previous = other.previous;
    if (other.previous != kNone) at(other.previous).next = id;
  } else {
    block.next = other.next;
    if (other.next != kNone) at(other.next).previous = id;
  }
  unused_.push_back(neighbour);
}

void CachingAllocator::merge_neighbours(BlockId id) {
  merge(id, at(id).previous);
  merge(id, at(id).next);
}

BlockId CachingAllocator::best_fit(int lane, std::int64_t size) {
  FreeBlocks& free = lanes_[static_cast<std::size_t>(lane)].free;
  FreeBlocks::Cursor best = free.first(size);
  if (best.bin < 0) return kNone;
  if (!options_.expandable_segments) return free.block(best);
  // A block right before unmapped space counts as what it could grow to, so that others that hold
  // the request are taken before it.
  const auto room = [&](FreeBlocks::Cursor cursor) {
    const Block& block = at(free.block(cursor));
    const bool grows = block.next != kNone && !at(block.next).is_mapped;
    return block.size + (grows ? at(block.next).size : 0);
  };
  for (FreeBlocks::Cursor next = free.after(best); next.bin >= 0; next = free.after(next)) {
    if (room(next) >= room(best)) break;
    best = next;
  }
  return free.block(best);
}

void CachingAllocator::grow(std::int64_t bytes) {
  reserved_ += bytes;
  peak_ = std::max(peak_, reserved_);
  ++version_;
}

bool CachingAllocator::may_grow(std::int64_t bytes) const {
  return exhausted_ || bytes <= options_.limit.count - reserved_;
}

BlockId CachingAllocator::allocate(Bytes request, Stream stream) {
  STEPCAST_CHECK(request.count > 0, "an allocation of no bytes");
  const std::int64_t size = round_up(request.count, kMinBlockSize);
  const int lane = 2 * static_cast<int>(stream) + (size <= kSmallSize ? 0 : 1);
  BlockId block = best_fit(lane, size);
  if (block != kNone) {
    take_free(block);
  } else {
    block = options_.expandable_segments ? expand(lane, size) : new_segment(lane, size);
  }
  split(block, size);
  allocated_ += at(block).size;
  return block;
}

void CachingAllocator::free(BlockId id) {
  STEPCAST_CHECK(!at(id).is_free && at(id).size > 0, "a block that is not allocated is freed");
  allocated_ -= at(id).size;
  merge_neighbours(id);
  put_free(id);
}

// ------------------------------------------------------------------------------ ordinary segments

BlockId CachingAllocator::new_segment(int lane, std::int64_t size) {
  const std::int64_t bytes = segment_size(size);
  if (!may_grow(bytes)) {
    ++retries_;
    release_segments();
    exhausted_ = !may_grow(bytes);
  }
  const BlockId block = new_block(next_address_, bytes, lane);
  next_address_ += bytes;
  grow(bytes);
  return block;
}

void CachingAllocator::release_segments() {
  for (Lane& lane : lanes_) {
    for (const BlockId id : lane.free.all()) {
      const Block& block = at(id);
      if (block.previous != kNone || block.next != kNone) continue;
      take_free(id);
      reserved_ -= block.size;
      unused_.push_back(id);
    }
  }
  ++version_;
}

// ---------------------------------------------------------------------------- expandable segments

// The lowest block from which on `size` bytes are free or unmapped.
BlockId CachingAllocator::find_room(int lane, std::int64_t size) {
  std::vector<BlockId>& unmapped = lanes_[static_cast<std::size_t>(lane)].unmapped;
  if (unmapped.empty()) {
    unmapped.push_back(new_block(0, kAddressSpace, lane));
    at(unmapped.back()).is_mapped = false;
  }
  const auto usable = [&](BlockId id) {
    return id != kNone && (at(id).is_free || !at(id).is_mapped);
  };
  for (BlockId begin : unmapped) {
    if (usable(at(begin).previous)) begin = at(begin).previous;
    std::int64_t bytes = 0;
    for (BlockId id = begin; bytes < size && usable(id); id = at(id).next) bytes += at(id).size;
    if (bytes >= size) return begin;
  }
  STEPCAST_CHECK(false, "an expandable segment has run out of addresses");
}

std::int64_t CachingAllocator::bytes_to_map(BlockId id, std::int64_t size) const {
  const std::int64_t page = is_small(at(id).lane) ? kSmallBuffer : kLargeBuffer;
  std::int64_t bytes = 0;
  for (; size > 0; id = at(id).next) {
    const Block& block = at(id);
    if (!block.is_mapped) bytes += round_up(std::min(size, block.size), page);
    size -= block.size;
  }
  return bytes;
}

// Gives memory to the first `size` bytes of an unmapped block, in whole pages; it becomes free.
void CachingAllocator::map(BlockId id, std::int64_t size) {
  std::vector<BlockId>& unmapped = lane_of(at(id)).unmapped;
  const std::int64_t page = is_small(at(id).lane) ? kSmallBuffer : kLargeBuffer;
  const Block block = at(id);
  const std::int64_t bytes = std::min(round_up(size, page), block.size);
  const auto place = std::find(unmapped.begin(), unmapped.end(), id);
  if (bytes < block.size) {
    const BlockId rest = new_block(block.address + bytes, block.size - bytes, block.lane);
    at(rest).is_mapped = false;
    insert_after(id, rest);
    *place = rest;
  } else {
    unmapped.erase(place);
  }
  at(id).size = bytes;
  at(id).is_mapped = true;
  grow(bytes);
  merge_neighbours(id);
  put_free(id);
}

BlockId CachingAllocator::expand(int lane, std::int64_t size) {
  BlockId block = find_room(lane, size);
  if (!may_grow(bytes_to_map(block, size))) {
    ++retries_;
    unmap_free_pages();
    block = find_room(lane, size);
    exhausted_ = !may_grow(bytes_to_map(block, size));
  }
  if (!at(block).is_mapped) map(block, std::min(at(block).size, size));
  while (at(block).size < size) {
    const BlockId next = at(block).next;
    map(next, std::min(size - at(block).size, at(next).size));
    block = next;  // it has taken in what lay before it
  }
  take_free(block);
  return block;
}

// Takes the whole pages out of a free block; what is left of it at both ends stays free.
void CachingAllocator::unmap(BlockId id) {
  const std::int64_t page = is_small(at(id).lane) ? kSmallBuffer : kLargeBuffer;
  const Block block = at(id);
  const std::int64_t begin = round_up(block.address, page);
  const std::int64_t end = (block.address + block.size) / page * page;
  if (begin >= end) return;
  take_free(id);
  if (begin > block.address) {
    const BlockId front = new_block(block.address, begin - block.address, block.lane);
    if (block.previous != kNone) {
      insert_after(block.previous, front);
    } else {
      at(front).next = id;
      at(id).previous = front;
    }
    put_free(front);
  }
  if (end < block.address + block.size) {
    const BlockId back = new_block(end, block.address + block.size - end, block.lane);
    insert_after(id, back);
    put_free(back);
  }
  Block& middle = at(id);
  middle.address = begin;
  middle.size = end - begin;
  middle.is_mapped = false;
  reserved_ -= middle.size;
  std::vector<BlockId>& unmapped = lane_of(middle).unmapped;
  const auto later = [&](BlockId other) { return at(other).address > begin; };
  unmapped.insert(std::find_if(unmapped.begin(), unmapped.end(), later), id);
}

void CachingAllocator::unmap_free_pages() {
  for (Lane& lane : lanes_) {
    for (const BlockId id : lane.free.all()) unmap(id);
  }
  ++version_;
}

}  // namespace stepcast

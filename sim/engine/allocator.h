// CachingAllocator: what PyTorch's allocator holds of a device while tensors come and go.
//
// The rules are those of pytorch/pytorch c10/cuda/CUDACachingAllocator.cpp. Memory is taken from
// the device in *segments* and kept when tensors die; a segment is cut into *blocks*.
//   size       a request is rounded up to 512 B
//   pools      up to 1 MiB: the small pool, else the large one. A block serves only the stream that
//              it was first allocated on. A *lane* is one pool of one stream.
//   reuse      the smallest free block of the lane that holds the request; of equal ones the lowest
//   split      what is left over becomes a free block if it is at least 512 B (small pool) or more
//              than 1 MiB (large pool); else it stays with the request
//   segment    if none is free: 2 MiB for the small pool; 20 MiB for requests below 10 MiB; else
//              the request rounded up to 2 MiB
//   free       a block becomes free again and joins free neighbours in its segment
//   limit      a segment beyond it: all free blocks that are whole segments go back to the device,
//              then it is tried again (PyTorch counts an allocation retry)
// With expandable segments a lane has one segment, mapped from its begin in pages of 2 MiB (small)
// or 20 MiB (large) as far as needed; both pools split at 512 B; a retry unmaps whole free pages.
//
// Addresses are not the device's: a segment lies above all earlier ones. Not modelled: blocks that
// another stream still reads (record_stream) come back at once, and the options max_split_size_mb,
// roundup_power2_divisions and garbage_collection_threshold keep their defaults (off).
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "sim/base/units.h"
#include "sim/program/program.h"

namespace stepcast {

struct AllocatorOptions {
  bool expandable_segments = false;
  Bytes limit = Bytes(std::numeric_limits<std::int64_t>::max());  // of all segments together
};

using BlockId = std::int32_t;

class CachingAllocator {
 public:
  explicit CachingAllocator(const AllocatorOptions& options = {});

  // REQUIRES: request > 0. Cost: logarithmic in the distinct sizes of the lane's free blocks.
  BlockId allocate(Bytes request, Stream stream);
  // REQUIRES: a block that allocate() returned and that was not freed since.
  void free(BlockId block);

  Bytes size(BlockId block) const { return Bytes(at(block).size); }
  // Identifies the place of a live block among all lanes.
  std::uint64_t address(BlockId block) const {
    return static_cast<std::uint64_t>(at(block).lane) << 56 |
           static_cast<std::uint64_t>(at(block).address);
  }
  Bytes allocated() const { return Bytes(allocated_); }  // live blocks, rounded as above
  Bytes reserved() const { return Bytes(reserved_); }    // all segments
  Bytes reserved_peak() const { return Bytes(peak_); }
  int retries() const { return retries_; }
  // A request did not fit even after a retry; from there on the limit is ignored.
  bool exhausted() const { return exhausted_; }
  // Grows with every change of what is reserved. While it stands still, equal live blocks at equal
  // addresses mean equal free blocks.
  std::int64_t version() const { return version_; }

 private:
  static constexpr BlockId kNone = -1;
  static constexpr int kLanes = 2 * kStreams;

  struct Block {
    std::int64_t address = 0;
    std::int64_t size = 0;
    BlockId previous = kNone, next = kNone;  // in the segment
    std::int8_t lane = 0;
    bool is_free = false;
    bool is_mapped = true;                   // false: address space without memory
  };

  // The free blocks of a lane by size, then address.
  class FreeBlocks {
   public:
    void insert(std::int64_t size, std::int64_t address, BlockId id);
    void erase(std::int64_t size, std::int64_t address);
    // In order, from the smallest that holds `size` on.
    struct Cursor {
      int bin = -1;               // -1: none
      std::size_t from_last = 0;  // in the bin
    };
    Cursor first(std::int64_t size) { return {next_bin(lower_bound(size)), 0}; }
    Cursor after(Cursor cursor) const;
    BlockId block(Cursor cursor) const;
    std::vector<BlockId> all() const;

   private:
    struct Entry {
      std::int64_t address;
      BlockId id;
    };
    // A size that was looked up, and its lower bound; forgotten where another falls on its place.
    struct Known {
      std::int64_t size = -1;
      std::size_t bin = 0;
    };
    static constexpr int kKnownBits = 8;

    int next_bin(std::size_t from) const;
    std::size_t search(std::int64_t size) const;
    std::size_t lower_bound(std::int64_t size);
    std::size_t bin_of(std::int64_t size);
    static std::vector<Entry>::iterator place_of(std::vector<Entry>& entries,
                                                 std::int64_t address);

    std::vector<std::int64_t> sizes_;        // of the bins, ascending
    std::vector<std::vector<Entry>> bins_;   // addresses descending
    std::vector<std::uint64_t> filled_;      // a bit a bin
    std::array<Known, 1 << kKnownBits> known_;
  };

  struct Lane {
    FreeBlocks free;
    std::vector<BlockId> unmapped;           // of its expandable segment, by address
  };

  static bool is_small(int lane) { return lane % 2 == 0; }
  Block& at(BlockId id) { return blocks_[static_cast<std::size_t>(id)]; }
  const Block& at(BlockId id) const { return blocks_[static_cast<std::size_t>(id)]; }
  Lane& lane_of(const Block& block) { return lanes_[static_cast<std::size_t>(block.lane)]; }

  BlockId new_block(std::int64_t address, std::int64_t size, int lane);
  void insert_after(BlockId block, BlockId fresh);
  void put_free(BlockId block);
  void take_free(BlockId block);
  void split(BlockId block, std::int64_t size);
  void merge(BlockId block, BlockId neighbour);
  void merge_neighbours(BlockId block);
  BlockId best_fit(int lane, std::int64_t size);
  void grow(std::int64_t bytes);
  bool may_grow(std::int64_t bytes) const;

  BlockId new_segment(int lane, std::int64_t size);
  void release_segments();

  BlockId find_room(int lane, std::int64_t size);
  std::int64_t bytes_to_map(BlockId block, std::int64_t size) const;
  void map(BlockId block, std::int64_t size);
  BlockId expand(int lane, std::int64_t size);
  void unmap(BlockId block);
  void unmap_free_pages();

  AllocatorOptions options_;
  std::vector<Block> blocks_;
  std::vector<BlockId> unused_;              // entries of blocks_
  std::array<Lane, kLanes> lanes_;
  std::int64_t next_address_ = 0;
  std::int64_t allocated_ = 0, reserved_ = 0, peak_ = 0, version_ = 0;
  int retries_ = 0;
  bool exhausted_ = false;
};

}  // namespace stepcast

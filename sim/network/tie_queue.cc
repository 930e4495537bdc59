// A binary heap of buckets, each a doubly linked list of the items with one key (the list makes
// erase O(1)). Emptied buckets stay in the heap until they come up or outnumber the others, when
// all are swept at once: amortised O(log buckets) a bucket.
#include "sim/network/tie_queue.h"

#include <algorithm>

namespace stepcast {
namespace {

std::size_t hash_of(std::int64_t key) {
  // Fibonacci hashing (Knuth, The Art of Computer Programming 3, section 6.4): the top byte.
  return static_cast<std::size_t>((static_cast<std::uint64_t>(key) * 0x9E3779B97F4A7C15u) >> 56);
}

constexpr auto later_entry = [](const auto& a, const auto& b) { return a.key > b.key; };

}  // namespace

std::int32_t TieQueue::bucket_for(std::int64_t key) {
  std::int32_t& recent = recent_[hash_of(key)];
  if (recent >= 0 && bucket(recent).queued && bucket(recent).key == key) return recent;
  std::int32_t fresh = static_cast<std::int32_t>(buckets_.size());
  if (spare_.empty()) {
    buckets_.emplace_back();
  } else {
    fresh = spare_.back();
    spare_.pop_back();
  }
  bucket(fresh) = {key, -1, true};
  heap_.push_back({key, fresh});
  std::push_heap(heap_.begin(), heap_.end(), later_entry);
  return recent = fresh;
}

void TieQueue::push(std::int32_t item, std::int64_t key) {
  const std::int32_t b = bucket_for(key);
  Bucket& home = bucket(b);
  if (home.head < 0) {
    ++filled_;
  } else {
    at(home.head).before = item;
  }
  at(item) = {b, -1, home.head};
  home.head = item;
}

void TieQueue::erase(std::int32_t item) {
  Item& gone = at(item);
  if (gone.after >= 0) at(gone.after).before = gone.before;
  if (gone.before >= 0) {
    at(gone.before).after = gone.after;
  } else {
    bucket(gone.bucket).head = gone.after;
    if (gone.after < 0) --filled_;
  }
  gone.bucket = -1;
  if (heap_.size() > 64 && heap_.size() > 2 * filled_) compact();
}

void TieQueue::compact() {
  std::erase_if(heap_, [&](const Entry& entry) {
    Bucket& b = bucket(entry.bucket);
    if (b.head >= 0) return false;
    b.queued = false;
    spare_.push_back(entry.bucket);
    return true;
  });
  std::make_heap(heap_.begin(), heap_.end(), later_entry);
}

void TieQueue::clear() {
  for (const Entry& entry : heap_) {
    Bucket& b = bucket(entry.bucket);
    for (std::int32_t item = b.head; item >= 0; item = at(item).after) at(item).bucket = -1;
    b.queued = false;
    spare_.push_back(entry.bucket);
  }
  heap_.clear();
  filled_ = 0;
}

void TieQueue::retire_least() {
  const std::int32_t b = heap_.front().bucket;
  bucket(b).queued = false;
  spare_.push_back(b);
  std::pop_heap(heap_.begin(), heap_.end(), later_entry);
  heap_.pop_back();
}

std::int64_t TieQueue::least() {
  while (bucket(heap_.front().bucket).head < 0) retire_least();
  return heap_.front().key;
}

void TieQueue::pop(std::vector<std::int32_t>& out) {
  const std::int64_t key = least();
  while (!heap_.empty() && heap_.front().key == key) {
    const Bucket& b = bucket(heap_.front().bucket);
    if (b.head >= 0) --filled_;
    for (std::int32_t item = b.head; item >= 0; item = at(item).after) {
      at(item).bucket = -1;
      out.push_back(item);
    }
    retire_least();
  }
}

}  // namespace stepcast

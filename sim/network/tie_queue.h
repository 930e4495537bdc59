// A priority queue for keys that tie. Internal to sim/network.
//
// Simulated symmetric traffic has few distinct instants and few distinct levels, each shared by
// thousands of items. Items with one key therefore hang in one bucket, and only buckets are in the
// heap: with t items a key, an item costs O(1 + log(buckets) / t). An item can be taken out again
// in O(1). All arrays are flat; nothing is allocated once they have grown.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace stepcast {

class TieQueue {
 public:
  explicit TieQueue(std::size_t items = 0) : items_(items) { recent_.fill(-1); }
  void grow(std::size_t items) { items_.resize(items); }  // REQUIRES: not fewer than before

  bool holds(std::int32_t item) const { return at(item).bucket >= 0; }
  void push(std::int32_t item, std::int64_t key);  // REQUIRES: !holds(item)
  void erase(std::int32_t item);                   // REQUIRES: holds(item)
  void clear();

  bool empty() const { return filled_ == 0; }
  std::int64_t least();  // REQUIRES: !empty()
  // Takes out every item whose key is least() and appends it to `out`, in no meaningful order.
  void pop(std::vector<std::int32_t>& out);  // REQUIRES: !empty()

 private:
  struct Item {
    std::int32_t bucket = -1;  // that it hangs in
    std::int32_t before = -1;  // its neighbours there
    std::int32_t after = -1;
  };
  struct Bucket {
    std::int64_t key = 0;
    std::int32_t head = -1;
    bool queued = false;  // it is in the heap, perhaps with no item left
  };
  struct Entry {
    std::int64_t key;
    std::int32_t bucket;
  };

  Item& at(std::int32_t item) { return items_[static_cast<std::size_t>(item)]; }
  const Item& at(std::int32_t item) const { return items_[static_cast<std::size_t>(item)]; }
  Bucket& bucket(std::int32_t b) { return buckets_[static_cast<std::size_t>(b)]; }
  std::int32_t bucket_for(std::int64_t key);
  void retire_least();
  void compact();

  std::vector<Item> items_;
  std::vector<Bucket> buckets_;
  std::vector<std::int32_t> spare_;  // buckets out of use
  std::vector<Entry> heap_;
  std::size_t filled_ = 0;  // buckets with an item
  // The bucket last used for a key's hash. A miss only makes a second bucket of the same key.
  std::array<std::int32_t, 256> recent_;
};

}  // namespace stepcast

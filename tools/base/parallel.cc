// Threads that take the next index until there is none: pieces may differ in length.
#include "tools/base/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

namespace stepcast {

std::size_t threads_at_hand() { return std::max(1U, std::thread::hardware_concurrency()); }

void in_parallel(std::size_t count, std::size_t threads,
                 const std::function<void(std::size_t i, std::size_t thread)>& work) {
  std::vector<std::exception_ptr> troubles(count);
  std::atomic<std::size_t> next = 0;
  const auto take = [&](std::size_t thread) {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        work(i, thread);
      } catch (...) {
        troubles[i] = std::current_exception();
      }
    }
  };
  std::vector<std::jthread> others;
  for (std::size_t t = 1; t < std::min(threads, count); ++t) others.emplace_back(take, t);
  take(0);
  others.clear();  // joins them
  for (const std::exception_ptr& trouble : troubles) {
    if (trouble) std::rethrow_exception(trouble);
  }
}

}  // namespace stepcast

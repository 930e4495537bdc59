// Parallel: independent pieces of work on the cores at hand.
#pragma once

#include <cstddef>
#include <functional>

namespace stepcast {

// Threads that run side by side here: one a core that this process may use.
std::size_t threads_at_hand();

// Calls work(i, thread) once for each i below `count`, in no particular order; a thread makes one
// call after the other, and bears a number below `threads`. Once all are done, rethrows what the
// least i threw, if any did. REQUIRES: threads >= 1.
void in_parallel(std::size_t count, std::size_t threads,
                 const std::function<void(std::size_t i, std::size_t thread)>& work);

}  // namespace stepcast

// FakeMachine: a machine of GPUs that are none, for the executor of execute/cuda to run on.
//
// Device sources are compiled for the host against the headers in include/ and linked with the
// runtime here; cuBLASLt and NCCL are libraries beside it, opened as the real ones are. A device's
// memory is host memory that begins as NaNs, ends at a page that nobody may touch, and can be
// touched at all only while a stream's work runs. Streams are queues. Nothing on them runs before
// the host waits for something (or, kAtOnce, as soon as it can); then one piece of work after the
// other, from whichever stream the order picks among those that can go on. So what the host does
// not order by events, streams and waits happens in an order that is bad for it: a missing wait
// reads what is not yet there, or what is no longer.
//
// What a caller may not do is told by complaints(), in words; where CUDA would answer with an error
// the call does so as well.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <typeindex>
#include <vector>

#include "tests/support/fake_cuda/include/cuda_runtime_api.h"

namespace stepcast::fake {

enum class Order : std::uint8_t {
  kAtOnce,  // as soon as it can, the host is never ahead
  kRandom,  // any stream that can
  kLate,    // one stream only where no other can, the rest at random
  kEarly,   // that stream before all others
};

// One call that goes wrong: the `number`-th (from 0) of that name by threads on that device.
// "async" stands for a collective that fails on its way.
struct Fault {
  std::string call;
  int device = 0;
  int number = 0;
  int status = 0;
};

struct MachineOptions {
  int devices = 8;
  std::size_t memory = std::size_t{256} << 20;  // of a device
  int major = 8, minor = 0;                     // compute capability
  Order order = Order::kRandom;
  unsigned seed = 1;
  int stream = 0;            // kLate, kEarly: which, by its number among its device's
  std::size_t depth = 1024;  // work that a stream holds before the host has to wait
  // A message of at most so many bytes leaves before its receiver is there. NCCL promises none; its
  // buffers hold some megabytes.
  std::size_t eager = 0;
  std::vector<Fault> faults = {};
};

// A fresh machine; whatever is left of the last one is forgotten. REQUIRES: nobody uses it.
void start(const MachineOptions& options);

// What was done wrong since, in the order of its happening.
std::vector<std::string> complaints();
// What was made and not given back: "2 streams".
std::vector<std::string> leaks();
// How often a call was made: on all devices, and on one.
int calls(const std::string& name);
int calls(const std::string& name, int device);
// Pieces of work that streams have carried out.
std::int64_t work_done();
// Whether a device's streams have nothing left to do.
bool idle(int device);

// ------------------------------------------------------------------ for the libraries beside

// One attempt to go on; true: done. Called with the machine's mutex held.
using Attempt = std::function<bool()>;
// What work is each time that it comes onto a stream: once, or at each launch of its graph.
using Issue = std::function<Attempt()>;

std::mutex& mutex();
int current_device();
// Status of a call that is to fail, or 0; counts it. The second REQUIRES the mutex.
int fault_of(const char* call);
int fault_on(const char* call, int device);
void complain(std::string what);                     // REQUIRES: the mutex
void hold_memory(int device, std::ptrdiff_t bytes);  // by a library; REQUIRES: the mutex
// Something outside the streams changed: who waits looks again. REQUIRES: the mutex.
void changed();
// Puts work on a stream; waits where that is full. The stream's device's memory is open to it;
// where it `asks`, none is until it calls open_memory().
cudaError_t enqueue(cudaStream_t stream, const Issue& issue, bool asks = false);
void open_memory(int device);  // until nothing runs; REQUIRES: an attempt calls
// Until `done`, carrying out work meanwhile; false if nothing moves for too long.
// REQUIRES: the mutex, in `lock`.
bool wait_until(std::unique_lock<std::mutex>& lock, const std::function<bool()>& done);
// Whether all these bytes are one allocation's, on that device. REQUIRES: the mutex.
bool owns(int device, const void* memory, std::size_t bytes);
std::size_t eager_bytes();
// Calls of NCCL that a device's streams hold. REQUIRES: the mutex.
void under_way(int device, int by);
// A kernel is launched on this thread's device. What is loaded at its first launch may wait for the
// whole device (CUDA programming guide, lazy loading), and so for a collective that waits for a
// rank that waits likewise: complains where one is under way.
void load(std::type_index kernel);

// Counts of what lives, for leaks(). REQUIRES: the mutex.
void made(const char* what, int by = 1);

}  // namespace stepcast::fake

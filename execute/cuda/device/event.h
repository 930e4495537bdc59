// Event: a moment on a stream, to order others by, or to take the time.
#pragma once

#include <chrono>
#include <thread>

#include <fmt/format.h>

#include "execute/cuda/device/library.h"
#include "sim/base/error.h"
#include "sim/base/units.h"

namespace stepcast::cuda {

// Owns an event for the life of this object. Events that take no time order streams for less.
class Event {
 public:
  explicit Event(bool timed) {
    check(cudaEventCreateWithFlags(&event_, timed ? cudaEventDefault : cudaEventDisableTiming),
          "cudaEventCreate");
  }
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  Event(Event&& other) noexcept : event_(other.event_) { other.event_ = nullptr; }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  Event& operator=(Event&&) = delete;

  void record(cudaStream_t stream) const { check(cudaEventRecord(event_, stream), "an event"); }
  void hold(cudaStream_t stream) const {
    check(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
  }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// How the host waits: until the event has come to pass. After every `nap` it looks again, and
// `look` throws where it never will. Throws Error after ten minutes.
template <class Look>
void await(const Event& event, const char* what, std::chrono::microseconds nap, Look look) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::minutes(10);
  for (;;) {
    const cudaError_t state = cudaEventQuery(event.get());
    if (state == cudaSuccess) return;
    if (state != cudaErrorNotReady) check(state, what);
    // The next launch would take "not ready" for its own error; any other one is somebody's.
    if (const cudaError_t last = cudaGetLastError(); last != cudaErrorNotReady) check(last, what);
    look();
    if (std::chrono::steady_clock::now() > give_up) {
      throw Error("cuda", fmt::format("{} did not end within ten minutes", what));
    }
    std::this_thread::sleep_for(nap);
  }
}

// From the first to the second, in the event clock's half microseconds.
inline Duration between(const Event& first, const Event& second) {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, first.get(), second.get()), "cudaEventElapsedTime");
  return Duration(static_cast<std::int64_t>(static_cast<double>(milliseconds) * 1e9));
}

}  // namespace stepcast::cuda

// The calls of the runtime but graphs'. What they mean for host and streams follows NVIDIA's page
// "API synchronization behavior": a copy from pageable memory returns when it has been staged, and
// a memset at once.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/support/fake_cuda/machine.h"

namespace stepcast::fake {

namespace {

constexpr unsigned char kPoison = 0xff;  // NaN in fp32 and bf16
constexpr unsigned char kCanary = 0xa5;
thread_local cudaError_t last_error = cudaSuccess;
thread_local int captures = 0;

// Whatever is no success is the thread's last error, until it is asked for: "not ready" too.
cudaError_t answer(cudaError_t status) {
  if (status != cudaSuccess) last_error = status;
  return status;
}

// Of a call that may fail by order.
#define STEPCAST_FAULT(name) \
  if (const int bad = fault_of(name)) return answer(static_cast<cudaError_t>(bad))

// A capture of this thread forbids what might wait for the device.
#define STEPCAST_NOT_IN_CAPTURE(name)                  \
  if (captures > 0) {                                  \
    const std::lock_guard forbidden(machine().mutex);  \
    complain(std::string(name) + " during a capture"); \
    return answer(cudaErrorStreamCaptureUnsupported);  \
  }

cudaError_t map(void** memory, std::size_t bytes, int device) {
  Machine& m = machine();
  const std::lock_guard lock(m.mutex);
  if (device >= 0 && m.used(device) + bytes > m.options.memory) {
    return cudaErrorMemoryAllocation;
  }
  const std::size_t pages = (bytes + kPage - 1) / kPage * kPage;
  void* mapped = mmap(nullptr, pages + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return cudaErrorMemoryAllocation;
  auto* address = static_cast<unsigned char*>(mapped) + kPage;
  mprotect(address, pages, PROT_READ | PROT_WRITE);
  std::memset(address, kPoison, bytes);
  std::memset(address + bytes, kCanary, pages - bytes);
  if (device >= 0) mprotect(address, pages, PROT_NONE);
  m.memory[address] = {bytes, device, static_cast<unsigned char*>(mapped), pages};
  made(device >= 0 ? "pieces of device memory" : "pieces of pinned memory");
  *memory = address;
  return cudaSuccess;
}

// Waits for all that the memory's device has been given, as cudaFree does.
cudaError_t unmap(void* memory, bool of_device) {
  if (memory == nullptr) return cudaSuccess;
  Machine& m = machine();
  std::unique_lock lock(m.mutex);
  auto it = m.memory.find(static_cast<const unsigned char*>(memory));
  if (it == m.memory.end() || (it->second.device >= 0) != of_device) {
    complain("memory is freed that was not allocated");
    return cudaErrorInvalidValue;
  }
  const int device = of_device ? it->second.device : current_device();
  if (!wait_until(lock, [&] { return m.idle(device); })) return cudaErrorLaunchTimeout;
  it = m.memory.find(static_cast<const unsigned char*>(memory));
  Allocation& one = it->second;
  auto* address = static_cast<unsigned char*>(memory);
  mprotect(address, one.mapped_bytes, PROT_READ | PROT_WRITE);
  const bool whole = std::all_of(address + one.bytes, address + one.mapped_bytes,
                                 [](unsigned char c) { return c == kCanary; });
  if (!whole) complain("something was written behind the end of an allocation");
  made(of_device ? "pieces of device memory" : "pieces of pinned memory", -1);
  m.release(it);
  return cudaSuccess;
}

// Whether a copy's ends are what its kind says.
bool check_copy(const void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  const bool up = kind == cudaMemcpyHostToDevice;
  const std::lock_guard lock(machine().mutex);
  if (kind == cudaMemcpyDeviceToDevice) {
    const int here = current_device();
    if (owns(here, to, bytes) && owns(here, from, bytes)) return true;
    complain("a copy on a device whose ends are not within its allocations");
    return false;
  }
  const Allocation* device = machine().allocation(up ? to : from, bytes);
  const Allocation* host = machine().allocation(up ? from : to, bytes);
  if (device == nullptr || device->device < 0) {
    complain("a copy whose end on the device is not within an allocation");
    return false;
  }
  if (host != nullptr && host->device >= 0) {
    complain("a copy whose end on the host is on a device");
    return false;
  }
  return true;
}

bool is_pinned(const void* memory, std::size_t bytes) {
  const std::lock_guard lock(machine().mutex);
  const Allocation* found = machine().allocation(memory, bytes);
  return found != nullptr && found->device < 0;
}

Issue copying(void* to, const void* from, std::size_t bytes) {
  return [=] {
    return [=] {
      std::memcpy(to, from, bytes);
      return true;
    };
  };
}

// The bytes as they are now.
Issue copying_now(void* to, const void* from, std::size_t bytes) {
  const auto* first = static_cast<const unsigned char*>(from);
  return [to, staged = std::vector<unsigned char>(first, first + bytes)] {
    return [to, staged] {
      std::memcpy(to, staged.data(), staged.size());
      return true;
    };
  };
}

cudaError_t create(cudaStream_t* stream, unsigned flags) {
  Machine& m = machine();
  const std::lock_guard lock(m.mutex);
  if (flags != cudaStreamNonBlocking) {
    complain("a stream that waits for the default stream, which this machine does not know");
    return cudaErrorInvalidValue;
  }
  auto made_stream = std::make_unique<CUstream_st>();
  made_stream->device = current_device();
  made_stream->number = m.next_number[static_cast<std::size_t>(current_device())]++;
  *stream = made_stream.get();
  m.streams.push_back(std::move(made_stream));
  made("streams");
  return cudaSuccess;
}

bool happened(const cudaEvent_t event) { return event->last == nullptr || event->last->done; }

}  // namespace

void count_capture(int by) { captures += by; }

}  // namespace stepcast::fake

using namespace stepcast::fake;

extern "C" {

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorLaunchTimeout: return "the launch timed out and was terminated";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureUnjoined: return "capturing stream has unjoined work";
    default: return "a CUDA error";
  }
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  STEPCAST_FAULT("cudaGetDeviceCount");
  *count = machine().options.devices;
  return *count == 0 ? answer(cudaErrorNoDevice) : cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= machine().options.devices) return answer(cudaErrorInvalidDevice);
  choose_device(device);
  STEPCAST_FAULT("cudaSetDevice");
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= machine().options.devices) return answer(cudaErrorInvalidDevice);
  STEPCAST_FAULT("cudaGetDeviceProperties");
  *properties = {};
  std::strncpy(properties->name, "a GPU that is none", sizeof properties->name - 1);
  properties->totalGlobalMem = machine().options.memory;
  properties->major = machine().options.major;
  properties->minor = machine().options.minor;
  properties->multiProcessorCount = 4;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  if (length < 13 || device < 0 || device > 9) return answer(cudaErrorInvalidValue);
  std::strncpy(text, "0000:00:00.0", static_cast<std::size_t>(length));
  text[9] = static_cast<char>('0' + device);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  STEPCAST_NOT_IN_CAPTURE("cudaDeviceSynchronize");
  STEPCAST_FAULT("cudaDeviceSynchronize");
  Machine& m = machine();
  std::unique_lock lock(m.mutex);
  const int device = current_device();
  const bool idle = wait_until(lock, [&] { return m.idle(device); });
  return idle ? cudaSuccess : answer(cudaErrorLaunchTimeout);
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  STEPCAST_NOT_IN_CAPTURE("cudaMalloc");
  STEPCAST_FAULT("cudaMalloc");
  return answer(map(memory, bytes, current_device()));
}

cudaError_t cudaFree(void* memory) {
  STEPCAST_NOT_IN_CAPTURE("cudaFree");
  const int bad = fault_of("cudaFree");  // it is freed all the same
  const cudaError_t status = unmap(memory, true);
  return answer(bad != 0 ? static_cast<cudaError_t>(bad) : status);
}

cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  STEPCAST_NOT_IN_CAPTURE("cudaHostAlloc");
  STEPCAST_FAULT("cudaHostAlloc");
  return answer(map(memory, bytes, -1));
}

cudaError_t cudaFreeHost(void* memory) { return answer(unmap(memory, false)); }

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  STEPCAST_FAULT("cudaMemGetInfo");
  const std::lock_guard lock(machine().mutex);
  *total = machine().options.memory;
  *free = *total - machine().used(current_device());
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  STEPCAST_FAULT("cudaMemsetAsync");
  {
    const std::lock_guard lock(machine().mutex);
    if (!owns(current_device(), memory, bytes)) {
      complain("a memset beyond an allocation of its device");
      return answer(cudaErrorInvalidValue);
    }
  }
  return answer(enqueue(stream, [=] {
    return [=] {
      std::memset(memory, value, bytes);
      return true;
    };
  }));
}

cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  STEPCAST_NOT_IN_CAPTURE("cudaMemset");
  STEPCAST_FAULT("cudaMemset");
  return cudaMemsetAsync(memory, value, bytes, nullptr);
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  STEPCAST_NOT_IN_CAPTURE("cudaMemcpy");
  STEPCAST_FAULT("cudaMemcpy");
  if (!check_copy(to, from, bytes, kind)) return answer(cudaErrorInvalidValue);
  if (const cudaError_t bad = cudaStreamSynchronize(nullptr); bad != cudaSuccess) return bad;
  const bool staged = kind == cudaMemcpyHostToDevice && !is_pinned(from, bytes);
  const cudaError_t status =
      enqueue(nullptr, staged ? copying_now(to, from, bytes) : copying(to, from, bytes));
  if (status != cudaSuccess || staged) return answer(status);
  return cudaStreamSynchronize(nullptr);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  STEPCAST_FAULT("cudaMemcpyAsync");
  if (!check_copy(to, from, bytes, kind)) return answer(cudaErrorInvalidValue);
  const bool up = kind == cudaMemcpyHostToDevice;
  if (up && !is_pinned(from, bytes)) return answer(enqueue(stream, copying_now(to, from, bytes)));
  const cudaError_t status = enqueue(stream, copying(to, from, bytes));
  const bool waits = kind == cudaMemcpyDeviceToHost && !is_pinned(to, bytes);
  if (status != cudaSuccess || !waits) return answer(status);
  return cudaStreamSynchronize(stream);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  STEPCAST_FAULT("cudaStreamCreateWithFlags");
  return answer(create(stream, flags));
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  STEPCAST_FAULT("cudaStreamCreateWithPriority");
  return answer(create(stream, flags));
}

// Its work still runs to the end.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Machine& m = machine();
  const std::lock_guard lock(m.mutex);
  CUstream_st* found = stream == nullptr ? nullptr : m.find(stream, 0);
  if (found == nullptr) return answer(cudaErrorInvalidResourceHandle);
  if (found->capture != nullptr) complain("a stream is destroyed while it is captured");
  found->closed = true;
  made("streams", -1);
  if (!found->queue.empty()) return cudaSuccess;
  std::erase_if(m.streams, [&](const auto& one) { return one.get() == found; });
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  STEPCAST_NOT_IN_CAPTURE("cudaStreamSynchronize");
  STEPCAST_FAULT("cudaStreamSynchronize");
  Machine& m = machine();
  std::unique_lock lock(m.mutex);
  CUstream_st* on = m.find(stream, current_device());
  if (on == nullptr) return answer(cudaErrorInvalidResourceHandle);
  const bool idle = wait_until(lock, [&] { return on->queue.empty(); });
  return idle ? cudaSuccess : answer(cudaErrorLaunchTimeout);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  STEPCAST_FAULT("cudaStreamWaitEvent");
  Machine& m = machine();
  const std::lock_guard lock(m.mutex);
  CUstream_st* on = m.find(stream, current_device());
  if (on == nullptr) return answer(cudaErrorInvalidResourceHandle);
  const MomentPointer moment = event->last;
  if (moment == nullptr) return cudaSuccess;
  if (moment->capture == nullptr && on->capture == nullptr) {
    m.append(*on, [moment] { return [moment] { return moment->done; }; });
    return cudaSuccess;
  }
  return answer(wait_in_capture(*on, moment));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  STEPCAST_FAULT("cudaEventCreateWithFlags");
  const std::lock_guard lock(machine().mutex);
  *event = new CUevent_st;
  (*event)->timed = (flags & cudaEventDisableTiming) == 0;
  made("events");
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::lock_guard lock(machine().mutex);
  delete event;
  made("events", -1);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  STEPCAST_FAULT("cudaEventRecord");
  Machine& m = machine();
  const std::lock_guard lock(m.mutex);
  CUstream_st* on = m.find(stream, current_device());
  if (on == nullptr) return answer(cudaErrorInvalidResourceHandle);
  const auto moment = std::make_shared<Moment>();
  event->last = moment;
  if (on->capture) {
    record_in_capture(*on, moment);
    return cudaSuccess;
  }
  m.append(*on, [moment] {
    return [moment] {
      moment->milliseconds = now_milliseconds();
      return moment->done = true;
    };
  });
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  STEPCAST_NOT_IN_CAPTURE("cudaEventQuery");
  STEPCAST_FAULT("cudaEventQuery");
  Machine& m = machine();
  const std::lock_guard lock(m.mutex);
  if (event->last != nullptr && event->last->capture != nullptr) {
    complain("an event of a capture is asked for");
    return answer(cudaErrorCapturedEvent);
  }
  if (m.run([&] { return happened(event); })) return cudaSuccess;
  return answer(m.stuck() ? cudaErrorLaunchTimeout : cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  STEPCAST_NOT_IN_CAPTURE("cudaEventSynchronize");
  STEPCAST_FAULT("cudaEventSynchronize");
  std::unique_lock lock(machine().mutex);
  if (event->last != nullptr && event->last->capture != nullptr) {
    complain("an event of a capture is waited for");
    return answer(cudaErrorCapturedEvent);
  }
  const bool done = wait_until(lock, [&] { return happened(event); });
  return done ? cudaSuccess : answer(cudaErrorLaunchTimeout);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  STEPCAST_FAULT("cudaEventElapsedTime");
  const std::lock_guard lock(machine().mutex);
  if (!start->timed || !end->timed || start->last == nullptr || end->last == nullptr ||
      start->last->capture != nullptr || end->last->capture != nullptr) {
    complain("the time between events that have none");
    return answer(cudaErrorInvalidResourceHandle);
  }
  if (!start->last->done || !end->last->done) return answer(cudaErrorNotReady);
  *milliseconds = static_cast<float>(end->last->milliseconds - start->last->milliseconds);
  return cudaSuccess;
}

}  // extern "C"

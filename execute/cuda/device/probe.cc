// What a machine has, asked of the CUDA runtime, which answers without a driver too, and of NVML.
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "execute/cuda/cuda_device.h"
#include "execute/cuda/device/library.h"
#include "sim/base/error.h"

namespace stepcast {

namespace {

// NVML's part that is asked here, by the names and numbers of nvml.h, which not every toolkit has.
using NvmlDevice = void*;
constexpr int kNvmlSuccess = 0;
constexpr unsigned kGraphicsClock = 0, kMemoryClock = 2;

}  // namespace

class Nvml {
 public:
  explicit Nvml(const std::string& bus)
      : library_(cuda::open_library({"libnvidia-ml.so.1", "libnvidia-ml.so"})) {
    if (library_ == nullptr || call("nvmlInit_v2") != kNvmlSuccess) return;
    open_ = call("nvmlDeviceGetHandleByPciBusId_v2", bus.c_str(), &device_) == kNvmlSuccess;
  }
  ~Nvml() {
    if (open_) call("nvmlShutdown");
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  template <class Value, class... Arguments>
  Value ask(const char* name, Arguments... arguments) const {
    Value value{};
    if (!open_ || call(name, device_, arguments..., &value) != kNvmlSuccess) return Value{};
    return value;
  }
  std::string driver() const {
    char text[96] = {};
    const bool known =
        open_ && call("nvmlSystemGetDriverVersion", text, sizeof text - 1u) == kNvmlSuccess;
    return known ? text : "";
  }

 private:
  template <class... Arguments>
  int call(const char* name, Arguments... arguments) const {
    void* function = cuda::function_of(library_, name);
    if (function == nullptr) return -1;
    return reinterpret_cast<int (*)(Arguments...)>(function)(arguments...);
  }

  void* library_ = nullptr;
  NvmlDevice device_ = nullptr;
  bool open_ = false;
};

namespace {

// nvmlClocksThrottleReason*, those that make a measurement slower than the device can be.
std::vector<std::string> throttle_words(unsigned long long bits) {
  struct Reason {
    unsigned long long bit;
    const char* word;
  };
  std::vector<std::string> words;
  for (const Reason& reason :
       {Reason{0x2, "clocks set by the administrator"}, Reason{0x4, "power cap"},
        Reason{0x8, "hardware slowdown"}, Reason{0x20, "heat"}, Reason{0x40, "heat, by hardware"},
        Reason{0x80, "power brake"}}) {
    if ((bits & reason.bit) != 0) words.emplace_back(reason.word);
  }
  return words;
}

// How the device is clocked just now, and why.
void look(const Nvml& nvml, CudaMachine& out) {
  out.clock_mhz = nvml.ask<unsigned>("nvmlDeviceGetClockInfo", kGraphicsClock);
  out.clock_mhz_max = nvml.ask<unsigned>("nvmlDeviceGetMaxClockInfo", kGraphicsClock);
  out.memory_clock_mhz = nvml.ask<unsigned>("nvmlDeviceGetClockInfo", kMemoryClock);
  out.power_watts = nvml.ask<unsigned>("nvmlDeviceGetPowerUsage") / 1000.0;
  out.power_limit_watts = nvml.ask<unsigned>("nvmlDeviceGetEnforcedPowerLimit") / 1000.0;
  out.temperature_celsius = static_cast<int>(nvml.ask<unsigned>("nvmlDeviceGetTemperature", 0u));
  out.throttled_by =
      throttle_words(nvml.ask<unsigned long long>("nvmlDeviceGetCurrentClocksThrottleReasons"));
}

std::string bus_of(int device) {
  char bus[32] = {};
  cuda::check(cudaDeviceGetPCIBusId(bus, sizeof bus, device), "cudaDeviceGetPCIBusId");
  return bus;
}

std::string version(int number, int unit) {
  return fmt::format("{}.{}", number / unit, number % unit / 10);
}

}  // namespace

int cuda_devices() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess ? devices : 0;
}

std::string cuda_missing() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess || devices == 0) {
    cudaGetLastError();  // it was heard
    // The runtime has no driver to ask: libcuda.so.1 comes with it.
    if (status == cudaErrorInsufficientDriver) {
      return "no NVIDIA driver is loaded here, or one older than the CUDA runtime of this "
             "stepcast; "
             "run it on a machine with a GPU";
    }
    return fmt::format(
        "no GPU is found here ({}); run it on a machine with one, and look at "
        "CUDA_VISIBLE_DEVICES",
        cudaGetErrorString(status));
  }
  try {
    cuda::cublaslt();
    cuda::nccl();
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

CudaMachine cuda_machine(int device) {
  CudaMachine out;
  cudaDeviceProp properties;
  cuda::check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  out.device = properties.name;
  out.multiprocessors = properties.multiProcessorCount;
  out.capability = 10 * properties.major + properties.minor;
  out.memory = Bytes(static_cast<std::int64_t>(properties.totalGlobalMem));
  int runtime = 0, nccl = 0;
  cuda::check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  cuda::check(cuda::nccl().ncclGetVersion(&nccl), "ncclGetVersion");
  out.runtime = version(runtime, 1000);
  out.nccl = fmt::format("{}.{}.{}", nccl / 10000, nccl / 100 % 100, nccl % 100);
  const auto blas = static_cast<int>(cuda::cublaslt().cublasLtGetVersion());
  out.cublaslt = fmt::format("{}.{}.{}", blas / 10000, blas / 100 % 100, blas % 100);
  const Nvml nvml(bus_of(device));
  out.driver = nvml.driver();
  look(nvml, out);
  return out;
}

struct CudaWatch::Watcher {
  explicit Watcher(int device) : nvml(bus_of(device)), thread([this] { watch(); }) {}

  void watch() {
    std::unique_lock lock(mutex);
    while (!changed.wait_for(lock, std::chrono::milliseconds(100), [this] { return over; })) {
      CudaMachine now;
      look(nvml, now);
      clocks.add(now);
    }
  }

  Nvml nvml;
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
  ClockRange clocks;
  std::thread thread;
};

CudaWatch::CudaWatch(int device) : watcher_(std::make_unique<Watcher>(device)) {}

CudaWatch::~CudaWatch() {
  {
    const std::lock_guard lock(watcher_->mutex);
    watcher_->over = true;
  }
  watcher_->changed.notify_all();
  watcher_->thread.join();
}

ClockRange CudaWatch::seen() const {
  const std::lock_guard lock(watcher_->mutex);
  return watcher_->clocks;
}

}  // namespace stepcast

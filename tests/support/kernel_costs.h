// Devices and products, for tests of what kernels cost.
#pragma once

#include <fstream>
#include <sstream>
#include <string>

#include "sim/base/json.h"
#include "sim/cost/cost.h"
#include "sim/hardware/profile.h"
#include "tests/support/shipped_device.h"

namespace stepcast {

// With the kernels of its profile.
inline Device fitted_device(const std::string& name) {
  Device device = shipped_device(name);
  const std::string path = std::string(STEPCAST_SOURCE_DIR) + "/configs/profiles/" + name + ".json";
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  use_kernels(read_profile(parse_json(text.str(), path)), device);
  return device;
}

// A device with whole numbers: 100 TFLOP/s, 1 TB/s, 100 multiprocessors, nothing lost.
inline Device plain_device() {
  Device device = shipped_device("h100-sxm");
  device.matrix_rate = {{Dtype::kBf16, FlopRate(100e12)}, {Dtype::kFp32, FlopRate(10e12)}};
  device.kernels.matrix.efficiency = 1;
  device.memory_bandwidth = Bandwidth(1e12);
  device.kernels.memory = 1;
  device.multiprocessors = 100;
  device.kernel_start = Seconds(0);
  return device;
}

inline Gemm matrix_product(std::int64_t m, std::int64_t n, std::int64_t k,
                           Dtype dtype = Dtype::kBf16) {
  Gemm gemm;
  gemm.m = m;
  gemm.n = n;
  gemm.k = k;
  gemm.dtype = gemm.output = dtype;
  return gemm;
}

inline double kernel_seconds(const Op& op, const Device& device) {
  return op_cost(op, device).time.value;
}

// What an Op takes longer where the framework leaves the member's part to kernels of its own.
inline double left_apart(const Op& op, bool Fusion::*member, const Device& device) {
  Device apart = device;
  apart.kernels.fusion.*member = false;
  return kernel_seconds(op, apart) - kernel_seconds(op, device);
}

}  // namespace stepcast

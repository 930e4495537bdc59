// Gemm: the matrix product's share of sim/cost, internal to this folder.
#pragma once

#include "sim/base/units.h"
#include "sim/hardware/hardware.h"
#include "sim/program/op.h"

namespace stepcast {

// Data sheet rate of the device's matrix units for `dtype`; the next wider dtype's where they do
// not know it, the vector units' where they know none.
FlopRate matrix_rate(Dtype dtype, const Device& device);

// What is left of a device for one kernel.
struct Room {
  int multiprocessors = 0;
  double memory = 1;    // share of the bandwidth
  bool rested = false;  // see Setting
};

// Time to move `bytes` (a real count) over the memory bus; half of the long-stream bandwidth is
// reached at bandwidth x kMemoryLatency.
Seconds memory_time(double bytes, const Device& device, const Room& room);

// Time of the product, without kernel_start of the product itself.
Seconds gemm_time(const Gemm& gemm, const Device& device, const Room& room);

}  // namespace stepcast

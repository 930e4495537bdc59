// Cost: how long one kernel takes on one device, from its data sheet.
//
// A roofline with the two quantisations that the field knows (GEMM tiles and waves):
//   time = kernel_start + max(FLOPs / (rate x efficiency(shape)), traffic / bandwidth(size))
// Each formula stands beside its code with its source; the basis of a time says what it rests on.
#pragma once

#include "sim/base/units.h"
#include "sim/hardware/hardware.h"
#include "sim/program/op.h"

namespace stepcast {

struct Cost {
  Seconds time;
  Basis basis = Basis::kDatasheet;
};

// Around a kernel.
struct Setting {
  // A few runs of one kernel on a rested device, as a benchmark makes them. Else kernel after
  // kernel for seconds, as in training: power and heat remember what ran before.
  bool rested = false;
  // What a collective beside it takes: its blocks each hold a multiprocessor until they are done,
  // and its share of the memory's bandwidth is small enough that fair arbitration grants it whole.
  int multiprocessors_taken = 0;
  double memory_taken = 0;  // share, 0 to 1
};

// Device time of one kernel. REQUIRES: shapes >= 1. Finite and > 0; never smaller for a larger
// shape of the same kind, nor for more that is taken. At least one multiprocessor and a tenth of
// the memory's bandwidth are left whatever is taken.
// A dtype that the device's matrix units do not know runs at the rate of the next wider one.
Cost op_cost(const Op& op, const Device& device, const Setting& setting = {});

// What the host takes to issue the kernels of an op beyond the first, beside the device: those of
// experts' products, where each has one of its own (Fusion::groups). Else 0.
Seconds issue_time(const Op& op, const Device& device);

// What the highest of so many standard normal deviates is expected to be: the normal distribution's
// quantile of (n - 3/8) / (n + 1/4) (Blom, "Statistical Estimates and Transformed Beta-Variables",
// 1958): 1.4 for 8, 2.4 for 64, 3.2 for 1,024. REQUIRES: n >= 1.
double highest_of(int n);
// The logarithm of the share of standard normal deviates below `deviate`; -infinity for no share.
double log_share_below(double deviate);

// A device that takes longer than the mean of its kind by so many of Device::spread. Its sustained
// rates are those of `device` over 1 + spread x deviate. Kernels that memory or instructions bound
// keep theirs: power does not.
Device slower_by(const Device& device, double deviate);

// How the matrix product fills the device: for tests and for `stepcast time`.
struct GemmFill {
  int tile_rows = 0, tile_columns = 0;
  int split = 1;               // parts of k, each with its own tiles (split-k)
  std::int64_t tiles = 0;      // of C, all batches; tiles x split are spread over the device
  std::int64_t waves = 0;
  double tile_efficiency = 0;  // useful share of the tiles' area
  double wave_efficiency = 0;  // busy share of the multiprocessors over all waves
};
GemmFill gemm_fill(const Gemm& gemm, const Device& device);

}  // namespace stepcast

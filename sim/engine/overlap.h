// Overlap: how much of a transfer the Job lets compute run beside, read off its text.
//
// In a body, from a Collective or Send on a stream of its own to where the compute stream waits for
// it, or the host for all, or to the body's end, the Computes that stand there run beside it. So of
// a transfer that takes T with kernels of C seconds in that stretch, min(1, C / T) has compute
// beside it. Where a transfer stands in several places, the mean. What lies before it on its own
// stream is not looked at, nor what other bodies do.
#pragma once

#include <vector>

#include "sim/engine/simulate.h"
#include "sim/program/program.h"

namespace stepcast {

struct ComputeBeside {
  double share = 0;     // of the transfer's time, 0 to 1
  double products = 0;  // of that compute's time: of kernels like a product (beside_kernel())
};

// By TransferId. Linear in the text of the bodies, times what runs beside a transfer.
std::vector<ComputeBeside> compute_beside(const Job& job, const Prices& prices);

}  // namespace stepcast

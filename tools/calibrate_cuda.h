// `stepcast calibrate --device cuda`: the ring of each plan on this machine's GPUs.
#pragma once

#include "tools/calibrate.h"

namespace stepcast {

// Throws Error saying what is missing where there is no GPU, or fewer than a plan has ranks.
int calibrate_on_gpus(const CalibrateArguments& arguments);

}  // namespace stepcast

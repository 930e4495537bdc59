// The CUDA device, as those see it who know nothing of CUDA: whether there is one.
#pragma once

#include <string>

namespace stepcast {

// "" where this program was built with CUDA and finds a GPU with its libraries; else one line that
// says what is missing and what to do about it.
std::string cuda_missing();

}  // namespace stepcast

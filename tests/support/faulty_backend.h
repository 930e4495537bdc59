// A backend that carries out kernels by another one until, at a given kernel, something goes wrong.
#pragma once

#include <memory>
#include <string_view>

#include "execute/backend.h"

namespace stepcast {

enum class Fault : std::uint8_t {
  kNone,
  kNan,   // the kernel writes one NaN
  kHang,  // it never returns
  kDie    // the process is killed, as by `kill -9`
};

// "none", "nan", "hang", "die"; aborts for any other word.
Fault fault_named(std::string_view name);

// `kernel`: counted from 0, over all steps.
std::unique_ptr<Backend> make_faulty_backend(std::unique_ptr<Backend> inner, Fault fault,
                                             int kernel);

}  // namespace stepcast

// One pass, bound by memory.
#include "execute/convert.h"

#include <algorithm>

#include "sim/base/error.h"

namespace stepcast {

void to_float(const void* in, Dtype dtype, std::int64_t elements, float* out) {
  if (dtype == Dtype::kFp32) {
    std::copy_n(static_cast<const float*>(in), elements, out);
    return;
  }
  STEPCAST_CHECK(dtype == Dtype::kBf16, "executable() names the dtypes that are not carried out");
  const auto* bits = static_cast<const std::uint16_t*>(in);
  for (std::int64_t i = 0; i < elements; ++i) out[i] = widen_bf16(bits[i]);
}

void from_float(const float* in, std::int64_t elements, void* out, Dtype dtype) {
  if (dtype == Dtype::kFp32) {
    std::copy_n(in, elements, static_cast<float*>(out));
    return;
  }
  STEPCAST_CHECK(dtype == Dtype::kBf16, "executable() names the dtypes that are not carried out");
  auto* bits = static_cast<std::uint16_t*>(out);
  for (std::int64_t i = 0; i < elements; ++i) bits[i] = round_bf16(in[i]);
}

}  // namespace stepcast

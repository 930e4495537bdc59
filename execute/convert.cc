// One pass, bound by memory.
#include "execute/convert.h"

#include <cstring>

#include "sim/base/error.h"

namespace stepcast {

namespace {

bool keeps_bits(Dtype dtype) { return dtype == Dtype::kFp32 || dtype == Dtype::kInt32; }

void copy_bits(const void* in, std::int64_t elements, void* out) {
  std::memcpy(out, in, static_cast<std::size_t>(elements) * sizeof(float));
}

}  // namespace

void to_float(const void* in, Dtype dtype, std::int64_t elements, float* out) {
  if (keeps_bits(dtype)) return copy_bits(in, elements, out);
  STEPCAST_CHECK(dtype == Dtype::kBf16, "executable() names the dtypes that are not carried out");
  const auto* bits = static_cast<const std::uint16_t*>(in);
  for (std::int64_t i = 0; i < elements; ++i) out[i] = widen_bf16(bits[i]);
}

void from_float(const float* in, std::int64_t elements, void* out, Dtype dtype) {
  if (keeps_bits(dtype)) return copy_bits(in, elements, out);
  STEPCAST_CHECK(dtype == Dtype::kBf16, "executable() names the dtypes that are not carried out");
  auto* bits = static_cast<std::uint16_t*>(out);
  for (std::int64_t i = 0; i < elements; ++i) bits[i] = round_bf16(in[i]);
}

}  // namespace stepcast

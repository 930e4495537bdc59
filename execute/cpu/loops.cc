// Which loops: asked of the processor once.
#include "execute/cpu/loops.h"

#include <array>

namespace stepcast::cpu {

namespace base {
extern const Loops kLoops;
}
#ifdef STEPCAST_X86
namespace avx2 {
extern const Loops kLoops;
}
namespace avx512 {
extern const Loops kLoops;
}
#endif

namespace {

struct Supported {
  std::array<const Loops*, 3> list = {};
  int count = 0;

  Supported() {
#ifdef STEPCAST_X86
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      add(avx512::kLoops);
    }
    if (__builtin_cpu_supports("avx2")) add(avx2::kLoops);
#endif
    add(base::kLoops);
  }
  void add(const Loops& loops) { list[static_cast<std::size_t>(count++)] = &loops; }
};

const Supported& supported() {
  static const Supported found;
  return found;
}

}  // namespace

const Loops& loops() { return *supported().list.front(); }

std::span<const Loops* const> supported_loops() {
  return std::span(supported().list).first(static_cast<std::size_t>(supported().count));
}

}  // namespace stepcast::cpu

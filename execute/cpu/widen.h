// Widen: kernels in float for operands in bf16. What a kernel reads and writes is copied into
// floats before and rounded once after, as a GPU's kernels do in registers.
#pragma once

#include <vector>

#include "execute/backend.h"

namespace stepcast::cpu {

class Widener {
 public:
  // Calls kernel(work) with every bf16 operand in float; what is written goes back into bf16.
  // Equal operands stay equal, so that kernels see what they work on in place.
  template <class Kernel>
  void run(const Work& work, Kernel kernel) {
    if (!any_narrow(work)) return kernel(work);
    widen(work);
    kernel(Work{work.op, reads_, writes_, work.place, work.dropout});
    narrow(work);
  }

 private:
  static bool any_narrow(const Work& work);
  void widen(const Work& work);
  void narrow(const Work& work) const;
  Operand wide(const Operand& operand, std::vector<const Operand*>& known);

  std::vector<Operand> reads_, writes_;
  std::vector<std::vector<float>> buffers_;  // grow to the largest operand, then stay
};

}  // namespace stepcast::cpu

// Alone: what spans of a step would have been with nothing beside them.
//
// Where a kernel runs beside collectives and messages of its own device, both take longer; a
// forecast adds what that costs by itself (sim/engine/price.cc), so timed work must not hold it
// already. For a kernel of d seconds of which o have a transfer beside it that costs f times,
//   alone = d / (1 + sum over transfers of (f - 1) o / d)
// and for a transfer the same over the kernels beside it. f is what was measured
// (sim/hardware/probes.h), 1 where nothing was. That a transfer that only waits for others takes
// less from a kernel is not known apart.
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "sim/hardware/probes.h"
#include "sim/program/program.h"
#include "sim/result/result.h"

namespace stepcast {

// Null: not measured.
using FindBeside =
    std::function<const BesidePoint*(std::string_view kernel, const Transfer& transfer)>;

// The spans of one rank, each ending earlier by what others cost it. REQUIRES: `spans` are of what
// takes time, in the order of issue, so those of one stream ascend.
std::vector<Span> spans_alone(const Job& job, std::span<const Span> spans, const FindBeside& find);

}  // namespace stepcast

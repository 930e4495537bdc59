// On whose account a transfer goes: what breakdowns, traffic and waits call it.
#pragma once

#include "sim/program/program.h"

namespace stepcast {

// Of a collective on `stream`:
//   context stream   context, also an all-to-all
//   expert stream    expert, whatever axes the experts are spread over: tokens on their way; so is
//                    an all-to-all on any other stream
//   among the rest   pipeline if it is one of the axes (scalars of all ranks), else data, else
//                    replica; expert ranks are data ranks but for the experts, so data; else the
//                    last one left, context or tensor
Axis charged_axis(Stream stream, const Transfer& transfer);

}  // namespace stepcast

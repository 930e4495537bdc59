// A collective played message by message over the cluster's topology, for `stepcast time --flows`.
#pragma once

#include "sim/base/units.h"
#include "sim/hardware/hardware.h"
#include "sim/program/program.h"

namespace stepcast {

// From the first message to the last, on the idle cluster, over its first `ranks` devices: rings
// with as many rings as a node has ranks, each leaving a node by another device, all at once, each
// with its share of the bytes; all-to-all and send as single messages. Max-min fair flows over the
// links that Topology routes them by (sim/network/flows.h); no protocol, no launch.
// Throws Error for broadcast, which is not played, and as Topology and play() do.
Seconds play_collective(TransferKind kind, Bytes size, int ranks, const Cluster& cluster);

}  // namespace stepcast

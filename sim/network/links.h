// Links: what the links on the way allow, where network.h's closed forms do not see them. Internal
// to sim/network; users call place() and send_time() of network.h.
//
// All groups of a kind run at once. Each link's load is counted: how many bytes it carries for each
// byte of bus bandwidth that a group gets. The bottleneck is the greatest load over capacity. For
// symmetric collectives, in which all groups begin together and go at one pace, this is exact: it
// is what max-min fair sharing gives.
//
//   ring        a group's members in rank order, each to the next; of a group in several nodes, its
//               members in a node take turns at its edge, so each sends 1/q of it through its NICs
//   all-to-all  1/n of a rank's bytes from each member to each other
//
// Counted are: in boxes, device links, PCIe, sockets and host memory; NICs that are slow, and those
// that take over for dead ones; leaves' uplinks. Of many nodes or leaves that are alike the first
// few are looked at, and all that have slow links.
#pragma once

#include "sim/hardware/hardware.h"
#include "sim/network/network.h"
#include "sim/program/mesh.h"

namespace stepcast {

// No limit at all where neither box nor fabric can be the bottleneck; that costs a few comparisons.
// Else a search of the box (tens of microseconds) and a walk over the ranks that are looked at.
// Throws Error as box_graph() does.
LinkLimits link_limits(const Mesh& mesh, AxisSet axes, bool ends_only, const Cluster& cluster);

// Whether link_limits() may be other than none.
bool has_link_limits(const Cluster& cluster);

}  // namespace stepcast

// A cluster as text for `stepcast show cluster`: what it is made of, and the ways through it.
#pragma once

#include <string>

#include "sim/hardware/hardware.h"

namespace stepcast {

// The device, the box with its links, the fabric, and the routes between typical pairs of devices
// with the link that is the bottleneck of each.
std::string cluster_text(const Cluster& cluster);

}  // namespace stepcast

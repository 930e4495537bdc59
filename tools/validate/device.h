// Devices and links as published tables call them: "H100-80GB-SXM", "8x HDR 200 Gb/s InfiniBand".
// Internal to `stepcast validate`.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/hardware/hardware.h"

namespace stepcast {

struct NamedDevice {
  const Device* device = nullptr;  // nullptr: none is shipped
  std::string assumed;             // "" if the name leaves no choice
  bool same_links = true;          // false: only its kernels are the device's
};
NamedDevice find_device(std::string_view gpu, const std::vector<Device>& devices);

// Network cards of a node and the nominal rate of one.
struct NodeLink {
  int cards = 0;
  Bandwidth rate;
};
// "32x100 Gb/s EFA per node", "8x NDR400", "8x HDR 200 Gb/s InfiniBand": as it says; "4x HDR
// InfiniBand": by the generation, also beside what a node has in all.
// "1600 Gb/s per node": shared by `cards` cards. "400 Gb/s per GPU": one card a device, `devices`
// of them. Nothing where no rate is stated.
std::optional<NodeLink> read_link(std::string_view text, int cards, int devices);

}  // namespace stepcast

// Names out of tables that people wrote by hand: needles in lower-case text and a few patterns. All
// that decides stands in the tables here; linear in the text, which is cut where no name is longer.
#include "tools/validate/device.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <regex>

#include "tools/validate/fields.h"

namespace stepcast {
namespace {

// All needles stand in the lower-case name; the first line that fits decides, and where its device
// is not among those to choose from, a later one with the same needles. A device that is not
// shipped makes the row uncovered until its file is there.
struct Alias {
  std::array<std::string_view, 2> needles;
  std::string_view device;
  std::string_view assumed = "";
  bool same_links = true;  // false: only its kernels are the named device's
};
constexpr Alias kAliases[] = {
    {{"a100", "pcie"}, "a100-pcie-80gb"},
    {{"a800", "pcie"}, "a100-pcie-80gb", "gpu (an A800 computes as an A100)", false},
    {{"a800", "40g"}, "a100-40gb", "gpu (an A800 computes as an A100)", false},
    {{"a800", ""}, "a800-80gb"},
    {{"a800", ""}, "a100-80gb", "gpu (an A800 computes as an A100)", false},
    {{"h100", "pcie"}, "h100-pcie"},
    {{"h100", "96gb"}, "meta-h100-500w"},
    {{"h100", "nvlink"}, "h100-sxm"},
    {{"h100", "nvl"}, "h100-nvl"},
    {{"gh200", ""}, "gh200"},
    {{"gb200", ""}, "gb200"},
    {{"gb300", ""}, "gb300"},
    {{"b300", ""}, "b300"},
    {{"a100", "40g"}, "a100-40gb"},
    {{"a100", "80g"}, "a100-80gb"},
    {{"a100", ""}, "a100-80gb", "gpu (an A100 with 80 GB)"},
    {{"h100", "h200"}, "h100-sxm", "gpu (of H100 and H200, the H100)"},
    {{"h800", "pcie"}, "h100-pcie", "gpu (an H800 computes as an H100)", false},
    {{"h800", ""}, "h800-sxm"},
    {{"h800", ""}, "h100-sxm", "gpu (an H800 computes as an H100)", false},
    {{"h100", ""}, "h100-sxm"},
    {{"h200", ""}, "h200"},
    {{"h20", ""}, "h20"},
    {{"l40s", ""}, "l40s"},
    {{"b200", ""}, "b200"},
    {{"mi300x", ""}, "mi300x"},
    {{"mi325x", ""}, "mi325x"},
    {{"mi355x", ""}, "mi355x"},
    {{"v100", "sxm3"}, "v100-sxm3"},
    {{"v100", "dgx-2"}, "v100-sxm3"},
    {{"v100", "pcie"}, "v100-pcie"},
    {{"v100", ""}, "v100-sxm2"},
    {{"gaudi", "2"}, "gaudi-2"},
    {{"gaudi", "3"}, "gaudi-3"},
};

constexpr int kCardsMost = 1024;
constexpr int kGigabitsMost = 100'000;

std::optional<int> whole(const std::string& digits, int most) {
  int value = 0;
  const auto [end, trouble] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (trouble != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value >= 1 && value <= most ? std::optional(value) : std::nullopt;
}

Bandwidth gigabits(int value) { return Bandwidth(value * 1e9 / 8); }

// Of a port of four lanes, as every network card's is (InfiniBand Trade Association, roadmap).
std::optional<int> gigabits_of(char generation) {
  switch (generation) {
    case 'E': return 100;
    case 'H': return 200;
    case 'N': return 400;
    case 'X': return 800;
    default: return std::nullopt;
  }
}

}  // namespace

NamedDevice find_device(std::string_view gpu, const std::vector<Device>& devices) {
  const std::string name = lower(gpu);
  const auto called = [&](std::string_view wanted) -> const Device* {
    const auto device = std::find_if(devices.begin(), devices.end(),
                                     [&](const Device& d) { return d.name == wanted; });
    return device == devices.end() ? nullptr : &*device;
  };
  const auto first = std::find_if(std::begin(kAliases), std::end(kAliases), [&](const Alias& a) {
    return has(name, a.needles[0]) && has(name, a.needles[1]);
  });
  if (first == std::end(kAliases)) return {called(name), "", true};
  for (auto alias = first; alias != std::end(kAliases); ++alias) {
    if (alias->needles != first->needles) continue;
    const Device* device = called(alias->device);
    if (device != nullptr) return {device, std::string(alias->assumed), alias->same_links};
  }
  return {};
}

std::optional<NodeLink> read_link(std::string_view text, int cards, int devices) {
  static const std::regex counted(R"((\d+) ?x ?(?:([EHNX])DR(?: ?(\d+))?|(\d+) ?Gb/s))");
  static const std::regex rated(R"((\d+) ?Gb/s per (node|GPU))");
  const std::string head(text.substr(0, kTextMost));
  for (std::sregex_iterator it(head.begin(), head.end(), counted), end; it != end; ++it) {
    const auto count = whole((*it)[1], kCardsMost);
    const std::smatch& m = *it;
    const bool stated = m[3].matched || m[4].matched;
    const auto rate = stated ? whole(m[3].matched ? m[3] : m[4], kGigabitsMost)
                             : gigabits_of(*m[2].first);
    if (count && rate) return NodeLink{*count, gigabits(*rate)};
  }
  std::smatch found;
  if (!std::regex_search(head, found, rated)) return std::nullopt;
  const auto rate = whole(found[1], kGigabitsMost);
  if (!rate) return std::nullopt;
  if (found[2] == "GPU") return NodeLink{devices, gigabits(*rate)};
  return NodeLink{cards, gigabits(*rate) / cards};
}

}  // namespace stepcast

// List: the files under configs/, read by the same readers as a forecast, one row each. Linear in
// the files of the kind.
#include <algorithm>
#include <cstdio>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/model.h"
#include "sim/base/error.h"
#include "sim/hardware/hardware.h"
#include "sim/hardware/profile.h"
#include "tools/base/files.h"
#include "tools/commands/commands.h"
#include "tools/forecast/table.h"
#include "tools/whatif/devices.h"
#include "tools/whatif/framework.h"
#include "tools/whatif/references.h"

namespace stepcast {
namespace {

using Rows = std::vector<std::vector<std::string>>;

// What a kind looks like, for people and for programs.
struct Listing {
  Rows rows;          // the first is the head
  std::string left;   // of align()
  std::string words;  // on stderr: the rows stay data
  Json json = Json::array();
};

Document read_config(const std::string& kind, const std::string& name) {
  const std::string path = find_config(kind, name, "list");
  return parse_json(read_file(path), path);
}

std::string text_at(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

// Of a source, what fits beside the numbers.
std::string brief(const std::string& text) {
  constexpr std::size_t kColumns = 44;
  if (text.size() <= kColumns) return text;
  const std::size_t blank = text.rfind(' ', kColumns - 4);
  return text.substr(0, blank == std::string::npos ? kColumns - 4 : blank) + " ...";
}

Listing list_models() {
  Listing list{{{"model", "parameters", "layers", "hidden", "heads", "source"}}, "lrrrrl", "", {}};
  list.json = Json::array();
  std::vector<std::pair<std::int64_t, Model>> models;
  for (const std::string& name : config_names("models")) {
    const Document document = read_config("models", name);
    const Model model = read_model(Object(document), name);
    const std::string source = text_at(document.root, "source");
    const std::string heads = model.kv_heads == model.heads
                                  ? fmt::format("{}", model.heads)
                                  : fmt::format("{}/{}", model.heads, model.kv_heads);
    list.rows.push_back({name, format_count(static_cast<double>(parameters(model))),
                         fmt::format("{}", model.layers), fmt::format("{}", model.hidden), heads,
                         brief(source)});
    list.json.push_back({{"name", name},
                         {"parameters", parameters(model)},
                         {"layers", model.layers},
                         {"hidden", model.hidden},
                         {"heads", model.heads},
                         {"kv_heads", model.kv_heads},
                         {"source", source}});
  }
  list.words = "heads: query heads/key-value heads where the two differ";
  return list;
}

Listing list_devices() {
  Listing list{{{"device", "memory", "bandwidth", "bf16", "kernels", "sources", "description"}},
               "lrrrlrl",
               "",
               {}};
  list.json = Json::array();
  for (const std::string& name : config_names("devices")) {
    const Device device = read_device(read_config("devices", name));
    const auto bf16 = device.matrix_rate.find(Dtype::kBf16);
    const double rate = bf16 == device.matrix_rate.end() ? 0 : bf16->second.value;
    const std::vector<std::string> kernels = profiles_of(device);
    list.rows.push_back(
        {name, format_binary_bytes(device.memory),
         fmt::format("{:.0f} GB/s", device.memory_bandwidth.value * 1e-9),
         rate > 0 ? fmt::format("{:.0f} TFLOP/s", rate * 1e-12) : "-",
         kernels.empty() ? "-" : fmt::format("{}", fmt::join(kernels, ", ")),
         fmt::format("{}", device.sources.size()), device.description});
    list.json.push_back({{"name", name},
                         {"description", device.description},
                         {"memory_bytes", device.memory.count},
                         {"memory_bytes_per_second", device.memory_bandwidth.value},
                         {"bf16_flops_per_second", rate},
                         {"kernels", kernels},
                         {"sources", device.sources}});
  }
  list.words = "memory: as the framework reports it; bf16: dense peak of the matrix units; "
               "kernels: the profiles they are fitted in, another device's where the die is the "
               "same (-: data sheet); sources: of the file's numbers";
  return list;
}

Listing list_clusters() {
  Listing list{{{"cluster", "devices", "device", "nodes", "a node", "description"}},
               "lrlrrl",
               "",
               {}};
  list.json = Json::array();
  for (const std::string& name : config_names("clusters")) {
    const Json question{{"cluster", name}};
    const Document document = parse_json(question.dump(), "list");
    const Cluster cluster = find_cluster(Object(document), ".");
    const std::string description = text_at(read_config("clusters", name).root, "description");
    list.rows.push_back({name, fmt::format("{}", cluster.devices()), cluster.device.name,
                         fmt::format("{}", cluster.nodes),
                         fmt::format("{}", cluster.devices_per_node), description});
    list.json.push_back({{"name", name},
                         {"devices", cluster.devices()},
                         {"device", cluster.device.name},
                         {"nodes", cluster.nodes},
                         {"devices_per_node", cluster.devices_per_node},
                         {"description", description}});
  }
  list.words = "Standard boxes need no file: DEVICE-NODESxDEVICES, such as h100-sxm-128x8, for any "
               "of `stepcast list devices`.";
  return list;
}

// "0.03" as "3.0 %"; of one measurement nothing is known.
std::string spread_text(const Profile& profile) {
  double most = 0;
  int samples = 1;
  for (const WireCurve& curve : profile.wires) {
    most = std::max(most, curve.spread);
    samples = std::max(samples, curve.samples);
  }
  return samples > 1 ? fmt::format("{:.1f} %", 100 * most) : "-";
}

std::string percent_text(double share) { return fmt::format("{:+.1f} %", 100 * share); }

Json residuals_json(const Profile& profile) {
  Json residuals = Json::array();
  for (const Residual& r : profile.residuals) {
    residuals.push_back({{"rows", r.rows},
                         {"count", r.count},
                         {"median_absolute_error", r.median_absolute_error},
                         {"mean_absolute_error", r.mean_absolute_error},
                         {"p90_absolute_error", r.p90_absolute_error},
                         {"signed_bias", r.signed_bias},
                         {"left_out_median_absolute_error", r.left_out_median_absolute_error},
                         {"left_out_signed_bias", r.left_out_signed_bias}});
  }
  return residuals;
}

// One line for the curves of a profile, one for each group of rows that its kernels were fitted to.
void add_profile_rows(const std::string& name, const Profile& profile, Rows& rows) {
  const std::string basis(basis_name(profile.basis));
  if (!profile.wires.empty() || profile.residuals.empty()) {
    const bool curves = !profile.wires.empty();
    rows.push_back({name, profile.device, basis, curves ? "curves" : "kernels",
                    curves ? fmt::format("{}", profile.wires.size()) : "-", spread_text(profile),
                    "", "", ""});
  }
  for (const Residual& r : profile.residuals) {
    const bool left_out = r.left_out_count > 0;
    rows.push_back({name, profile.device, basis, r.rows, fmt::format("{}", r.count),
                    fmt::format("{:.1f} %", 100 * r.median_absolute_error),
                    percent_text(r.signed_bias),
                    left_out ? fmt::format("{:.1f} %", 100 * r.left_out_median_absolute_error)
                             : "-",
                    left_out ? percent_text(r.left_out_signed_bias) : "-"});
  }
}

Listing list_profiles() {
  Listing list{{{"profile", "device", "basis", "of", "count", "error", "bias", "unseen", "bias"}},
               "llllrrrrr",
               "",
               {}};
  list.json = Json::array();
  for (const std::string& name : config_names("profiles")) {
    const Profile profile = read_profile(read_config("profiles", name));
    Json curves = Json::array();
    for (const WireCurve& curve : profile.wires) {
      curves.push_back({{"collective", curve.collective},
                        {"ranks", curve.ranks},
                        {"nodes", curve.nodes},
                        {"points", curve.points.size()},
                        {"samples", curve.samples},
                        {"spread", curve.spread}});
    }
    add_profile_rows(name, profile, list.rows);
    list.json.push_back({{"name", name},
                         {"description", profile.description},
                         {"device", profile.device},
                         {"basis", basis_name(profile.basis)},
                         {"provenance", profile.provenance},
                         {"curves", std::move(curves)},
                         {"residuals", residuals_json(profile)}});
  }
  list.words =
      list.json.empty()
          ? "There are no profiles here: `stepcast import nccl-tests LOG --out PROFILE` makes one "
            "of a log, and a what-if takes it by its path."
          : "A profile that bears a device's name goes with that device. error: median |forecast / "
            "measured - 1| of the rows that it was fitted to (curves: spread of repetitions); "
            "unseen: of rows left out of the fit, a third at a time (-: too few rows)";
  return list;
}

Listing list_frameworks() {
  Listing list{{{"framework", "defaults", "description"}}, "lrl", "", {}};
  list.json = Json::array();
  for (const Framework& framework : read_frameworks()) {
    list.rows.push_back({framework.name, fmt::format("{}", framework.sources.size()),
                         framework.description});
    Json rules = Json::array();
    for (const FrameworkRule& rule : framework.rules) {
      Json is = Json::object();
      for (const auto& [path, value] : rule.is) is[path] = value;
      rules.push_back({{"is", std::move(is)}, {"set", rule.set}});
    }
    list.json.push_back({{"name", framework.name},
                         {"description", framework.description},
                         {"defaults", framework.defaults},
                         {"rules", std::move(rules)},
                         {"sources", framework.sources}});
  }
  list.words = "defaults: keys of a what-if that \"framework\": NAME fills in where they are not "
               "said";
  return list;
}

}  // namespace

int list_command(const std::string& kind, bool json) {
  const std::vector<std::string> kinds = {"models", "devices", "clusters", "profiles",
                                          "frameworks"};
  Listing list;
  if (kind == "models") {
    list = list_models();
  } else if (kind == "devices") {
    list = list_devices();
  } else if (kind == "clusters") {
    list = list_clusters();
  } else if (kind == "profiles") {
    list = list_profiles();
  } else if (kind == "frameworks") {
    list = list_frameworks();
  } else {
    throw Error("list", fmt::format("\"{}\" is nothing to list{}; there are {}", kind,
                                    did_you_mean(kind, kinds), fmt::join(kinds, ", ")));
  }
  if (json) {
    Json whole;
    whole[kind] = std::move(list.json);
    write_file("-", whole.dump(2) + "\n");
    return 0;
  }
  write_file("-", align(list.rows, list.left));
  fmt::print(stderr, "{}\n", list.words);
  return 0;
}

}  // namespace stepcast

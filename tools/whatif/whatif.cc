// A what-if is a document that refers to others: a model, a cluster, the cluster's device. Each is
// read with its own file's name, so that an error in a device file names the device file, not the
// what-if that led there. Relative paths start from the file that they stand in.
//
// `resolved` is written from what was read, not from the text: reading it again gives the same
// model, plan and cluster, hence the same text. The cost is that of the JSON: linear.
#include "tools/whatif/whatif.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "sim/base/error.h"
#include "tools/base/files.h"
#include "tools/whatif/devices.h"
#include "tools/whatif/framework.h"
#include "tools/whatif/machine.h"
#include "tools/whatif/software.h"

namespace stepcast {
namespace {

namespace fs = std::filesystem;

constexpr double kTokensMax = 1e18;  // a thousand times what anybody has trained on

bool is_path(std::string_view name) {
  return name.find('/') != std::string_view::npos || name.ends_with(".json");
}

std::string directory_of(const std::string& path) {
  const std::string directory = fs::path(path).parent_path().string();
  return directory.empty() ? "." : directory;
}

// A config of that kind, or a path from `base`. `place` is where it was named.
std::string named_file(const std::string& name, const std::string& kind, const std::string& base,
                       std::string_view place) {
  if (!is_path(name)) return find_config(kind, name, place);
  const fs::path path(name);
  const std::string found =
      path.is_absolute() || base == "." ? name : (fs::path(base) / path).string();
  std::error_code trouble;
  if (!fs::is_regular_file(found, trouble)) {
    throw Error(place, fmt::format("there is no file \"{}\"", found));
  }
  return found;
}

// The file that `key` of `object` names.
std::string referenced_file(const Object& object, std::string_view key, const std::string& kind,
                            const std::string& base) {
  return named_file(object.string(key), kind, base, object.place(key));
}

// ------------------------------------------------------------------------------------ the model

// "llama3.1-8b" of ".../llama3.1-8b.json"; Hugging Face calls every file config.json, and there the
// directory is what tells them apart.
std::string model_name_of(const std::string& file) {
  const fs::path path(file);
  if (path.stem() != "config") return path.stem().string();
  const std::string directory = fs::absolute(path).parent_path().filename().string();
  return directory.empty() ? "model" : directory;
}

Model find_model(const Object& root, const std::string& base) {
  if (!root.has("model")) root.fail("model", "\"model\" is missing: a name, a path or an object");
  if (root.at("model").is_object()) return read_model(root.object("model"), "model");
  const std::string file = referenced_file(root, "model", "models", base);
  const Document document = parse_json(read_file(file), file);
  return read_model(Object(document), model_name_of(file));
}

// ---------------------------------------------------------------------------------- the cluster

// A cluster, and by which name or path its device is found again.
struct FoundCluster {
  Cluster cluster;
  std::string device;
};

// What `key` of `object` names. A path is kept absolute: it must be found again from anywhere.
FoundCluster read_cluster_object(const Object& object, const std::string& base,
                                 const Profile* profile) {
  const std::string file = referenced_file(object, "device", "devices", base);
  const std::string name = object.string("device");
  Cluster cluster = read_cluster(object, load_device(file, profile));
  return {std::move(cluster), is_path(name) ? fs::absolute(file).string() : name};
}

// Whether `name` stands for standard boxes; if so, which.
bool names_standard_boxes(const std::string& name, std::string& device, int& nodes,
                          int& devices_per_node) {
  if (is_path(name) || !split_cluster_name(name, device, nodes, devices_per_node)) return false;
  // A file may bear such a name as well ("aws-p4d-16x8"): it says more, so it goes first.
  const std::vector<std::string> files = config_names("clusters");
  return std::find(files.begin(), files.end(), name) == files.end();
}

FoundCluster read_cluster_name(const Object& root, const std::string& base,
                               const Profile* profile) {
  const std::string name = root.string("cluster");
  std::string device;
  int nodes = 0, devices_per_node = 0;
  if (names_standard_boxes(name, device, nodes, devices_per_node)) {
      const std::string file = find_config("devices", device, root.place("cluster"));
      try {
        return {standard_cluster(load_device(file, profile), nodes, devices_per_node), device};
      } catch (const Error& error) {
        if (error.where().starts_with(file)) throw;
        root.fail("cluster", error.message());
      }
  }
  const std::string file = referenced_file(root, "cluster", "clusters", base);
  const Document document = parse_json(read_file(file), file);
  return read_cluster_object(Object(document), directory_of(file), profile);
}

// Writes out a cluster that is given by its name, so that --set cluster.KEY can change it.
void write_out_cluster(Document& document, const std::string& base) {
  if (!document.root.is_object() || !document.root.contains("cluster")) return;
  Json& cluster = document.root["cluster"];
  if (!cluster.is_string()) return;
  const std::string name = cluster.get<std::string>();
  std::string device;
  int nodes = 0, devices_per_node = 0;
  if (names_standard_boxes(name, device, nodes, devices_per_node)) {
    cluster = Json{{"device", device}, {"nodes", nodes}, {"devices_per_node", devices_per_node}};
    return;
  }
  const std::string file = referenced_file(Object(document), "cluster", "clusters", base);
  Json written = parse_json(read_file(file), file).root;
  if (!written.is_object()) return;  // the reader says so, with the file's name
  if (const auto at = written.find("device"); at != written.end() && at->is_string()) {
    const std::string path = at->get<std::string>();
    if (is_path(path)) *at = fs::absolute(fs::path(directory_of(file)) / path).string();
  }
  cluster = std::move(written);
}

FoundCluster found_cluster(const Object& root, const std::string& base, const Profile* profile) {
  if (!root.has("cluster")) {
    root.fail("cluster", "\"cluster\" is missing: a name such as \"h100-sxm-4x8\", a path or an "
                         "object with \"device\"");
  }
  if (root.at("cluster").is_object()) {
    return read_cluster_object(root.object("cluster"), base, profile);
  }
  return read_cluster_name(root, base, profile);
}

// --------------------------------------------------------------------------------- the profile

// A profile, and as it is written in the resolved file: a path is kept absolute, none is null.
struct FoundProfile {
  std::shared_ptr<const Profile> profile;
  Json name;
  Basis basis = Basis::kMeasured;  // how what was timed in it counts
};

// What was timed on another machine is no measurement of this one, but may be asked for as the next
// best thing.
std::shared_ptr<const Profile> as_asked(const Object& root, std::shared_ptr<const Profile> profile,
                                        Basis basis) {
  if (profile->basis != Basis::kMeasured) return profile;
  if (basis == Basis::kInterpolated) {
    Profile other = *profile;
    other.basis = basis;
    return std::make_shared<const Profile>(std::move(other));
  }
  const std::string difference = machine_difference(*profile, machine_texts());
  if (difference.empty()) return profile;
  root.fail("profile", fmt::format("{} was measured on another machine: {}; measure this one with "
                                   "`stepcast calibrate`, or take its times with "
                                   "\"profile_basis\": \"interpolated\"",
                                   profile->name, difference));
}

FoundProfile found_profile(const Object& root, const std::string& base) {
  root.touch("profile");
  const Basis basis =
      root.word("profile_basis", Basis::kMeasured,
                {{std::string(basis_name(Basis::kMeasured)), Basis::kMeasured},
                 {std::string(basis_name(Basis::kInterpolated)), Basis::kInterpolated}});
  if (!root.has("profile")) return {nullptr, Json(), basis};
  const std::string name = root.string("profile"), place = root.place("profile");
  const Json kept = is_path(name)
                        ? fs::absolute(named_file(name, "profiles", base, place)).string()
                        : name;
  return {as_asked(root, find_profile(name, place, base), basis), kept, basis};
}

// What is not known is null, which reads as the device's: not known either.
Json known_bandwidth(Bandwidth bandwidth) {
  return bandwidth.value > 0 ? Json(exact_bandwidth(bandwidth)) : Json();
}

Json write_box(const Box& box) {
  return Json{{"links", box_links_name(box.links)},
              {"peer_to_peer", box.peer_to_peer},
              {"sockets", box.sockets},
              {"pcie_switches", box.pcie_switches},
              {"pcie_bandwidth", known_bandwidth(box.pcie_bandwidth)},
              {"pcie_efficiency", 1.0},
              {"socket_bandwidth", known_bandwidth(box.socket_bandwidth)},
              {"host_bandwidth", known_bandwidth(box.host_bandwidth)},
              {"cores", box.cores}};
}

// Makes the implementation that the what-if names the usual one. Its name, or null. What only the
// framework says (`asked`: the user does) holds where the device has such a kernel.
Json choose_attention(const Object& root, bool asked, Device& device) {
  root.touch("attention_kernel");
  if (!root.has("attention_kernel")) return Json();
  const std::string name = root.string("attention_kernel");
  if (!device.kernels.attention.contains(name)) {
    if (!asked) return Json();
    std::vector<std::string> known;
    for (const auto& [kernel, numbers] : device.kernels.attention) known.push_back(kernel);
    root.fail("attention_kernel",
              fmt::format("{} has no kernel \"{}\"{}; there are {}", device.name, name,
                          did_you_mean(name, known), fmt::join(known, ", ")));
  }
  device.kernels.usual_attention = name;
  return name;
}

// -------------------------------------------------------------------------------- the framework

// The document with the defaults of the framework that it names, or as it is. A path is kept
// absolute.
Document filled_in(const Document& document, const std::string& base) {
  const Object root(document);
  root.touch("framework");
  if (!root.has("framework")) return document;
  const std::string name = root.string("framework"), place = root.place("framework");
  const std::string file = named_file(name, "frameworks", base, place);
  Document filled = document;
  fill_in(find_framework(file, place), filled.root);
  if (is_path(name)) filled.root["framework"] = fs::absolute(file).string();
  return filled;
}

// Bandwidths are written as they are achieved, so the efficiencies are 1.
Json write_cluster(const FoundCluster& found) {
  const Cluster& cluster = found.cluster;
  Json slow = Json::array();
  for (const auto& [device, factor] : cluster.slow_devices) {
    slow.push_back({{"device", device}, {"factor", factor}});
  }
  Json links = Json::array();
  for (const SlowLink& link : cluster.slow_links) {
    links.push_back({{"from", link.from}, {"to", link.to}, {"speed", link.speed}});
  }
  return Json{{"name", cluster.name},
              {"device", found.device},
              {"nodes", cluster.nodes},
              {"devices_per_node", cluster.devices_per_node},
              {"fabric",
               {{"node_bandwidth", exact_bandwidth(cluster.node_bandwidth)},
                {"node_bandwidth_efficiency", 1.0},
                {"node_latency", exact_seconds(cluster.node_latency)},
                {"nics_per_node", cluster.nics_per_node},
                {"nic_bandwidth", exact_bandwidth(cluster.nic_bandwidth)},
                {"nic_efficiency", 1.0},
                {"nic_latency", exact_seconds(cluster.nic_latency)},
                {"rails", cluster.rails},
                {"nodes_per_leaf", cluster.nodes_per_leaf},
                {"oversubscription", cluster.oversubscription},
                {"spines", cluster.spines}}},
              {"box", write_box(cluster.box)},
              {"slow_devices", std::move(slow)},
              {"slow_links", std::move(links)}};
}

// --------------------------------------------------------------------- what is expected and asked

// "<= 12 s" without its sign.
std::string limit_text(const Object& expect, std::string_view key, std::string_view example) {
  const std::string text = expect.string(key);
  if (!text.starts_with("<=")) {
    expect.fail(key, fmt::format("must be an upper limit, such as \"<= {}\", is \"{}\"", example,
                                 text));
  }
  const std::size_t start = text.find_first_not_of(' ', 2);
  return start == std::string::npos ? "" : text.substr(start);
}

void read_expect(const Object& root, WhatIf& what_if) {
  const Object expect = root.object("expect");
  expect.touch("step_time");
  expect.touch("peak_memory");
  expect.done();
  if (expect.has("step_time")) {
    what_if.expect_step_time =
        parse_seconds(limit_text(expect, "step_time", "12 s"), expect.place("step_time"));
  }
  if (expect.has("peak_memory")) {
    what_if.expect_peak_memory =
        parse_bytes(limit_text(expect, "peak_memory", "76 GiB"), expect.place("peak_memory"));
  }
}

// "15T", "300 B", "1.5e12".
double parse_tokens(const Object& train) {
  const Json& value = train.at("tokens");
  double tokens = 0;
  if (value.is_number()) {
    tokens = value.get<double>();
  } else if (!value.is_string()) {
    train.fail("tokens", "must be a count, such as 300000000000 or \"300B\"");
  } else {
    const std::string text = train.string("tokens");
    const auto [stop, trouble] = std::from_chars(text.data(), text.data() + text.size(), tokens);
    std::string_view suffix(stop, static_cast<std::size_t>(text.data() + text.size() - stop));
    while (!suffix.empty() && suffix[0] == ' ') suffix.remove_prefix(1);
    constexpr std::array<std::pair<std::string_view, double>, 5> kSuffixes = {
        {{"", 1}, {"k", 1e3}, {"M", 1e6}, {"B", 1e9}, {"T", 1e12}}};
    const auto* found = std::find_if(kSuffixes.begin(), kSuffixes.end(),
                                     [&](const auto& row) { return row.first == suffix; });
    if (trouble != std::errc() || found == kSuffixes.end()) {
      train.fail("tokens", fmt::format("must be a count, such as \"300B\" or \"15T\" (k, M, B, T), "
                                       "is \"{}\"", text));
    }
    tokens *= found->second;
  }
  if (!(tokens >= 1 && tokens <= kTokensMax)) {
    train.fail("tokens", fmt::format("must be from 1 to {:g}, is {:g}", kTokensMax, tokens));
  }
  return std::round(tokens);
}

void read_train(const Object& root, WhatIf& what_if) {
  const Object train = root.object("train");
  train.touch("tokens");
  train.done();
  if (train.has("tokens")) what_if.tokens = parse_tokens(train);
}

Json resolve(const WhatIf& what_if, const FoundCluster& cluster, const FoundProfile& profile,
             const Object& root) {
  Json json{{"name", what_if.name},
            {"framework", root.has("framework") ? root.at("framework") : Json()},
            {"model", write_model(what_if.model)},
            {"cluster", write_cluster(cluster)},
            {"profile", profile.name},
            {"profile_basis", basis_name(profile.basis)}};
  const Json plan = write_plan(what_if.plan);
  for (const auto& [key, value] : plan.items()) json[key] = value;
  const Json software = write_software(what_if.cluster.device);
  for (const auto& [key, value] : software.items()) json[key].update(value);  // "host" is both's

  // What was not asked is null, which reads as absent.
  const Object expect = root.object("expect");
  json["expect"] = Json::object();
  for (const char* key : {"step_time", "peak_memory"}) {
    json["expect"][key] = expect.has(key) ? expect.at(key) : Json();
  }
  json["train"] = Json::object();
  json["train"]["tokens"] =
      what_if.tokens > 0 ? Json(static_cast<std::int64_t>(what_if.tokens)) : Json();
  return json;
}

}  // namespace

Cluster find_cluster(const Object& what_if, const std::string& base) {
  return found_cluster(what_if, base, nullptr).cluster;
}

std::shared_ptr<const Profile> find_profile(const std::string& name, std::string_view place,
                                            const std::string& base) {
  const std::string file = named_file(name, "profiles", base, place);
  return std::make_shared<const Profile>(read_profile(parse_json(read_file(file), file)));
}

WhatIf read_what_if(const Document& given, const std::string& base) {
  const Document document = filled_in(given, base);
  const Object root(document);
  // All keys first: a misspelt section is the cause of what else would look wrong.
  for (const char* key : {"name",      "framework",        "model",         "cluster",
                          "profile",   "profile_basis",    "batch",         "parallel",
                          "sharding",  "recompute",        "precision",     "vocabulary_multiple",
                          "attention", "attention_kernel", "softmax",       "loss",
                          "dropout",   "dropout_rate",     "fusion",        "clip_gradients",
                          "host",      "allocator",        "deterministic", "filled",
                          "buffers",   "expect",           "train"}) {
    root.touch(key);
  }
  root.done();

  WhatIf what_if;
  what_if.model = find_model(root, base);
  FoundProfile profile = found_profile(root, base);
  FoundCluster cluster = found_cluster(root, base, profile.profile.get());
  if (profile.profile) use_profile(cluster.cluster, profile.profile, root.place("profile"));
  const bool asked = Object(given).has("attention_kernel");
  Json kernel = choose_attention(root, asked, cluster.cluster.device);
  read_software(root, profile.profile.get(), cluster.cluster.device);
  what_if.cluster = cluster.cluster;
  what_if.name =
      root.string("name", fmt::format("{} on {}", what_if.model.name, what_if.cluster.name));
  // It is printed as it is: nothing in it may move a terminal.
  for (const char c : what_if.name) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      root.fail("name", "must not contain control characters");
    }
  }
  read_expect(root, what_if);
  read_train(root, what_if);
  what_if.plan = read_plan(root, what_if.model, what_if.cluster.devices());  // checks it, too
  suit_device(root, what_if.plan, what_if.cluster.device);
  what_if.resolved = resolve(what_if, cluster, profile, root);
  what_if.resolved["attention_kernel"] = std::move(kernel);
  return what_if;
}

WhatIf read_what_if(const std::string& path, const std::vector<std::string>& sets) {
  const std::string file = path == "-" ? "stdin" : path;
  Document document = parse_json(read_file(path), file);
  const std::string base = path == "-" ? "." : directory_of(path);
  for (const std::string& set : sets) {
    if (set.starts_with("cluster.")) write_out_cluster(document, base);
    const std::size_t equals = set.find('=');
    if (equals == std::string::npos) {
      throw Error("--set " + set, "write path=value: --set parallel.tensor=4");
    }
    set_value(document, std::string_view(set).substr(0, equals),
              std::string_view(set).substr(equals + 1));
  }
  return read_what_if(document, base);
}

}  // namespace stepcast

// A what-if is a document that refers to others (references.h), and says the rest itself.
//
// `resolved` is written from what was read, not from the text: reading it again gives the same
// model, plan and cluster, hence the same text. The cost is that of the JSON: linear.
#include "tools/whatif/whatif.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "sim/base/error.h"
#include "tools/base/files.h"
#include "tools/whatif/references.h"
#include "tools/whatif/software.h"

namespace stepcast {
namespace {

constexpr double kTokensMax = 1e18;  // a thousand times what anybody has trained on

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

// What the plan has no part in.
void read_common(const Object& root, WhatIf& what_if) {
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
}

// REQUIRES: the document has these references.
WhatIf read_rest(Document document, const References& references) {
  const bool asked = Object(document).has("attention_kernel");
  fill_in(references.framework, document);
  const Object root(document);
  check_keys(root);
  WhatIf what_if;
  what_if.model = references.model;
  what_if.cluster = references.cluster.cluster;
  Json kernel = choose_attention(root, asked, what_if.cluster.device);
  read_software(root, references.profile.profile.get(), what_if.cluster.device);
  read_common(root, what_if);
  what_if.plan = read_plan(root, what_if.model, what_if.cluster.devices());  // checks it, too
  suit_device(root, what_if.model, what_if.plan, what_if.cluster.device);
  what_if.resolved = resolve(what_if, references.cluster, references.profile, root);
  what_if.resolved["attention_kernel"] = std::move(kernel);
  return what_if;
}

// As --set does.
void set_values(Document& document, const std::string& base, const std::vector<std::string>& sets) {
  for (const std::string& set : sets) {
    if (set.starts_with("cluster.")) write_out_cluster(document, base);
    const std::size_t equals = set.find('=');
    if (equals == std::string::npos) {
      throw Error("--set " + set, "write path=value: --set parallel.tensor=4");
    }
    set_value(document, std::string_view(set).substr(0, equals),
              std::string_view(set).substr(equals + 1));
  }
}

std::string base_of(const std::string& path) { return path == "-" ? "." : directory_of(path); }

Document read_document(const std::string& path, const std::vector<std::string>& sets) {
  Document document = parse_json(read_file(path), path == "-" ? "stdin" : path);
  set_values(document, base_of(path), sets);
  return document;
}

}  // namespace

WhatIf read_what_if(const Document& document, const std::string& base) {
  return read_rest(document, read_references(document, base));
}

WhatIf read_what_if(const std::string& path, const std::vector<std::string>& sets) {
  return read_what_if(read_document(path, sets), base_of(path));
}

WhatIfFile::WhatIfFile(Document document, std::string base)
    : document_(std::move(document)),
      base_(std::move(base)),
      references_(std::make_shared<const References>(read_references(document_, base_))) {
  common_.model = references_->model;
  common_.cluster = references_->cluster.cluster;
  const Object root(document_);
  read_common(root, common_);
  // No plan could be written into what is no object.
  for (const char* section : {"batch", "parallel", "sharding"}) root.object(section);
}

WhatIfFile::WhatIfFile(const std::string& path, const std::vector<std::string>& sets)
    : WhatIfFile(read_document(path, sets), base_of(path)) {}

WhatIf WhatIfFile::with(const std::vector<std::string>& sets) const {
  Document document = document_;
  set_values(document, base_, sets);
  if (refers_to(document, *references_)) return read_rest(std::move(document), *references_);
  return read_what_if(document, base_);
}

WhatIfFile WhatIfFile::changed(const std::vector<std::string>& sets) const {
  Document document = document_;
  set_values(document, base_, sets);
  return WhatIfFile(std::move(document), base_);
}

Json WhatIfFile::filled_in() const {
  Document document = document_;
  fill_in(references_->framework, document);
  return std::move(document.root);
}

}  // namespace stepcast

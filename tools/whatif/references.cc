// Names and paths, each read with its own file's name, so that an error in a device file names the
// device file, not the what-if that led there. Relative paths start from the file that they stand
// in. Cost: that of the JSON.
#include "tools/whatif/references.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/base/error.h"
#include "tools/base/files.h"
#include "tools/whatif/devices.h"
#include "tools/whatif/machine.h"

namespace stepcast {
namespace {

namespace fs = std::filesystem;

constexpr std::array kReferences = {"framework", "model", "profile", "profile_basis", "cluster"};
static_assert(kReferences.size() == std::tuple_size_v<decltype(References::keys)>);

bool is_path(std::string_view name) {
  return name.find('/') != std::string_view::npos || name.ends_with(".json");
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
    const Device loaded = load_device(file, profile);  // its errors name a file already
    try {
      return {standard_cluster(loaded, nodes, devices_per_node), device};
    } catch (const Error& error) {
      if (error.where().starts_with(file)) throw;
      root.fail("cluster", error.message());
    }
  }
  const std::string file = referenced_file(root, "cluster", "clusters", base);
  const Document document = parse_json(read_file(file), file);
  return read_cluster_object(Object(document), directory_of(file), profile);
}

FoundCluster found_cluster(const Object& root, const std::string& base, const Profile* profile) {
  if (!root.has("cluster")) {
    root.fail("cluster",
              "\"cluster\" is missing: a name such as \"h100-sxm-4x8\", a path or an "
              "object with \"device\"");
  }
  if (root.at("cluster").is_object()) {
    return read_cluster_object(root.object("cluster"), base, profile);
  }
  return read_cluster_name(root, base, profile);
}

// --------------------------------------------------------------------------------- the profile

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
  const Json kept =
      is_path(name) ? fs::absolute(named_file(name, "profiles", base, place)).string() : name;
  return {as_asked(root, find_profile(name, place, base), basis), kept, basis};
}

// -------------------------------------------------------------------------------- the framework

std::optional<FoundFramework> found_framework(const Object& root, const std::string& base) {
  root.touch("framework");
  if (!root.has("framework")) return std::nullopt;
  const std::string name = root.string("framework"), place = root.place("framework");
  const std::string file = named_file(name, "frameworks", base, place);
  return FoundFramework{find_framework(file, place),
                        is_path(name) ? fs::absolute(file).string() : name};
}

}  // namespace

std::string directory_of(const std::string& path) {
  const std::string directory = fs::path(path).parent_path().string();
  return directory.empty() ? "." : directory;
}

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

void fill_in(const std::optional<FoundFramework>& found, Document& document) {
  if (!found) return;
  fill_in(found->framework, document.root);
  document.root["framework"] = found->name;
}

References read_references(const Document& given, const std::string& base) {
  References found;
  found.framework = found_framework(Object(given), base);
  Document document = given;
  fill_in(found.framework, document);
  const Object root(document);
  check_keys(root);
  for (std::size_t i = 0; i < kReferences.size(); ++i) {
    const auto at = given.root.find(kReferences[i]);
    if (at != given.root.end()) found.keys[i] = *at;
  }
  found.model = find_model(root, base);
  found.profile = found_profile(root, base);
  const std::shared_ptr<const Profile>& profile = found.profile.profile;
  found.cluster = found_cluster(root, base, profile.get());
  if (profile) use_profile(found.cluster.cluster, profile, root.place("profile"));
  return found;
}

bool refers_to(const Document& document, const References& references) {
  for (std::size_t i = 0; i < kReferences.size(); ++i) {
    const auto at = document.root.find(kReferences[i]);
    if ((at == document.root.end() ? Json() : *at) != references.keys[i]) return false;
  }
  return true;
}

void check_keys(const Object& root) {
  for (const char* key : {"name",
                          "framework",
                          "model",
                          "cluster",
                          "profile",
                          "profile_basis",
                          "batch",
                          "parallel",
                          "sharding",
                          "recompute",
                          "recompute_early_stop",
                          "precision",
                          "vocabulary_multiple",
                          "capacity_factor",
                          "fused_qkv",
                          "fused_gate_up",
                          "attention",
                          "attention_kernel",
                          "softmax",
                          "loss",
                          "dropout",
                          "dropout_rate",
                          "fusion",
                          "clip_gradients",
                          "scan_layers",
                          "host",
                          "allocator",
                          "filled",
                          "deterministic",
                          "buffers",
                          "expect",
                          "train"}) {
    root.touch(key);
  }
  root.done();
}

Cluster find_cluster(const Object& what_if, const std::string& base) {
  return found_cluster(what_if, base, nullptr).cluster;
}

std::shared_ptr<const Profile> find_profile(const std::string& name, std::string_view place,
                                            const std::string& base) {
  const std::string file = named_file(name, "profiles", base, place);
  return std::make_shared<const Profile>(read_profile(parse_json(read_file(file), file)));
}

}  // namespace stepcast

// References: what a what-if names by a name or a path, found and read: its framework, model,
// profile and cluster. Internal to the reader of what-ifs, but for find_cluster() and
// find_profile().
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "models/model.h"
#include "sim/base/json.h"
#include "sim/hardware/hardware.h"
#include "sim/hardware/profile.h"
#include "tools/whatif/framework.h"

namespace stepcast {

// A framework, and as it is written in the resolved file: a path is kept absolute.
struct FoundFramework {
  Framework framework;
  Json name;
};

// A cluster, and by which name or path its device is found again.
struct FoundCluster {
  Cluster cluster;
  std::string device;
};

// A profile, and as it is written in the resolved file: a path is kept absolute, none is null.
struct FoundProfile {
  std::shared_ptr<const Profile> profile;
  Json name;
  Basis basis = Basis::kMeasured;  // how what was timed in it counts
};

struct References {
  std::array<Json, 5> keys;  // those that say what follows; null where there is none
  std::optional<FoundFramework> framework;
  Model model;
  FoundProfile profile;
  FoundCluster cluster;  // with the profile in it
};

// Throws Error, for a key that no what-if has, too: that may be why another one is missing.
References read_references(const Document& document, const std::string& base);

// Whether these are the references of that document, too.
bool refers_to(const Document& document, const References& references);

// Throws Error for a key that no what-if has.
void check_keys(const Object& root);

// Adds what the framework does without being told, if there is one.
void fill_in(const std::optional<FoundFramework>& found, Document& document);

// Writes out a cluster that is given by its name, so that --set cluster.KEY can change it.
void write_out_cluster(Document& document, const std::string& base);

std::string directory_of(const std::string& path);

// A cluster by name ("h100-sxm-128x8", a file under configs/clusters, a path) or object.
Cluster find_cluster(const Object& what_if, const std::string& base);

// A profile by name (a file under configs/profiles) or path, relative to `base`. `place` is where
// it was named. Throws Error.
std::shared_ptr<const Profile> find_profile(const std::string& name, std::string_view place,
                                            const std::string& base);

}  // namespace stepcast

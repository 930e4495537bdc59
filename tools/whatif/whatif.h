// What-if: the file a person writes, read into a model, a plan and a cluster, with everything it
// left out filled in.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/model.h"
#include "models/plan.h"
#include "sim/base/json.h"
#include "sim/hardware/hardware.h"
#include "sim/hardware/profile.h"

namespace stepcast {

struct WhatIf {
  std::string name;
  Model model;
  Cluster cluster;                          // with its profile, if one is named
  Plan plan;
  std::optional<Seconds> expect_step_time;  // upper limits, "<= 12 s"
  std::optional<Bytes> expect_peak_memory;
  double tokens = 0;                        // "train": {"tokens": "15T"}; 0: not asked
  Json resolved;                            // every key with its value; reads back to the same
};

// `sets` are "path=value" as given to --set, in order. Throws Error.
WhatIf read_what_if(const std::string& path, const std::vector<std::string>& sets);

// The same from a parsed document: `base` is the directory that relative paths start from.
WhatIf read_what_if(const Document& document, const std::string& base);

// A cluster by name ("h100-sxm-128x8", a file under configs/clusters, a path) or object.
Cluster find_cluster(const Object& what_if, const std::string& base);

// A profile by name (a file under configs/profiles) or path, relative to `base`. `place` is where
// it was named. Throws Error.
std::shared_ptr<const Profile> find_profile(const std::string& name, std::string_view place,
                                            const std::string& base);

}  // namespace stepcast

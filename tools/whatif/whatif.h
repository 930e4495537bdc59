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

struct References;  // what it names by name or path (references.h)

// A what-if that is asked again and again with other plans: its files (model, cluster, device,
// profile, framework) are read once, and again only for a change that concerns them. Any number of
// threads may ask.
class WhatIfFile {
 public:
  // As read_what_if(). Throws Error for the files, the keys that name them, common(), and a section
  // of the plan that is no object.
  WhatIfFile(const std::string& path, const std::vector<std::string>& sets);
  explicit WhatIfFile(Document document, std::string base = ".");

  // As read_what_if(), given these changes in the end. Throws Error.
  WhatIf with(const std::vector<std::string>& sets = {}) const;
  WhatIfFile changed(const std::vector<std::string>& sets) const;

  // As it was written, and with its framework's defaults.
  const Json& written() const { return document_.root; }
  Json filled_in() const;
  // All but the plan, `resolved`, and what the software makes of the device.
  const WhatIf& common() const { return common_; }

 private:
  Document document_;
  std::string base_;
  std::shared_ptr<const References> references_;
  WhatIf common_;
};

}  // namespace stepcast

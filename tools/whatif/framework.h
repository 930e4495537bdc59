// Framework: what a training framework does without being told, as defaults of a what-if.
//
// Two frameworks that are given the same layout still differ: in what they fuse, in which type they
// keep gradients, in what they overlap, in how long their host takes to issue a kernel. Such facts
// stand in configs/frameworks/NAME.json, each with its source:
//
//   {"name": "megatron-lm-2021", "description": "...",
//    "published_as": ["megatron-lm"], "until": "2021-10",
//    "defaults": {"attention": "unfused", "parallel": {"tensor_overlap": false}},
//    "rules": [{"is": {"precision.compute": "fp16"},
//               "set": {"precision": {"gradient_copy": "fp32"}}}],
//    "sources": {"attention": "...", "parallel.tensor_overlap": "..."}}
//
// `defaults` and `set` are parts of a what-if. How fast a device is belongs to its profile, and so
// does every number that was fitted.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/base/json.h"

namespace stepcast {

struct FrameworkRule {
  std::vector<std::pair<std::string, Json>> is;  // dotted path -> the value that it must have
  Json set;
};

struct Framework {
  std::string name;
  std::string description;
  // Published rows call it by a name that has one of these in it, in lower case, and are older than
  // the month `until` ("2021-10"; "": still so).
  std::vector<std::string> published_as;
  std::string until;
  // Groups of published runs that numbers of it (host times) were fitted to.
  std::vector<std::string> fitted_to;
  Json defaults = Json::object();
  std::vector<FrameworkRule> rules;            // in order; each sees what those before have set
  std::map<std::string, std::string> sources;  // dotted path -> where the fact comes from
};

// Throws Error for an unknown key, a rule without condition or effect, a month of another form, a
// default or an effect without a source, a source of nothing.
Framework read_framework(const Document& document);

// All shipped ones, by name. Throws Error.
std::vector<Framework> read_frameworks();

// By name (`stepcast list frameworks`) or path; `place` is where it was named. Throws Error.
Framework find_framework(const std::string& name, std::string_view place);

// The one that a published row means: the longest name in `published`, then the first that is not
// yet over in the month `date` ("2022-05"; "": today). nullptr if none is known.
const Framework* published_framework(const std::vector<Framework>& all, std::string_view published,
                                     std::string_view date);

// Adds to `what_if` (the root of a what-if) every default that it does not say itself, then those
// of the rules that hold. A key that is null counts as not said. Where a rule asks for
// "precision.compute" or "parallel.schedule" and nobody has said it, it is what it then is: bf16;
// interleaved with virtual stages, else 1f1b.
void fill_in(const Framework& framework, Json& what_if);

// The value at a dotted path; nullptr where there is none, or null.
const Json* value_at(const Json& root, std::string_view path);

}  // namespace stepcast

// Defaults are merged key by key, depth first: an object meets an object, anything else is taken
// whole (a list of recompute modules is one value). Linear in the text.
#include "tools/whatif/framework.h"

#include <algorithm>

#include <fmt/format.h>

#include "sim/base/error.h"
#include "tools/base/files.h"
#include "tools/base/text.h"

namespace stepcast {
namespace {

// "2021-10".
bool is_month(std::string_view text) {
  if (text.size() != 7 || text[4] != '-') return false;
  for (const std::size_t at : {0U, 1U, 2U, 3U, 5U, 6U}) {
    if (std::isdigit(static_cast<unsigned char>(text[at])) == 0) return false;
  }
  return true;
}

// The dotted paths of all values that are no objects.
void list_paths(const Json& json, const std::string& prefix, std::vector<std::string>& paths) {
  for (const auto& [key, value] : json.items()) {
    const std::string path = prefix.empty() ? key : prefix + "." + key;
    if (value.is_object()) {
      list_paths(value, path, paths);
    } else {
      paths.push_back(path);
    }
  }
}

void merge_missing(const Json& defaults, Json& into) {
  for (const auto& [key, value] : defaults.items()) {
    const auto found = into.find(key);
    if (found == into.end()) {
      into[key] = value;
    } else if (found->is_null()) {
      *found = value;
    } else if (value.is_object() && found->is_object()) {
      merge_missing(value, *found);
    }
  }
}

// What stands there once the what-if is read, for the two keys that rules ask for.
Json effective(const Json& what_if, const std::string& path) {
  if (const Json* said = value_at(what_if, path)) return *said;
  if (path == "precision.compute") return "bf16";
  if (path != "parallel.schedule") return {};
  const Json* chunks = value_at(what_if, "parallel.virtual_stages");
  return chunks != nullptr && chunks->is_number() && *chunks > 1 ? "interleaved" : "1f1b";
}

void put(Json& root, std::string_view path, const Json& value) {
  const std::size_t dot = path.find('.');
  const std::string key(path.substr(0, dot));
  if (dot == std::string_view::npos) {
    root[key] = value;
    return;
  }
  if (!root[key].is_object()) root[key] = Json::object();
  put(root[key], path.substr(dot + 1), value);
}

Json part_of_what_if(const Object& object, std::string_view key) {
  object.touch(key);
  if (!object.has(key)) return Json::object();
  if (!object.at(key).is_object()) object.fail(key, "must be an object: a part of a what-if");
  return object.at(key);
}

FrameworkRule read_rule(const Object& object) {
  FrameworkRule rule;
  const Json is = part_of_what_if(object, "is");
  for (const auto& [path, value] : is.items()) {
    rule.is.emplace_back(path, value);
  }
  rule.set = part_of_what_if(object, "set");
  object.done();
  if (rule.is.empty()) object.fail("is", "a rule needs a condition");
  if (rule.set.empty()) object.fail("set", "a rule needs something to set");
  return rule;
}

void check_sources(const Object& object, const Framework& framework) {
  std::vector<std::string> paths;
  list_paths(framework.defaults, "", paths);
  for (const FrameworkRule& rule : framework.rules) list_paths(rule.set, "", paths);
  for (const std::string& path : paths) {
    if (!framework.sources.contains(path)) {
      object.fail("sources", fmt::format("nothing says where {} comes from", path));
    }
  }
  for (const auto& [path, source] : framework.sources) {
    if (std::find(paths.begin(), paths.end(), path) == paths.end()) {
      object.fail("sources", fmt::format("{} is not set here", path));
    }
    if (source.empty()) object.fail("sources", fmt::format("{} has an empty source", path));
  }
}

std::vector<std::string> string_list(const Object& object, std::string_view key) {
  std::vector<std::string> list;
  object.array_size(key);  // throws for what is no array
  if (!object.has(key)) return list;
  for (const Json& element : object.at(key)) {
    if (!element.is_string() || element.get<std::string>().empty()) {
      object.fail(key, "must list words");
    }
    list.push_back(element.get<std::string>());
  }
  return list;
}

}  // namespace

const Json* value_at(const Json& root, std::string_view path) {
  const Json* at = &root;
  while (true) {
    if (!at->is_object()) return nullptr;
    const std::size_t dot = path.find('.');
    const auto found = at->find(std::string(path.substr(0, dot)));
    if (found == at->end() || found->is_null()) return nullptr;
    at = &*found;
    if (dot == std::string_view::npos) return at;
    path.remove_prefix(dot + 1);
  }
}

Framework read_framework(const Document& document) {
  const Object object(document);
  Framework framework;
  framework.name = object.string("name");
  framework.description = object.string("description");
  framework.published_as = string_list(object, "published_as");
  framework.until = object.string("until", "");
  framework.fitted_to = string_list(object, "fitted_to");
  if (!framework.until.empty() && !is_month(framework.until)) {
    object.fail("until", "must be a month, such as \"2021-10\"");
  }
  framework.defaults = part_of_what_if(object, "defaults");
  for (std::size_t i = 0; i < object.array_size("rules"); ++i) {
    framework.rules.push_back(read_rule(object.element("rules", i)));
  }
  const Json sources = part_of_what_if(object, "sources");
  for (const auto& [path, source] : sources.items()) {
    if (!source.is_string()) object.fail("sources", fmt::format("{} must be words", path));
    framework.sources[path] = source.get<std::string>();
  }
  object.touch("rules");
  object.done();
  check_sources(object, framework);
  return framework;
}

std::vector<Framework> read_frameworks() {
  std::vector<Framework> all;
  for (const std::string& name : config_names("frameworks")) {
    all.push_back(find_framework(name, "frameworks"));
  }
  return all;
}

Framework find_framework(const std::string& name, std::string_view place) {
  const std::string file = find_config("frameworks", name, place);
  return read_framework(parse_json(read_file(file), file));
}

const Framework* published_framework(const std::vector<Framework>& all, std::string_view published,
                                     std::string_view date) {
  const std::string name = lower(published);
  const Framework* best = nullptr;
  std::size_t longest = 0;
  for (const Framework& framework : all) {
    const bool over = !framework.until.empty() && (date.empty() || date >= framework.until);
    if (over) continue;
    for (const std::string& part : framework.published_as) {
      if (!has(name, part) || part.size() < longest) continue;
      const bool sooner = best != nullptr && part.size() == longest && !framework.until.empty() &&
                          (best->until.empty() || framework.until < best->until);
      if (best != nullptr && part.size() == longest && !sooner) continue;
      best = &framework;
      longest = part.size();
    }
  }
  return best;
}

void fill_in(const Framework& framework, Json& what_if) {
  if (!what_if.is_object()) return;
  // Rules go before plain defaults, but never before what the what-if says.
  Json chosen = framework.defaults;
  for (const FrameworkRule& rule : framework.rules) {
    Json all = what_if;
    merge_missing(chosen, all);
    const bool holds = std::all_of(rule.is.begin(), rule.is.end(), [&](const auto& condition) {
      return effective(all, condition.first) == condition.second;
    });
    if (!holds) continue;
    std::vector<std::string> paths;
    list_paths(rule.set, "", paths);
    for (const std::string& path : paths) put(chosen, path, *value_at(rule.set, path));
  }
  merge_missing(chosen, what_if);
}

}  // namespace stepcast

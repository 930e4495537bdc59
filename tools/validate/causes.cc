// Rules in their order, the first that fits. Linear in the conditions.
#include "tools/validate/causes.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include <fmt/format.h>

#include "sim/base/error.h"
#include "tools/base/files.h"
#include "tools/validate/fields.h"
#include "tools/validate/summary.h"

namespace stepcast {
namespace {

MissCondition read_condition(const Object& object) {
  MissCondition condition;
  condition.fact = object.string("fact");
  int tests = 0;
  if (object.has("has")) {
    ++tests;
    for (std::size_t i = 0; i < object.array_size("has"); ++i) {
      const Json& one = object.at("has")[i];
      if (!one.is_string()) object.fail("has", "must be a list of texts");
      condition.has.push_back(lower(one.get<std::string>()));
    }
  }
  if (object.has("is")) {
    ++tests;
    object.array_size("is");  // a list
    condition.is = object.at("is");
  }
  constexpr double kMost = 1e18;
  if (object.has("least") || object.has("most")) ++tests;
  if (object.has("least")) condition.least = object.number("least", 0, -kMost, kMost);
  if (object.has("most")) condition.most = object.number("most", 0, -kMost, kMost);
  if (object.has("stated")) {
    ++tests;
    condition.stated = object.boolean("stated", true);
  }
  object.done();
  if (tests != 1) object.fail("fact", "needs one test: has, is, least and most, or stated");
  return condition;
}

// The values that a condition is about; none: not stated.
std::vector<Json> values_of(const std::string& fact, const Json& row, const ValidationRow& result) {
  if (fact == "plan") return {Json(result.run->plan)};
  if (fact == "layer_launches") return {Json(result.run->layer_launches)};
  if (fact == "memory_share") return {Json(result.run->memory_share)};
  if (fact == "gpu") return {Json(result.gpu)};
  if (fact == "group") return {Json(result.group)};
  if (fact == "source") return {Json(result.source)};
  if (fact == "assumed") return {result.assumed.begin(), result.assumed.end()};
  const Json* at = &row;
  for (std::size_t begin = 0; at != nullptr && begin <= fact.size();) {
    const std::size_t end = std::min(fact.find('.', begin), fact.size());
    at = member(*at, std::string_view(fact).substr(begin, end - begin));
    begin = end + 1;
  }
  return at == nullptr ? std::vector<Json>() : std::vector<Json>{*at};
}

bool holds(const MissCondition& condition, const Json& value) {
  if (!condition.has.empty()) {
    const std::string text = value.is_string() ? lower(value.get<std::string>()) : "";
    return std::any_of(condition.has.begin(), condition.has.end(),
                       [&](const std::string& part) { return has(text, part); });
  }
  if (!condition.is.empty()) {
    return std::find(condition.is.begin(), condition.is.end(), value) != condition.is.end();
  }
  if (!value.is_number()) return false;
  const double number = value.get<double>();
  return number >= condition.least.value_or(number) && number <= condition.most.value_or(number);
}

bool holds(const MissCondition& condition, const Json& row, const ValidationRow& result) {
  const std::vector<Json> values = values_of(condition.fact, row, result);
  if (condition.stated) return *condition.stated != values.empty();
  return std::any_of(values.begin(), values.end(),
                     [&](const Json& value) { return holds(condition, value); });
}

bool applies(const MissCause& cause, const Json& row, const ValidationRow& result) {
  return std::all_of(cause.when.begin(), cause.when.end(),
                     [&](const MissCondition& one) { return holds(one, row, result); });
}

}  // namespace

std::vector<MissCause> read_causes(const Document& document) {
  const Object root(document);
  if (root.string("format") != "stepcast.causes/1") {
    root.fail("format", "must be \"stepcast.causes/1\"");
  }
  std::vector<MissCause> causes;
  for (std::size_t i = 0; i < root.array_size("causes"); ++i) {
    const Object object = root.element("causes", i);
    MissCause& cause = causes.emplace_back();
    cause.name = object.string("name");
    cause.why = object.string("why");
    cause.too_fast = object.word<std::optional<bool>>(
        "forecast", std::nullopt,
        {{"too fast", true}, {"too slow", false}, {"either", std::nullopt}});
    if (object.array_size("when") == 0) object.fail("when", "needs at least one condition");
    for (std::size_t k = 0; k < object.array_size("when"); ++k) {
      cause.when.push_back(read_condition(object.element("when", k)));
    }
    object.done();
  }
  root.done();
  return causes;
}

std::vector<MissCause> shipped_causes() {
  const std::filesystem::path path =
      std::filesystem::path(config_directory()) / "published" / "causes.json";
  if (!std::filesystem::exists(path)) return {};
  return read_causes(parse_json(read_file(path.string()), path.string()));
}

std::string cause_of(const Json& row, const ValidationRow& result,
                     const std::vector<MissCause>& causes) {
  const auto error = relative_error(result);
  if (!result.covered || !result.run || !error || std::abs(*error) <= kMiss) return "";
  const auto found = std::find_if(causes.begin(), causes.end(), [&](const MissCause& cause) {
    if (cause.too_fast && *cause.too_fast != (*error < 0)) return false;
    return applies(cause, row, result);
  });
  return found == causes.end() ? "" : found->name;
}

bool has_cause(const Json& row, const ValidationRow& result,
               const std::vector<MissCause>& causes) {
  return std::any_of(causes.begin(), causes.end(),
                     [&](const MissCause& cause) { return applies(cause, row, result); });
}

}  // namespace stepcast

// The table of fields against the readers and writers: in both directions.
#include "tools/commands/fields.h"

#include <algorithm>
#include <filesystem>
#include <regex>
#include <set>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "sim/base/error.h"
#include "sim/result/report.h"
#include "tools/base/files.h"
#include "tools/forecast/forecast.h"
#include "tools/whatif/whatif.h"

namespace stepcast {
namespace {

using ::testing::HasSubstr;

// Nothing but what has to be there; a model in place, so that its keys can be set.
const char* const kLeast = R"({
  "model": {"layers": 2, "hidden": 64, "heads": 4, "ffn": 128, "vocabulary": 256, "positions": 128},
  "cluster": {"device": "a100-80gb"},
  "batch": {"sequence_length": 32}
})";

WhatIf read_with(const std::vector<std::pair<std::string, std::string>>& sets) {
  Document document = parse_json(kLeast, "least");
  for (const auto& [path, value] : sets) set_value(document, path, value);
  return read_what_if(document, ".");
}

// "parallel.stages", "cluster.slow_devices[].device": all keys, at every depth.
void collect(const Json& value, const std::string& path, std::set<std::string>& paths) {
  if (value.is_object()) {
    for (const auto& [key, member] : value.items()) {
      const std::string inner = path.empty() ? key : path + "." + key;
      paths.insert(inner);
      collect(member, inner, paths);
    }
  } else if (value.is_array()) {
    for (const Json& member : value) collect(member, path + "[]", paths);
  }
}

std::set<std::string> paths_of(const Json& value) {
  std::set<std::string> paths;
  collect(value, "", paths);
  return paths;
}

std::set<std::string> table_paths(const std::vector<Field>& fields, bool resolved_only) {
  std::set<std::string> paths;
  for (const Field& field : fields) {
    if (field.resolved || !resolved_only) paths.insert(std::string(field.path));
  }
  return paths;
}

// One of each, so that the lists' elements have their keys too.
const std::pair<std::string, std::string> kSlow{"cluster.slow_devices",
                                                R"([{"device": 1, "factor": 1.5}])"};
const std::pair<std::string, std::string> kSlowLink{
    "cluster.slow_links", R"([{"from": "node0/device1", "to": "node0/switch", "speed": 0.5}])"};

TEST(Fields, HaveExactlyTheKeysOfAResolvedWhatIf) {
  EXPECT_EQ(paths_of(read_with({kSlow, kSlowLink}).resolved), table_paths(what_if_fields(), true));
}

TEST(Fields, HaveExactlyTheKeysOfAReport) {
  const WhatIf what_if = read_with({kSlow, {"train.tokens", "1B"}});
  const Forecast result = forecast(what_if);
  Json report = write_report(result.report, result.job);
  report["config"] = Json::object();
  EXPECT_EQ(paths_of(report), table_paths(report_fields(), false));
}

TEST(Fields, ThatAResolvedWhatIfSaysOtherwiseAreReadToo) {
  EXPECT_EQ(read_with({{"model.style", "llama"}, {"model.source", "s"}, {"model.description", "d"},
                       {"cluster.source", "s"}, {"cluster.description", "d"}})
                .model.layers, 2);
  EXPECT_EQ(read_with({{"recompute.every", "2"}}).plan.recompute_every, 2);
  EXPECT_EQ(read_with({{"recompute.layers", "1"}}).plan.recompute_layers, 1);
  EXPECT_EQ(read_with({{"recompute.modules", "[\"norm\"]"}}).plan.recompute_modules.size(), 1u);
  std::set<std::string> expected = {"model.style",       "model.source",    "model.description",
                                    "cluster.source",    "cluster.description",
                                    "recompute.every",   "recompute.layers", "recompute.modules"};
  for (const Field& field : what_if_fields()) {
    if (field.resolved) continue;
    EXPECT_EQ(expected.erase(std::string(field.path)), 1u) << field.path;
  }
  EXPECT_TRUE(expected.empty());
}

Json at_path(const Json& json, std::string_view path) {
  std::string pointer = "/" + std::string(path);
  std::replace(pointer.begin(), pointer.end(), '.', '/');
  return json.at(Json::json_pointer(pointer));
}

TEST(Fields, TellTheDefaultThatALeftOutKeyGets) {
  const Json resolved = read_with({}).resolved;
  int compared = 0;
  for (const Field& field : what_if_fields()) {
    const Json otherwise = Json::parse(field.otherwise, nullptr, false);
    if (otherwise.is_discarded() || !field.resolved || otherwise == Json::object()) continue;
    EXPECT_EQ(at_path(resolved, field.path), otherwise) << field.path;
    ++compared;
  }
  EXPECT_GT(compared, 30);
}

TEST(Fields, TellTheLimitsThatTheReaderHolds) {
  for (const Field& field : what_if_fields()) {
    if (field.form != Form::kCount || field.path.find('[') != std::string_view::npos) continue;
    for (const std::int64_t value : {field.limits.least - 1, field.limits.most + 1}) {
      try {
        read_with({{std::string(field.path), fmt::format("{}", value)}});
        ADD_FAILURE() << field.path << " took " << value;
      } catch (const Error& error) {
        EXPECT_THAT(error.where(), HasSubstr(std::string(last_component(field.path))));
        EXPECT_THAT(error.message(), HasSubstr(fmt::format("{}", field.limits.most)))
            << field.path << " " << value;
      }
    }
  }
}

TEST(Fields, TellTheWordsThatTheReaderTakes) {
  for (const Field& field : what_if_fields()) {
    if (field.words.empty() || field.form == Form::kWords) continue;
    try {
      read_with({{std::string(field.path), "nonsense"}});
      ADD_FAILURE() << field.path;
    } catch (const Error& error) {
      for (const std::string& word : split_words(field.words)) {
        EXPECT_THAT(error.message(), HasSubstr(word)) << field.path;
      }
    }
  }
}

TEST(Fields, AreExplainedInWholeSentencesAndOnce) {
  std::set<std::pair<Topic, std::string>> seen;
  for (const Field& field : all_fields()) {
    EXPECT_TRUE(seen.emplace(field.topic, field.path).second) << field.path;
    EXPECT_TRUE(field.meaning.ends_with('.')) << field.path;
    EXPECT_TRUE(field.effect.empty() || field.effect.ends_with('.')) << field.path;
  }
}

TEST(Explain, FindsAKeyByItsPathItsLastComponentAndItsSection) {
  EXPECT_THAT(explanation("parallel.tensor"), HasSubstr("Megatron-LM"));
  EXPECT_THAT(explanation("sequence_parallel"), HasSubstr("parallel.sequence_parallel (what-if"));
  EXPECT_THAT(explanation("parallel"), HasSubstr("parallel.virtual_stages"));
  EXPECT_THAT(explanation("memory.stages[2].peak_at"), HasSubstr("memory.stages[].peak_at"));
  EXPECT_THAT(explanation("Micro Batch"), HasSubstr("micro-batch (term)"));
  // A term and a key may share a name.
  EXPECT_THAT(explanation("model"), HasSubstr("model (report)"));
  EXPECT_THAT(explanation("model"), HasSubstr("model (what-if file)"));
}

TEST(Explain, NamesTheNearestKey) {
  try {
    explanation("shardin.zero");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean \"sharding.zero\"?"));
  }
}

// As much of JSON Schema as the schema uses. "" or the path of the first fault.
std::string fault(const Json& schema, const Json& value, const std::string& path = "/") {
  if (schema.contains("anyOf")) {
    const auto& all = schema["anyOf"];
    const bool fits = std::any_of(all.begin(), all.end(), [&](const Json& one) {
      return fault(one, value).empty();
    });
    return fits ? "" : path;
  }
  if (schema.contains("enum")) {
    const auto& all = schema["enum"];
    return std::find(all.begin(), all.end(), value) != all.end() ? "" : path;
  }
  const std::string type = schema.at("type");
  const bool typed = type == "object"    ? value.is_object()
                     : type == "array"   ? value.is_array()
                     : type == "string"  ? value.is_string()
                     : type == "integer" ? value.is_number_integer()
                     : type == "number"  ? value.is_number()
                     : type == "boolean" ? value.is_boolean()
                                         : value.is_null();
  if (!typed) return path;
  if (schema.contains("minimum") && value < schema["minimum"]) return path;
  if (schema.contains("maximum") && value > schema["maximum"]) return path;
  if (schema.contains("pattern")) {
    const std::regex pattern(schema["pattern"].get<std::string>());
    if (!std::regex_search(value.get<std::string>(), pattern)) return path;
  }
  for (const Json& key : schema.value("required", Json::array())) {
    if (!value.contains(key.get<std::string>())) return path + key.get<std::string>();
  }
  if (schema.contains("items")) {
    for (const Json& element : value) {
      if (!fault(schema["items"], element).empty()) return path + "[]";
    }
  }
  if (!schema.contains("properties")) return "";
  for (const auto& [key, member] : value.items()) {
    if (!schema["properties"].contains(key)) return path + key;
    const std::string inner = fault(schema["properties"][key], member, path + key + "/");
    if (!inner.empty()) return inner;
  }
  return "";
}

TEST(Schema, TakesEveryShippedExampleAndItsResolvedForm) {
  const Json schema = what_if_schema();
  int examples = 0;
  for (const auto& entry : std::filesystem::directory_iterator(config_directory())) {
    if (entry.path().extension() != ".json") continue;
    const std::string path = entry.path().string();
    EXPECT_EQ(fault(schema, parse_json(read_file(path), path).root), "") << path;
    EXPECT_EQ(fault(schema, read_what_if(path, {}).resolved), "") << path;
    ++examples;
  }
  EXPECT_GT(examples, 0);
}

TEST(Schema, RefusesWhatTheReaderRefuses) {
  const Json schema = what_if_schema();
  const auto fault_with = [&](const char* path, const char* value) {
    Document document = parse_json(kLeast, "least");
    set_value(document, path, value);
    return fault(schema, document.root);
  };
  EXPECT_EQ(fault_with("name", "x"), "");
  EXPECT_EQ(fault_with("recompute", R"({"every": 2})"), "");
  EXPECT_EQ(fault_with("model", R"({"model_type": "gpt2", "n_layer": 2})"), "");
  EXPECT_EQ(fault_with("shardin", "{}"), "/shardin");
  EXPECT_EQ(fault_with("parallel.tensr", "2"), "/parallel/tensr");
  EXPECT_EQ(fault_with("parallel.tensor", "0"), "/parallel/tensor/");
  EXPECT_EQ(fault_with("parallel.schedule", "1f2b"), "/parallel/schedule/");
  EXPECT_EQ(fault_with("sharding.bucket", "200 mb"), "/sharding/bucket/");
  EXPECT_EQ(fault_with("sharding.bucket", "200"), "/sharding/bucket/");
  EXPECT_EQ(fault_with("batch", "{}"), "/batch/sequence_length");
  EXPECT_EQ(fault_with("recompute", R"({"each": 2})"), "/recompute/");
}

}  // namespace
}  // namespace stepcast

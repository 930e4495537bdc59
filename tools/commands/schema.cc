// Schema: the table of fields as JSON Schema. Each field is one subschema; objects hold their
// members and nothing else, so that an editor marks a misspelt key.
#include <algorithm>

#include <fmt/format.h>

#include "sim/base/error.h"
#include "tools/base/files.h"
#include "tools/commands/commands.h"
#include "tools/commands/fields.h"

namespace stepcast {
namespace {

constexpr const char* kBytesPattern =
    R"(^[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)? *([kMGTP]|[KMGTP]i)?B$)";
constexpr const char* kTimePattern =
    R"(^[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)? *(s|ms|us|ns|min|h|d)$)";
constexpr const char* kBandwidthPattern =
    R"(^[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)? *(([kMGTP]|[KMGTP]i)?B|[kMGT]?b)/s$)";

// The pattern of "<= 12 s".
std::string limit_pattern(std::string_view quantity) {
  return fmt::format("^<= *{}", quantity.substr(1));
}

Json text_like(std::string_view pattern) {
  return Json{{"type", "string"}, {"pattern", pattern}};
}

Json word_schema(const Field& field) { return Json{{"enum", split_words(field.words)}}; }

Json list_of(Json items) {
  Json json;
  json["type"] = "array";
  json["items"] = std::move(items);
  return json;
}

Json either(Json first, Json second) {
  Json json;
  json["anyOf"] = Json::array({std::move(first), std::move(second)});
  return json;
}

class SchemaWriter {
 public:
  SchemaWriter() : fields_(what_if_fields()) {}

  Json root() const {
    Json json{{"$schema", "https://json-schema.org/draft/2020-12/schema"},
              {"title", "stepcast what-if"}};
    std::vector<Field> top;
    std::copy_if(fields_.begin(), fields_.end(), std::back_inserter(top), [](const Field& field) {
      return field.path.find('.') == std::string_view::npos;
    });
    json.update(object(top));
    return json;
  }

 private:
  Json object(const std::vector<Field>& members) const {
    Json json{{"type", "object"}, {"properties", Json::object()}, {"additionalProperties", false}};
    Json required = Json::array();
    for (const Field& member : members) {
      const std::string name(last_component(member.path));
      json["properties"][name] = property(member);
      if (member.otherwise.empty()) required.push_back(name);
    }
    if (!required.empty()) json["required"] = std::move(required);
    return json;
  }

  Json property(const Field& field) const {
    Json json = value(field);
    // The readers take null for a key that is left out.
    if (field.otherwise == "null") json = either(std::move(json), Json{{"type", "null"}});
    json["description"] = field.effect.empty() ? std::string(field.meaning)
                                               : fmt::format("{} {}", field.meaning, field.effect);
    const Json otherwise = Json::parse(field.otherwise, nullptr, false);
    if (!otherwise.is_discarded()) json["default"] = otherwise;
    return json;
  }

  Json value(const Field& field) const {
    switch (field.form) {
      case Form::kObject: return object(children(fields_, field));
      case Form::kList: return list_of(object(children(fields_, field)));
      case Form::kNone:
      case Form::kText: return Json{{"type", "string"}};
      case Form::kWord: return word_schema(field);
      case Form::kCount:
        return Json{{"type", "integer"},
                    {"minimum", field.limits.least},
                    {"maximum", field.limits.most}};
      case Form::kNumber: return Json{{"type", "number"}};
      case Form::kSwitch: return Json{{"type", "boolean"}};
      case Form::kBytes: return text_like(kBytesPattern);
      case Form::kTime: return text_like(kTimePattern);
      case Form::kBandwidth: return text_like(kBandwidthPattern);
      case Form::kByteLimit: return text_like(limit_pattern(kBytesPattern));
      case Form::kTimeLimit: return text_like(limit_pattern(kTimePattern));
      case Form::kNameOrObject: return named(field);
      case Form::kWordOrObject:
        return either(word_schema(field), object(children(fields_, field)));
      case Form::kWordOrCounts:
        return either(word_schema(field), list_of(Json{{"type", "integer"}, {"minimum", 0}}));
      case Form::kWords: return list_of(word_schema(field));
      case Form::kCountOrText:
        return either(Json{{"type", "number"}, {"minimum", 1}},
                      text_like(R"(^[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)? *[kMBT]?$)"));
    }
    STEPCAST_CHECK(false, "a form out of range");
  }

  // A name, or what the file of that name would hold. A model may also be a Hugging Face config,
  // whose keys are not ours.
  Json named(const Field& field) const {
    Json json = either(Json{{"type", "string"}}, object(children(fields_, field)));
    if (field.path == "model") {
      json["anyOf"].push_back(
          Json{{"type", "object"}, {"required", Json::array({"model_type"})}});
    }
    return json;
  }

  std::vector<Field> fields_;
};

}  // namespace

Json what_if_schema() { return SchemaWriter().root(); }

int schema_command() {
  write_file("-", what_if_schema().dump(2) + "\n");
  return 0;
}

}  // namespace stepcast

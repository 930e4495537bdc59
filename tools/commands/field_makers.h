// How the what-if half of the table is written (fields.cc, fields_model.cc). Internal to these two.
#pragma once

#include <string_view>
#include <vector>

#include "tools/commands/fields.h"

namespace stepcast {

inline Field field(Form form, std::string_view path, std::string_view otherwise,
                   std::string_view meaning, std::string_view effect = "") {
  Field result;
  result.topic = Topic::kWhatIf;
  result.form = form;
  result.path = path;
  result.otherwise = otherwise;
  result.meaning = meaning;
  result.effect = effect;
  return result;
}

inline Field count(std::string_view path, std::string_view otherwise, Limits limits,
                   std::string_view meaning, std::string_view effect = "") {
  Field result = field(Form::kCount, path, otherwise, meaning, effect);
  result.limits = limits;
  return result;
}

inline Field word(std::string_view path, std::string_view otherwise, std::string_view words,
                  std::string_view meaning, std::string_view effect = "", Form form = Form::kWord) {
  Field result = field(form, path, otherwise, meaning, effect);
  result.words = words;
  return result;
}

inline Field input_only(Field given) {
  given.resolved = false;
  return given;
}

// The keys of "model".
std::vector<Field> model_fields();

}  // namespace stepcast

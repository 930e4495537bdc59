// What a row leaves to others: its framework, as it was in the row's month, and those who tuned the
// run. Linear in the text, which is cut where no date is longer.
#include <algorithm>
#include <regex>

#include <fmt/format.h>

#include "tools/validate/fields.h"
#include "tools/validate/question.h"
#include "tools/whatif/framework.h"

namespace stepcast {
std::string month_of(const Json& row) {
  const Json& software = section_of(row, "software");
  const Json& source = section_of(row, "source");
  static const std::regex dated(R"((20\d\d)(?:-(\d\d))?)");
  static const std::regex release(R"((?:^|\D)(2\d)\.(0[1-9]|1[0-2])(?:\D|$))");
  static const std::regex paper(R"((?:^|\D)(\d\d)(0[1-9]|1[0-2])\.\d{5}(?:\D|$))");
  const std::string texts[] = {text_of(software, "framework"), text_of(source, "tag"),
                               text_of(section_of(software, "extra"), "release"),
                               text_of(source, "url")};
  for (const std::string& text : texts) {
    const std::string head = text.substr(0, kTextMost);
    std::smatch found;
    if (std::regex_search(head, found, paper) || std::regex_search(head, found, release)) {
      return fmt::format("20{}-{}", found[1].str(), found[2].str());
    }
    if (std::regex_search(head, found, dated)) {
      return fmt::format("{}-{}", found[1].str(), found[2].matched ? found[2].str() : "06");
    }
  }
  return "";
}

void note_filled_in(const Framework* framework, const Json& what_if,
                    std::vector<std::string>& assumed) {
  Json filled = what_if;
  if (framework != nullptr) fill_in(*framework, filled);
  const auto left = [&](const char* path) { return value_at(what_if, path) == nullptr; };
  const auto text = [&](const char* path, const char* otherwise) {
    const Json* value = value_at(filled, path);
    return value != nullptr && value->is_string() ? value->get<std::string>() : otherwise;
  };
  const auto on = [&](const char* path, bool otherwise) {
    const Json* value = value_at(filled, path);
    return value != nullptr && value->is_boolean() ? value->get<bool>() : otherwise;
  };
  const auto yes = [](bool is) { return is ? "yes" : "no"; };
  if (framework != nullptr) assumed.push_back(fmt::format("framework ({})", framework->name));
  if (left("vocabulary_multiple")) {
    if (const Json* multiple = value_at(filled, "vocabulary_multiple")) {
      assumed.push_back(fmt::format("vocabulary (padded to {} x tensor)", multiple->dump()));
    }
  }
  const Json& model = what_if.at("model");
  const bool gpt = model.is_object() && model.contains("style") && model["style"] == "gpt" &&
                   !model.contains("dropout");
  if (left("dropout") && (gpt || value_at(filled, "dropout") != nullptr)) {
    assumed.push_back(fmt::format("dropout ({})", yes(on("dropout", true))));
  }
  const std::string compute = text("precision.compute", "bf16");
  if (left("precision.compute")) assumed.push_back(fmt::format("precision ({})", compute));
  if (left("precision.gradients") && compute != "fp32") {
    const bool copy = text("precision.gradient_copy", "none") == "fp32";
    const char* otherwise = compute == "fp8" ? "bf16" : compute.c_str();
    assumed.push_back(fmt::format("gradients ({}{})", text("precision.gradients", otherwise),
                                  copy ? " with an fp32 copy" : ""));
  }
  const bool pipeline = what_if.at("parallel").at("pipeline") > 1;
  if (pipeline && left("parallel.pipeline_overlap")) {
    assumed.push_back(
        fmt::format("pipeline_overlap ({})", yes(on("parallel.pipeline_overlap", true))));
  }
  if (what_if.at("parallel").at("data") > 1 && left("sharding.overlap")) {
    assumed.push_back(
        fmt::format("overlap of the gradients ({})", yes(on("sharding.overlap", true))));
  }
  if (left("recompute")) {
    const Json* recompute = value_at(filled, "recompute");
    const bool listed = recompute != nullptr && !recompute->is_string();
    assumed.push_back(
        fmt::format("recompute ({})", listed ? recompute->dump() : text("recompute", "none")));
  }
  if (left("attention")) {
    assumed.push_back(fmt::format("attention ({})", text("attention", "fused")));
  }
}

std::vector<Json> other_choices(const Json& row, const Json& what_if, bool micro_stated) {
  constexpr std::int64_t kMicroMost = 16, kChunksMost = 64;
  const Json& parallel = what_if.at("parallel");
  const Json& batch = what_if.at("batch");
  const std::int64_t each =
      batch.at("global").get<std::int64_t>() / parallel.at("data").get<std::int64_t>();
  std::vector<std::int64_t> micros = {batch.at("micro").get<std::int64_t>()};
  for (std::int64_t micro = 2; !micro_stated && micro <= kMicroMost; micro *= 2) {
    if (each % micro == 0) micros.push_back(micro);
  }
  std::vector<std::int64_t> chunks = {0};  // as they are
  const std::string schedule = lower(text_of(section_of(row, "parallel"), "schedule"));
  const auto pipeline = parallel.at("pipeline").get<std::int64_t>();
  const std::int64_t layers = stated_count(row, "model", "layers").value_or(1);
  if (pipeline > 1 && has(schedule, "interleaved") && layers % pipeline == 0 &&
      parallel.at("stages").is_string() && !stated_count(row, "parallel", "virtual_pp")) {
    const std::int64_t each_stage = layers / pipeline;
    for (std::int64_t v = 2; v <= std::min(each_stage, kChunksMost); ++v) {
      if (each_stage % v == 0 && parallel.at("virtual_stages") != v) chunks.push_back(v);
    }
  }
  std::vector<Json> others;
  for (const std::int64_t micro : micros) {
    for (const std::int64_t v : chunks) {
      if (micro == micros.front() && v == 0) continue;
      Json& other = others.emplace_back(what_if);
      other["batch"]["micro"] = micro;
      if (v == 0) continue;
      other["parallel"]["schedule"] = "interleaved";
      other["parallel"]["virtual_stages"] = v;
      other["parallel"]["stages"] = "even";
    }
  }
  return others;
}

}  // namespace stepcast

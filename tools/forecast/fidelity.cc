// The format of errors.json, and who is nearest to whom. The cost: a look at every class.
#include "tools/forecast/fidelity.h"

#include <cmath>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "sim/base/error.h"
#include "sim/cost/gemm.h"
#include "tools/base/files.h"

namespace stepcast {
namespace {

constexpr std::string_view kErrorsFormat = "stepcast.errors/1";
constexpr Seconds kLaunch{4.5e-6};

// Four digits: what follows says nothing, and would change with every constant.
double rounded(double value) { return std::round(value * 1e4) / 1e4 + 0.0; }

}  // namespace

double layer_launches(const Model& model, const Plan& plan, const Device& device) {
  const Flops head =
      Flops(6.0 * static_cast<double>(model.hidden) * static_cast<double>(model.vocabulary));
  const Flops layers = model_flops_per_token(model, plan.sequence_length, true) - head;
  const double tokens = static_cast<double>(plan.micro_batch) *
                        static_cast<double>(plan.sequence_length) /
                        static_cast<double>(plan.context * plan.tensor);
  const Flops layer = layers / (3.0 * static_cast<double>(model.layers)) * tokens;
  return layer / matrix_rate(plan.product(), device) / kLaunch;
}

std::string plan_kind(const Model& model, const Plan& plan, const Device& device) {
  if (layer_launches(model, plan, device) < kLayerKernels) return std::string(kLaunchBound);
  if (plan.launch_blocking) return std::string(kLaunchBlocking);
  if (model.experts > 0) return "expert";
  if (plan.effective_zero() == 3) return "sharded";
  if (plan.pipeline > 1) return "pipeline";
  if (plan.tensor > 1) return "tensor";
  return plan.context * plan.data > 1 ? "data" : "one device";
}

std::string write_error_classes(const std::vector<ErrorClass>& classes) {
  std::string text = fmt::format("{{\n  \"format\": \"{}\",\n  \"classes\": [", kErrorsFormat);
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const ErrorClass& one = classes[i];
    const Json json = {
        {"device", one.device},      {"kind", one.kind},
        {"runs", one.runs},          {"sources", one.sources},
        {"bias", rounded(one.bias)}, {"mean_absolute_error", rounded(one.mean_absolute)},
        {"low", rounded(one.low)},   {"high", rounded(one.high)}};
    text += (i > 0 ? ",\n    " : "\n    ") + json.dump();
  }
  return text + (classes.empty() ? "]\n}\n" : "\n  ]\n}\n");
}

std::vector<ErrorClass> read_error_classes(const Document& document) {
  constexpr double kMost = 1e6;  // a forecast that takes a million times as long
  const Object root(document);
  if (root.string("format") != kErrorsFormat) {
    root.fail("format", fmt::format("must be \"{}\"", kErrorsFormat));
  }
  std::vector<ErrorClass> classes;
  for (std::size_t i = 0; i < root.array_size("classes"); ++i) {
    const Object object = root.element("classes", i);
    ErrorClass& one = classes.emplace_back();
    one.device = object.string("device");
    one.kind = object.string("kind");
    one.runs = static_cast<int>(object.integer("runs", {1, 1'000'000'000}));
    one.sources = static_cast<int>(object.integer("sources", {1, one.runs}));
    one.bias = object.number("bias", 0, -1, kMost);
    one.mean_absolute = object.number("mean_absolute_error", 0, 0, kMost);
    one.low = object.number("low", 0, -0.9999, kMost);
    one.high = object.number("high", 0, one.low, kMost);
    object.done();
  }
  root.done();
  return classes;
}

std::vector<ErrorClass> shipped_error_classes() {
  const std::filesystem::path path =
      std::filesystem::path(config_directory()) / "published" / "errors.json";
  if (!std::filesystem::exists(path)) return {};
  return read_error_classes(parse_json(read_file(path.string()), path.string()));
}

const ErrorClass* nearest_class(const std::vector<ErrorClass>& classes, std::string_view device,
                                std::string_view kind) {
  using Key = std::pair<std::string_view, std::string_view>;
  std::vector<Key> keys = {{device, kind}, {"", kind}};
  if (!is_kind_apart(kind)) keys.insert(keys.end(), {{device, ""}, {"", ""}});
  for (const auto& [on, of] : keys) {
    for (const ErrorClass& one : classes) {
      if (one.device == on && one.kind == of) return &one;
    }
  }
  return nullptr;
}

std::string class_words(const ErrorClass& found, std::string_view device, std::string_view kind) {
  const std::string of = found.kind.empty() ? "" : fmt::format(" of {} plans", found.kind);
  std::string words = fmt::format("{} published runs ({} source{}){}", found.runs, found.sources,
                                  found.sources == 1 ? "" : "s", of);
  if (!found.device.empty()) words += fmt::format(" on {}", found.device);
  if (found.device.empty() && !device.empty()) words += fmt::format(", too few on {}", device);
  if (found.kind.empty() && !kind.empty()) words += fmt::format(", too few of {} plans", kind);
  return words;
}

}  // namespace stepcast

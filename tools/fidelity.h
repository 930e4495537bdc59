// Fidelity: how far forecasts have been from published runs, by class of plan, and what that says
// about the next one.
//
// A class is a device and a kind of plan. Its spread is that of predicted / measured - 1 over the
// published runs in it, each source weighing the same; the range of a forecast step t is
//   [t / (1 + high), t / (1 + low)],   low and high the 10th and 90th percentile of the errors:
// 8 of 10 published runs of the class would lie in it. The table is written by `stepcast validate
// --errors` to configs/published/errors.json.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/model.h"
#include "models/plan.h"
#include "sim/base/json.h"
#include "sim/hardware/hardware.h"
#include "tools/validate.h"

namespace stepcast {

struct ErrorClass {
  std::string device;        // a name under configs/devices; "" stands for all
  std::string kind;          // plan_kind(); "" stands for all
  int runs = 0, sources = 0;
  double bias = 0;           // mean error, each source weighing the same
  double mean_absolute = 0;  // likewise
  double low = 0, high = 0;  // 10th and 90th percentile, likewise
};

// "launch-bound" (validate_runs.h), else by what a plan does most: "sharded" (ZeRO-3), "pipeline",
// "tensor", "data", "one device".
std::string plan_kind(const Model& model, const Plan& plan, const Device& device);

// Of covered runs with a time: every class of at least kClassLeast rows, and those wider by device,
// by kind and by both. Launch-bound runs are in their own classes only.
inline constexpr int kClassLeast = 5;
std::vector<ErrorClass> error_classes(const std::vector<ValidationRow>& rows);

// A class a line.
std::string write_error_classes(const std::vector<ErrorClass>& classes);

// Throws Error for what is none.
std::vector<ErrorClass> read_error_classes(const Document& document);

// configs/published/errors.json; empty if there is none.
std::vector<ErrorClass> shipped_error_classes();

// The class of a device and kind, else the nearest wider one: the kind on all devices, all kinds on
// the device, all. nullptr where there is none.
const ErrorClass* nearest_class(const std::vector<ErrorClass>& classes, std::string_view device,
                                std::string_view kind);

// "as 74 published runs (3 sources) of pipeline plans on h100-sxm"; what the class is wider in is
// said: "... of pipeline plans, none on h200".
std::string class_words(const ErrorClass& found, std::string_view device, std::string_view kind);

}  // namespace stepcast

// Fidelity: how far forecasts have been from published runs, by class of plan, and what that says
// about the next one.
//
// A class is a device and a kind of plan. Its spread is that of predicted / measured - 1 over the
// published runs in it, each source weighing the same; the range of a forecast step t is
//   [t / (1 + high), t / (1 + low)],   low and high the 10th and 90th percentile of the errors:
// 8 of 10 published runs of the class would lie in it. The table is written by `stepcast validate
// --errors` (tools/validate/error_classes.h) to configs/published/errors.json.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/model.h"
#include "models/plan.h"
#include "sim/base/json.h"
#include "sim/hardware/hardware.h"

namespace stepcast {

struct ErrorClass {
  std::string device;        // a name under configs/devices; "" stands for all
  std::string kind;          // plan_kind(); "" stands for all
  int runs = 0, sources = 0;
  double bias = 0;           // mean error, each source weighing the same
  double mean_absolute = 0;  // likewise
  double low = 0, high = 0;  // 10th and 90th percentile, likewise
};

// How much work there is for each kernel that the host issues: the time that one micro-batch's
// forward through one layer takes the matrix units at their data-sheet rate, in launches of 4.5 us,
// about the least that a host needs. It asks the configuration alone, so that neither a measurement
// nor what was fitted to some decides how it is scored.
double layer_launches(const Model& model, const Plan& plan, const Device& device);

// Kernels of such a layer in an eager framework. A run with less work than these take to issue is
// launch-bound: its time says how fast a framework issues kernels, not how a plan does.
inline constexpr double kLayerKernels = 24;

inline constexpr std::string_view kLaunchBound = "launch-bound";
inline constexpr std::string_view kLaunchBlocking = "launch-blocking";

// Whether runs of a kind say nothing of plans of other kinds: where the host paces the step, or
// waits for every kernel (host.launch_blocking).
inline bool is_kind_apart(std::string_view kind) {
  return kind == kLaunchBound || kind == kLaunchBlocking;
}

// kLaunchBound, kLaunchBlocking, else by what a plan does most: "expert" (the model has experts),
// "sharded" (ZeRO-3), "pipeline", "tensor", "data", "one device".
std::string plan_kind(const Model& model, const Plan& plan, const Device& device);

// A class a line; reading throws Error for what is none.
std::string write_error_classes(const std::vector<ErrorClass>& classes);
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

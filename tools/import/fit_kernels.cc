// One fit a group of kernels, each by the very mapping that `validate` scores with: a row is
// predicted by validate_row() on a device with the parameters of the moment. Cost: some thousand
// evaluations of each row, a few microseconds each.
#include "tools/import/fit_kernels.h"

#include <cmath>
#include <functional>
#include <map>
#include <set>

#include <fmt/format.h>

#include "calibrate/fit.h"
#include "sim/base/error.h"
#include "tools/validate/fields.h"
#include "tools/validate/validate.h"

namespace stepcast {
namespace {

// A parameter and where it stands in a Device.
struct Knob {
  Parameter parameter;
  std::function<void(Device&, double)> set;
};

struct KernelGroup {
  std::string name;
  std::vector<const Json*> rows;
  std::vector<double> measured;
  std::set<std::string> sources;
  std::vector<Knob> knobs;
};

using FittedValues = std::span<const double>;

Device with(const Device& device, const KernelGroup& group, FittedValues values) {
  Device changed = device;
  for (std::size_t i = 0; i < values.size(); ++i) group.knobs[i].set(changed, values[i]);
  return changed;
}

// What a person can read; the fit is no sharper.
double four_digits(double value) {
  const double scale = std::pow(10, 3 - std::floor(std::log10(std::abs(value))));
  return std::round(value * scale) / scale;
}

Residual residual_of(const std::string& name, const FitError& error, const FitError& left_out) {
  const auto per_mill = [](double share) { return std::round(share * 1000) / 1000; };
  Residual residual;
  residual.rows = name;
  residual.count = static_cast<std::int64_t>(error.count);
  residual.median_absolute_error = per_mill(error.median_absolute);
  residual.mean_absolute_error = per_mill(error.mean_absolute);
  residual.p90_absolute_error = per_mill(error.p90_absolute);
  residual.signed_bias = per_mill(error.bias);
  residual.left_out_count = static_cast<std::int64_t>(left_out.count);
  residual.left_out_median_absolute_error = per_mill(left_out.median_absolute);
  residual.left_out_signed_bias = per_mill(left_out.bias);
  return residual;
}

Residual fit_group(Device& device, const KernelGroup& group) {
  std::vector<Parameter> parameters;
  for (const Knob& knob : group.knobs) parameters.push_back(knob.parameter);
  const Predict predict = [&](FittedValues values, std::span<double> times) {
    const std::vector<Device> devices = {with(device, group, values)};
    for (std::size_t i = 0; i < group.rows.size(); ++i) {
      times[i] = validate_row(*group.rows[i], "", devices).predicted_seconds.value_or(1);
    }
  };
  Fit result = fit(parameters, group.measured, predict);
  for (double& value : result.values) value = four_digits(value);
  std::vector<double> times(group.rows.size());
  predict(result.values, times);
  device = with(device, group, result.values);
  return residual_of(group.name, fit_error(times, group.measured), result.left_out);
}

std::vector<Knob> matrix_knobs() {
  const auto knob = [](Parameter p, double MatrixKernels::*member) {
    return Knob{p, [member](Device& d, double v) { d.kernels.matrix.*member = v; }};
  };
  return {knob({"efficiency", 0.6, 0.1, 1}, &MatrixKernels::efficiency),
          knob({"burst", 1.1, 1, 2}, &MatrixKernels::burst),
          {{"burst_time", 300e-6, 1e-5, 1e-2},
           [](Device& d, double v) { d.kernels.matrix.burst_time = Seconds(v); }},
          knob({"partial_wave", 0.7, 0.05, 1}, &MatrixKernels::partial_wave)};
}

// What an attention group shows of its sizes decides what can be fitted.
struct AttentionSpread {
  bool forward = false, backward = false, together = false;
  bool plain = false, causal = false;
  std::set<double> keys, widths;
};

std::vector<Knob> attention_knobs(const std::string& name, const AttentionSpread& s) {
  std::vector<Knob> knobs;
  const auto add = [&](Parameter p, std::vector<double AttentionKernels::*> members) {
    knobs.push_back({p, [name, members](Device& d, double v) {
                       for (const auto member : members) d.kernels.attention[name].*member = v;
                     }});
  };
  using A = AttentionKernels;
  if (s.together && !s.forward && !s.backward) {
    // Only their sum is known: their ratio stays.
    knobs.push_back({{"forward and backward", 0.5, 0.05, 1}, [name](Device& d, double v) {
                       AttentionKernels& a = d.kernels.attention[name];
                       a.backward *= v / a.forward;
                       a.forward = v;
                     }});
  } else {
    if (s.forward || s.together) add({"forward", 0.5, 0.05, 1}, {&A::forward});
    if (s.backward || s.together) add({"backward", 0.45, 0.05, 1}, {&A::backward});
  }
  if (s.together) {
    add({"blocks", 1, 0.01, 20}, {&A::forward_blocks, &A::backward_blocks});
  } else {
    if (s.forward) add({"forward_blocks", 1, 0.01, 20}, {&A::forward_blocks});
    if (s.backward) add({"backward_blocks", 1, 0.01, 20}, {&A::backward_blocks});
  }
  if (s.keys.size() > 2) {
    if (s.plain) add({"keys", 190, 1, 5000}, {&A::keys});
    if (s.causal) add({"causal_keys", 470, 1, 5000}, {&A::causal_keys});
  }
  if (!s.widths.empty() && *s.widths.begin() < 128) add({"narrow", 30, 0.1, 500}, {&A::narrow});
  if (!s.widths.empty() && *s.widths.rbegin() > 128) {
    if (s.forward || s.together) add({"forward_wide", 0.1, 0.001, 5}, {&A::forward_wide});
    if (s.backward || s.together) add({"backward_wide", 0.2, 0.001, 5}, {&A::backward_wide});
  }
  return knobs;
}

// The implementation that a row is of; "" if it is no row of fused attention.
std::string attention_of(const Json& row) {
  if (text_of(row, "kind") != "attention") return "";
  const std::string kernel = text_of(row, "kernel");
  if (kernel == "pytorch" || kernel == "standard") return "";
  return kernel.empty() ? "sdp" : kernel;
}

void note(const Json& row, AttentionSpread& spread) {
  const std::string direction = text_of(row, "direction"), op = text_of(row, "op");
  const bool both = direction == "fwd+bwd";
  const bool backward = direction == "bwd" || op == "sdp_bwd";
  spread.together |= both;
  spread.backward |= backward;
  spread.forward |= !both && !backward;
  (switch_of(row, "causal").value_or(true) ? spread.causal : spread.plain) = true;
  if (const auto n = number_of(holder_of(row, "seq_len"), "seq_len")) spread.keys.insert(*n);
  for (const char* key : {"head_dim", "qk_head_dim", "v_head_dim"}) {
    if (const auto n = number_of(holder_of(row, key), key)) spread.widths.insert(*n);
  }
}

std::vector<Knob> fp8_knobs() {
  return {{{"fp8", 0.9, 0.2, 2}, [](Device& d, double v) { d.kernels.matrix.fp8 = v; }}};
}

std::vector<Knob> fp8_block_knobs() {
  return {{{"fp8_block", 0.9, 0.2, 2},
           [](Device& d, double v) { d.kernels.matrix.fp8_block = v; }}};
}

// Of a group in one node. Where the switches reduce, the rows are of NVLink SHARP, and the rings'
// bandwidth does not show in them.
std::vector<Knob> collective_knobs(const Device& device) {
  std::vector<Knob> knobs = {
      {{"start", 20e-6, 1e-7, 1e-3},
       [](Device& d, double v) { d.kernels.collectives.start = Seconds(v); }},
      {{"node_latency", 3.4e-6, 1e-7, 1e-4},
       [](Device& d, double v) { d.node_latency = Seconds(v); }}};
  if (device.nccl && device.nccl->nvls) {
    knobs.push_back({{"nvls", 1, 0.5, 1.5},
                     [](Device& d, double v) { d.kernels.collectives.nvls = v; }});
  } else {
    knobs.push_back({{"node_bandwidth_efficiency", 0.8, 0.1, 1},
                     [](Device& d, double v) { d.node_bandwidth_efficiency = v; }});
    knobs.push_back({{"ring_copy", 0.4, 0.001, 1},
                     [](Device& d, double v) { d.kernels.collectives.ring_copy = v; }});
  }
  return knobs;
}

// What a row is fitted with; "" if it is evidence for no parameter: the best of a scan is an upper
// bound, a grouped product and a cluster that was set up badly are other things.
std::string group_of(const Json& row, const ValidationRow& known) {
  if (known.kind == "attention") return "attention " + attention_of(row);
  if (known.kind == "collective") {
    const bool in_a_node = number_of(row, "nodes").value_or(1) == 1;
    return in_a_node && known.variant != "degraded" ? "collective" : "";
  }
  if (known.kind != "gemm" || has(text_of(row, "op"), "group")) return "";
  if (has(text_of(row, "notes"), "best over a scan")) return "";
  const std::string dtype = text_of(row, "dtype");
  if (!has(dtype, "fp8")) return "gemm";
  return has(dtype, "128") ? "gemm fp8 block" : "gemm fp8";
}

void mark_fitted(const std::string& group, Device& device) {
  Kernels& kernels = device.kernels;
  if (group.starts_with("gemm")) kernels.matrix.basis = Basis::kFitted;
  if (group == "collective") kernels.collectives.basis = Basis::kFitted;
  if (group.starts_with("attention ")) {
    const std::string name = group.substr(group.find(' ') + 1);
    AttentionKernels& fitted = kernels.attention.at(name);
    fitted.basis = Basis::kFitted;
    // The fastest stands for the device until somebody says otherwise.
    const bool first = kernels.usual().basis != Basis::kFitted;
    if (first || fitted.forward > kernels.usual().forward) kernels.usual_attention = name;
  }
}

}  // namespace

FittedKernels fit_kernels(const Device& device, const std::vector<Json>& rows) {
  FittedKernels fitted{device, {}, {}};
  // An implementation that rows are of must have a seat before they can be predicted.
  std::vector<Device> devices = {device};
  for (const Json& row : rows) {
    const std::string name = attention_of(row);
    if (!name.empty()) devices.front().kernels.attention.emplace(name, device.kernels.usual());
  }
  std::map<std::string, KernelGroup> groups;
  std::map<std::string, AttentionSpread> spreads;
  for (const Json& row : rows) {
    if (member(row, "parallel") != nullptr) continue;  // a training run
    const ValidationRow known = validate_row(row, "", devices);
    if (!known.covered || !known.measured_seconds) continue;
    const std::string name = group_of(row, known);
    if (name.empty()) continue;
    if (known.kind == "attention") note(row, spreads[name]);
    KernelGroup& group = groups[name];
    group.name = name;
    group.rows.push_back(&row);
    group.measured.push_back(*known.measured_seconds);
    group.sources.insert(known.source);
  }
  for (auto& [name, group] : groups) {
    if (name == "gemm") group.knobs = matrix_knobs();
    if (name == "gemm fp8") group.knobs = fp8_knobs();
    if (name == "gemm fp8 block") group.knobs = fp8_block_knobs();
    if (name == "collective") group.knobs = collective_knobs(device);
    if (spreads.contains(name)) {
      group.knobs = attention_knobs(name.substr(name.find(' ') + 1), spreads[name]);
    }
    if (group.rows.size() < 2 * group.knobs.size()) continue;
    if (spreads.contains(name)) {
      fitted.device.kernels.attention.emplace(name.substr(name.find(' ') + 1),
                                              device.kernels.usual());
    }
    fitted.residuals.push_back(fit_group(fitted.device, group));
    fitted.sources.insert(group.sources.begin(), group.sources.end());
    mark_fitted(name, fitted.device);
  }
  return fitted;
}

}  // namespace stepcast

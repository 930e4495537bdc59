// The "kernels" object of a profile. Cost: linear in the text.
#include "sim/hardware/kernels.h"

#include <fmt/format.h>

#include "sim/hardware/hardware.h"

namespace stepcast {
namespace {

constexpr double kLeast = 1e-6;    // of a share of a peak
constexpr double kKeysMax = 1e6;   // of the costs that are counted in keys, columns and blocks

Seconds not_negative(const Object& object, const char* key, Seconds otherwise) {
  const Seconds value = object.seconds(key, otherwise);
  if (!(value >= Seconds(0))) object.fail(key, "must not be negative");
  return value;
}

MatrixKernels read_matrix(const Object& object, MatrixKernels matrix, Basis basis) {
  matrix.efficiency = object.number("efficiency", matrix.efficiency, kLeast, 1);
  matrix.burst = object.number("burst", matrix.burst, 1, 10);
  matrix.burst_time = not_negative(object, "burst_time", matrix.burst_time);
  matrix.fp8 = object.number("fp8", matrix.fp8, kLeast, 10);
  matrix.fp8_block = object.number("fp8_block", matrix.fp8_block, kLeast, 10);
  matrix.fp8_sustained = object.number("fp8_sustained", matrix.fp8_sustained, 1, 10);
  matrix.partial_wave = object.number("partial_wave", matrix.partial_wave, 0, 1);
  matrix.basis = basis;
  object.done();
  return matrix;
}

AttentionKernels read_attention(const Object& object, AttentionKernels a, Basis basis) {
  a.forward = object.number("forward", a.forward, kLeast, 1);
  a.backward = object.number("backward", a.backward, kLeast, 1);
  a.keys = object.number("keys", a.keys, 0, kKeysMax);
  a.causal_keys = object.number("causal_keys", a.causal_keys, 0, kKeysMax);
  a.forward_blocks = object.number("forward_blocks", a.forward_blocks, 0, kKeysMax);
  a.backward_blocks = object.number("backward_blocks", a.backward_blocks, 0, kKeysMax);
  a.narrow = object.number("narrow", a.narrow, 0, kKeysMax);
  a.forward_wide = object.number("forward_wide", a.forward_wide, 0, kKeysMax);
  a.backward_wide = object.number("backward_wide", a.backward_wide, 0, kKeysMax);
  a.sustained = object.number("sustained", a.sustained, kLeast, 1);
  a.deterministic_waves = object.boolean("deterministic_waves", a.deterministic_waves);
  a.basis = basis;
  object.done();
  return a;
}

void read_collectives(const Object& object, Basis basis, Device& device) {
  CollectiveKernels& collectives = device.kernels.collectives;
  collectives.start = not_negative(object, "start", collectives.start);
  collectives.nvls = object.number("nvls", collectives.nvls, 0.01, 10);
  collectives.ring_copy = object.number("ring_copy", collectives.ring_copy, 0, 1);
  device.node_latency = not_negative(object, "node_latency", device.node_latency);
  device.node_bandwidth_efficiency =
      object.number("node_bandwidth_efficiency", device.node_bandwidth_efficiency, kLeast, 1);
  collectives.basis = basis;
  object.done();
}

Json attention_json(const AttentionKernels& a) {
  Json json{{"forward", a.forward},
            {"backward", a.backward},
            {"keys", a.keys},
            {"causal_keys", a.causal_keys},
            {"forward_blocks", a.forward_blocks},
            {"backward_blocks", a.backward_blocks},
            {"narrow", a.narrow},
            {"forward_wide", a.forward_wide},
            {"backward_wide", a.backward_wide}};
  if (a.sustained < 1) json["sustained"] = a.sustained;
  if (a.deterministic_waves) json["deterministic_waves"] = true;
  return json;
}

}  // namespace

std::string_view basis_name(Basis basis) {
  constexpr std::string_view kNames[kBases] = {"measured", "interpolated", "fitted", "datasheet"};
  return kNames[static_cast<std::size_t>(basis)];
}

void read_kernels(const Object& object, Basis basis, Device& device) {
  Kernels& kernels = device.kernels;
  const AttentionKernels usual = kernels.usual();
  if (object.has("memory")) kernels.memory_basis = basis;
  kernels.memory = object.number("memory", kernels.memory, kLeast, 1);
  if (object.has("matrix")) {
    kernels.matrix = read_matrix(object.object("matrix"), kernels.matrix, basis);
  }
  if (object.has("attention")) {
    const Object attention = object.object("attention");
    for (const auto& [name, value] : object.at("attention").items()) {
      kernels.attention[name] = read_attention(attention.object(name), usual, basis);
    }
  }
  kernels.usual_attention = object.string("usual_attention", kernels.usual_attention);
  if (!kernels.attention.contains(kernels.usual_attention)) {
    object.fail("usual_attention", "names no implementation of attention that is described");
  }
  if (object.has("collectives")) read_collectives(object.object("collectives"), basis, device);
  for (const char* key : {"matrix", "attention", "collectives"}) object.touch(key);
  object.done();
}

Json kernels_json(const Device& device, Basis basis) {
  const Kernels& kernels = device.kernels;
  Json json = Json::object();
  if (kernels.memory_basis == basis) json["memory"] = kernels.memory;
  if (kernels.matrix.basis == basis) {
    json["matrix"] = {{"efficiency", kernels.matrix.efficiency},
                      {"burst", kernels.matrix.burst},
                      {"burst_time", exact_seconds(kernels.matrix.burst_time)},
                      {"fp8", kernels.matrix.fp8},
                      {"fp8_block", kernels.matrix.fp8_block},
                      {"fp8_sustained", kernels.matrix.fp8_sustained},
                      {"partial_wave", kernels.matrix.partial_wave}};
  }
  for (const auto& [name, attention] : kernels.attention) {
    if (attention.basis == basis) json["attention"][name] = attention_json(attention);
  }
  if (json.contains("attention")) json["usual_attention"] = kernels.usual_attention;
  if (kernels.collectives.basis == basis) {
    json["collectives"] = {{"start", exact_seconds(kernels.collectives.start)},
                           {"nvls", kernels.collectives.nvls},
                           {"ring_copy", kernels.collectives.ring_copy},
                           {"node_latency", exact_seconds(device.node_latency)},
                           {"node_bandwidth_efficiency", device.node_bandwidth_efficiency}};
  }
  return json;
}

}  // namespace stepcast

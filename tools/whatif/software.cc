// One key after the other.
#include "tools/whatif/software.h"

#include <fmt/format.h>

namespace stepcast {

namespace {

LossKernels loss_kernels(CrossEntropy loss) {
  switch (loss) {
    case CrossEntropy::kParallel: break;
    case CrossEntropy::kMegatronFused: return LossKernels::kMegatronFused;
    case CrossEntropy::kTorch: return LossKernels::kTorch;
    case CrossEntropy::kMegatron: return LossKernels::kMegatron;
    case CrossEntropy::kTransformerEngine: return LossKernels::kFused;
  }
  return LossKernels::kParallel;
}

}  // namespace

void read_software(const Object& root, const Profile* profile, Device& device) {
  const Object object = root.object("fusion");
  Fusion& fusion = device.kernels.fusion;
  fusion.bias_gradients = object.boolean("bias_gradients", fusion.bias_gradients);
  fusion.accumulation = object.boolean("accumulation", fusion.accumulation);
  fusion.accumulation_cast = object.boolean("accumulation_cast", fusion.accumulation_cast);
  fusion.norm_gradients = object.boolean("norm_gradients", fusion.norm_gradients);
  fusion.flat_gradients = object.boolean("flat_gradients", fusion.flat_gradients);
  fusion.qkv_gradients = object.boolean("qkv_gradients", fusion.qkv_gradients);
  fusion.norms = object.boolean("norms", fusion.norms);
  fusion.rotary = object.boolean("rotary", fusion.rotary);
  fusion.scaled_rotary = object.boolean("scaled_rotary", fusion.scaled_rotary);
  fusion.gates = object.boolean("gates", fusion.gates);
  fusion.update = object.boolean("update", fusion.update);
  fusion.lookups = object.boolean("lookups", fusion.lookups);
  fusion.biases = object.boolean("biases", fusion.biases);
  fusion.softmax = object.boolean("softmax", fusion.softmax);
  fusion.heads = object.boolean("heads", fusion.heads);
  fusion.norm_sums = object.boolean("norm_sums", fusion.norm_sums);
  fusion.gelu = object.boolean("gelu", fusion.gelu);
  fusion.dropout = object.boolean("dropout", fusion.dropout);
  fusion.groups = object.boolean("groups", fusion.groups);
  fusion.permutes = object.boolean("permutes", fusion.permutes);
  fusion.routers = object.boolean("routers", fusion.routers);
  fusion.expert_biases = object.boolean("expert_biases", fusion.expert_biases);
  fusion.limits = object.boolean("limits", fusion.limits);
  fusion.casts = object.boolean("casts", fusion.casts);
  object.done();
  const Object host = root.object("host");
  for (const char* of_plan :
       {"p2p_sync", "pass_sync", "route_sync", "optimizer_sync", "launch_blocking"}) {
    host.touch(of_plan);
  }
  device.launch = host.seconds("launch", device.launch);
  if (!(device.launch >= Seconds(0))) host.fail("launch", "must not be negative");
  device.pass = host.seconds("pass", device.pass);
  if (!(device.pass >= Seconds(0))) host.fail("pass", "must not be negative");
  device.route = host.seconds("route", device.route);
  if (!(device.route >= Seconds(0))) host.fail("route", "must not be negative");
  if (host.boolean("graphs", false)) {
    use_graphs(profile == nullptr ? Probes() : profile->probes, device);
  }
  host.done();
}

Json write_software(const Device& device) {
  const Fusion& fusion = device.kernels.fusion;
  return Json{{"fusion",
               {{"bias_gradients", fusion.bias_gradients},
                {"accumulation", fusion.accumulation},
                {"accumulation_cast", fusion.accumulation_cast},
                {"norm_gradients", fusion.norm_gradients},
                {"flat_gradients", fusion.flat_gradients},
                {"qkv_gradients", fusion.qkv_gradients},
                {"norms", fusion.norms},
                {"rotary", fusion.rotary},
                {"scaled_rotary", fusion.scaled_rotary},
                {"gates", fusion.gates},
                {"update", fusion.update},
                {"lookups", fusion.lookups},
                {"biases", fusion.biases},
                {"softmax", fusion.softmax},
                {"heads", fusion.heads},
                {"norm_sums", fusion.norm_sums},
                {"gelu", fusion.gelu},
                {"dropout", fusion.dropout},
                {"groups", fusion.groups},
                {"permutes", fusion.permutes},
                {"routers", fusion.routers},
                {"expert_biases", fusion.expert_biases},
                {"limits", fusion.limits},
                {"casts", fusion.casts}}},
              {"host",
               {{"launch", exact_seconds(device.launch)},
                {"pass", exact_seconds(device.pass)},
                {"route", exact_seconds(device.route)},
                {"graphs", device.graphs}}}};
}

void suit_device(const Object& root, const Model& model, Plan& plan, Device& device) {
  Fusion& fusion = device.kernels.fusion;
  fusion.loss = loss_kernels(plan.loss);
  fusion.gradient_fill = plan.fills(kFilledProduct);
  const bool waits = plan.pass_sync || plan.optimizer_sync || plan.launch_blocking ||
                     plan.host_waits_for_messages() ||
                     (plan.host_reads_counts() && model.experts > 0);
  if (device.graphs && waits) {
    root.object("host").fail("graphs",
                             "the host waits inside the step, which no graph can hold; set graphs "
                             "to false, or p2p_sync, pass_sync, route_sync, optimizer_sync "
                             "and launch_blocking");
  }
  const Object precision = root.object("precision");
  // Volta: PyTorch's bf16 products do without the matrix units there.
  if (plan.compute == Dtype::kBf16 && !device.matrix_rate.contains(Dtype::kBf16) &&
      device.matrix_rate.contains(Dtype::kFp16)) {
    precision.fail("compute", fmt::format("{} has no matrix units for bf16; use \"fp16\"",
                                          device.name));
  }
  if (!plan.eight_bit.on()) return;
  if (!device.matrix_rate.contains(Dtype::kFp8)) {
    precision.fail("compute", fmt::format("{} has no 8-bit matrix units; use \"bf16\"",
                                          device.name));
  }
  if (!precision.has("fp8_transposes")) plan.eight_bit.transposes = device.fp8_transposes;
}

}  // namespace stepcast

// The report's half of the table, and the terms that a reader of it meets. Definitions follow the
// papers that coined the terms; they are named where there is one.
#include "tools/commands/fields.h"

namespace stepcast {
namespace {

Field entry(Form form, std::string_view path, std::string_view meaning,
            std::string_view effect = "") {
  Field result;
  result.topic = Topic::kReport;
  result.form = form;
  result.path = path;
  result.meaning = meaning;
  result.effect = effect;
  return result;
}

Field object(std::string_view path, std::string_view meaning) {
  return entry(Form::kObject, path, meaning);
}
Field number(std::string_view path, std::string_view meaning, std::string_view effect = "") {
  return entry(Form::kNumber, path, meaning, effect);
}
Field count(std::string_view path, std::string_view meaning, std::string_view effect = "") {
  return entry(Form::kCount, path, meaning, effect);
}

Field term(std::string_view name, std::string_view meaning, std::string_view effect = "") {
  Field result;
  result.path = name;
  result.meaning = meaning;
  result.effect = effect;
  return result;
}

}  // namespace

std::vector<Field> report_fields() {
  return {
      entry(Form::kText, "format", "Always \"stepcast.report/1\" in this version."),
      object("config", "The what-if as it was understood, every default filled in; it can be "
                       "forecast again."),
      object("step", "The step in time."),
      number("step.seconds", "From the first kernel to the end of the slowest rank."),
      number("step.seconds_low",
             "The low end of the range: 8 of 10 published runs of the nearest class (device and "
             "kind of plan) lie in it."),
      number("step.seconds_high", "The high end of the range."),
      entry(Form::kText, "step.range_from",
            "The published runs that the range is taken from; of a measured step, its repeats."),
      number("step.tokens_per_second_per_device", "Tokens of the step / seconds / devices."),
      number("step.mfu", "Model FLOPs utilisation: the model's FLOPs, causal attention counted "
                         "half, over the devices' peak.", "Recomputation does not count."),
      number("step.hfu", "Hardware FLOPs utilisation: FLOPs really performed over the devices' "
                         "peak, recomputation included."),
      number("step.bubble_fraction",
             "Idle time of the pipeline over the whole pipeline time, averaged over stages.",
             "Equal stages and free messages: (p - 1) / (m + p - 1)."),
      object("breakdown_seconds", "Where the slowest rank's time goes; the parts sum to "
                                  "step.seconds."),
      number("breakdown_seconds.compute", "Kernels of forward and backward."),
      number("breakdown_seconds.recompute", "Kernels that run again for backward."),
      number("breakdown_seconds.bubble", "Waiting for the previous or next stage's work."),
      number("breakdown_seconds.tensor_exposed", "Waiting for tensor-parallel collectives."),
      number("breakdown_seconds.context_exposed", "Waiting for context-parallel collectives."),
      number("breakdown_seconds.expert_exposed", "Waiting for expert-parallel collectives."),
      number("breakdown_seconds.pipeline_exposed", "Waiting for messages on the wire."),
      number("breakdown_seconds.data_exposed",
             "Waiting for gradient reduction and for gathered weights."),
      number("breakdown_seconds.optimizer", "Kernels of the gradient norm and of the update."),
      number("breakdown_seconds.other", "Waiting for the host to launch, and for slower ranks."),
      object("memory", "One device's memory: allocated (live tensors) <= reserved (what the "
                       "allocator holds for them) <= device total."),
      count("memory.capacity_bytes", "What a device has."),
      entry(Form::kSwitch, "memory.fits",
            "The device total of every stage is at most the capacity."),
      count("memory.allocated_peak_bytes", "Live bytes at their highest, of any stage."),
      count("memory.reserved_peak_bytes",
            "What PyTorch's caching allocator holds at most, of any stage.",
            "Rounding, blocks of other streams and gaps; see allocator.expandable_segments."),
      count("memory.device_total_bytes",
            "Reserved, communicators and context together, the most of any stage."),
      entry(Form::kWords, "memory.not_modelled",
            "Parts counted as zero because nothing is published of them for this device."),
      entry(Form::kList, "memory.stages", "One entry a pipeline stage."),
      count("memory.stages[].stage", "Its number, from 0."),
      count("memory.stages[].allocated_peak_bytes", "Live bytes at its highest moment."),
      count("memory.stages[].workspace_bytes",
            "Workspaces of matrix products, one a host thread; part of reserved."),
      count("memory.stages[].reserved_peak_bytes", "What the caching allocator holds at most."),
      count("memory.stages[].communicators_bytes",
            "Buffers between ranks: channels x connections of each process group in use."),
      count("memory.stages[].context_bytes",
            "The driver's context, and the code of kernels and of the collective library."),
      count("memory.stages[].device_total_bytes", "Reserved, communicators and context."),
      count("memory.stages[].allocation_retries",
            "How often in a step the allocator has to give cached memory back to get on.",
            "Each stalls the device."),
      entry(Form::kText, "memory.stages[].peak_at", "That moment: body, micro-batch and chunk.",
            "`stepcast show memory` lists what is alive then."),
      count("memory.stages[].weights_bytes", "Weights in use, at the peak."),
      count("memory.stages[].gradients_bytes", "Gradient buffers, at the peak."),
      count("memory.stages[].master_weights_bytes", "fp32 master weights, at the peak."),
      count("memory.stages[].optimizer_bytes", "Adam's moments, at the peak."),
      count("memory.stages[].activations_bytes", "Saved for backward or in flight, at the peak."),
      count("memory.stages[].buffers_bytes", "Buckets and other buffers, at the peak."),
      object("traffic", "What crosses the links."),
      object("traffic.sent_bytes_per_device", "Bytes that one device sends in a step, by axis; the "
                                              "most of any stage."),
      count("traffic.sent_bytes_per_device.tensor", "For tensor parallelism."),
      count("traffic.sent_bytes_per_device.context", "For context parallelism."),
      count("traffic.sent_bytes_per_device.expert", "For expert parallelism."),
      count("traffic.sent_bytes_per_device.pipeline", "For messages between stages."),
      count("traffic.sent_bytes_per_device.data", "For gradients and sharded state."),
      entry(Form::kList, "traffic.links", "By class of link; empty until links are modelled."),
      object("basis", "What kernel times rest on, as shares that sum to 1."),
      number("basis.measured", "Timed on the device itself."),
      number("basis.interpolated", "Between measured shapes."),
      number("basis.fitted", "From published figures."),
      number("basis.datasheet", "From data sheets and published efficiencies."),
      object("model", "The model, counted."),
      count("model.parameters", "Trainable parameters; a tied table counts once."),
      number("model.flops_per_token", "Of the model, forward and backward, causal attention half."),
      object("time_to_train", "Only where the what-if has train.tokens."),
      count("time_to_train.tokens", "Tokens to train on."),
      number("time_to_train.days", "At the forecast's rate, without interruptions."),
      number("time_to_train.device_hours", "days x 24 x devices.")};
}

std::vector<Field> terms() {
  return {
      term("1f1b", "One forward, one backward: after filling the pipeline a stage alternates, so "
                   "that at most p micro-batches are alive (Narayanan et al. 2019).",
           "Same bubble as GPipe, less memory."),
      term("gpipe", "All forwards of a step, then all backwards (Huang et al. 2019)."),
      term("interleaved", "A stage holds v chunks of layers and takes them in turn (Narayanan et "
                          "al. 2021).", "The bubble shrinks v times, messages grow v times."),
      term("bubble", "Time in which a pipeline stage waits for others to fill or drain: (p - 1) / "
                     "(m + p - 1) of the step for p equal stages and m micro-batches."),
      term("mfu", "Model FLOPs utilisation: the FLOPs that the model needs over what the devices "
                  "could do in that time (Chowdhery et al. 2022)."),
      term("hfu", "Hardware FLOPs utilisation: as mfu, but what is computed twice counts twice."),
      term("zero", "Zero Redundancy Optimizer: data-parallel ranks share the state instead of "
                   "copying it; stages 1, 2, 3 (Rajbhandari et al. 2020)."),
      term("fsdp", "Fully sharded data parallelism: ZeRO stage 3 as PyTorch has it."),
      term("recomputation", "Activation checkpointing: dropping what backward needs and computing "
                            "it again (Chen et al. 2016)."),
      term("micro-batch", "The sequences that go through a stage at once."),
      term("stage", "The ranks that hold the same layers: a coordinate on the pipeline axis."),
      term("chunk", "A stretch of layers; a stage holds one, or v of them if interleaved."),
      term("sequence parallelism", "Norms and dropouts split along the sequence between tensor "
                                   "ranks (Korthikanti et al. 2022)."),
      term("master weights", "fp32 weights that the optimizer updates; those in use are a rounded "
                             "copy (Micikevicius et al. 2017)."),
      term("mixed precision", "Compute in a 16-bit type, state in fp32: 16 bytes a parameter with "
                              "bf16 gradients and Adam."),
      term("exposed", "Communication that compute waits for; what overlaps costs no time."),
      term("all-reduce", "Every member gets the sum of all; a ring sends 2 (n - 1) / n of the "
                         "bytes a member."),
      term("all-gather", "Every member gets all parts; a ring sends (n - 1) / n of the whole."),
      term("reduce-scatter", "Every member gets its part of the sum; a ring sends (n - 1) / n."),
      term("bus bandwidth", "What a link of the ring carries, whatever the group's size "
                            "(nccl-tests)."),
      term("gqa", "Grouped-query attention: several query heads share one key-value head."),
      term("fused attention", "Scores stay on the chip; backward computes them again (Dao et al. "
                              "2022)."),
      term("resident", "Allocated before the step and after it: weights and optimizer state."),
      term("composition", "A step that ran, put together again by the simulator of what its own "
                          "instructions took: what it is off by is the simulator's error alone."),
      term("ring", "A small job of a plan's own work, whose micro-batches pass other layers in "
                   "turn, so that weights are as cold as in the plan; calibration times it."),
      term("sentinel", "A fixed piece of arithmetic, timed around what is measured: if it takes "
                       "longer, the machine has changed."),
      term("search", "All legal plans for a model, a batch and a cluster, sorted out by the least "
                     "that they hold, simulated, and put in order: `stepcast search`."),
      term("pareto front", "The plans that fit and that no other one beats: none is better in step "
                           "time, peak memory or device time without being worse in another.",
           "What is on it is a matter of taste; what is not, is not."),
      term("tie", "Plans whose ranges overlap: published runs do not say which of them is faster."),
      term("data sheet", "The vendor's peak rates; this program applies published efficiencies.")};
}

}  // namespace stepcast

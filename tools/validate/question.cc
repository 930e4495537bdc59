// A run's layout and sharding as a what-if. What its framework does without being told comes from
// configs/frameworks; only what the row states is written here. Linear in the row.
#include "tools/validate/question.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "sim/base/error.h"
#include "tools/validate/device.h"
#include "tools/validate/experts.h"
#include "tools/validate/fields.h"
#include "tools/validate/refusals.h"
#include "tools/whatif/framework.h"

namespace stepcast {
namespace {

using Assumed = std::vector<std::string>;

constexpr int kBoxMost = 16;  // devices; more are a rack

// -------------------------------------------------------------------------------------- parallel

struct Degrees {
  std::int64_t gpus = 0, tensor = 1, context = 1, pipeline = 1, data = 1, virtual_stages = 1;
};

// Of GPUs = tensor x context x pipeline x data, what is not stated follows from what is.
Degrees read_degrees(const Json& row, Assumed& assumed) {
  const auto gpus = stated_count(row, "hardware", "gpus_total");
  auto tensor = stated_count(row, "parallel", "tp");
  auto pipeline = stated_count(row, "parallel", "pp");
  const auto data = stated_count(row, "parallel", "dp");
  if (!tensor && !pipeline) throw Error("parallel", "tp and pp are not stated");
  if (!gpus && !data) throw Error("hardware.gpus_total", "the GPU count is not known");
  const std::int64_t context = stated_count(row, "parallel", "cp").value_or(1);
  if (context > kRanksMax) throw Error("parallel.cp", "too many ranks");
  for (auto* degree : {&tensor, &pipeline}) {
    if (*degree) continue;
    const std::int64_t others =
        (degree == &tensor ? *pipeline : *tensor) * context * data.value_or(1);
    *degree = gpus && data && *gpus % others == 0 ? *gpus / others : 1;
    assumed.push_back(fmt::format("{} ({})", degree == &tensor ? "tp" : "pp", **degree));
  }
  Degrees degrees;
  degrees.tensor = *tensor;
  degrees.pipeline = *pipeline;
  degrees.context = context;
  const double model_ranks = static_cast<double>(*tensor) * static_cast<double>(context) *
                             static_cast<double>(*pipeline);
  const double ranks = model_ranks * static_cast<double>(data.value_or(1));
  if (ranks > static_cast<double>(kRanksMax)) throw Error("parallel", "too many ranks");
  degrees.gpus = gpus.value_or(static_cast<std::int64_t>(ranks));
  degrees.data = data.value_or(degrees.gpus / (*tensor * context * *pipeline));
  if (!gpus) assumed.push_back(fmt::format("gpus_total ({})", degrees.gpus));
  if (degrees.gpus != *tensor * context * *pipeline * degrees.data || degrees.data < 1) {
    const std::string shared = context > 1 ? fmt::format(" x cp {}", context) : std::string();
    throw Error("parallel", fmt::format("tp {}{} x pp {} x dp {} are not the {} GPUs", *tensor,
                                        shared, *pipeline, degrees.data, degrees.gpus));
  }
  return degrees;
}

// The schedule's name; sets virtual_stages.
std::string read_schedule(const Json& row, Degrees& degrees, Assumed& assumed) {
  if (degrees.pipeline == 1) return "1f1b";
  const std::string text = lower(text_of(section_of(row, "parallel"), "schedule"));
  const auto stated = stated_count(row, "parallel", "virtual_pp");
  degrees.virtual_stages = stated.value_or(1);
  if (text == "gpipe") return text;
  const bool interleaved = has(text, "interleaved");
  if (!text.empty() && !interleaved && text != "1f1b") {
    throw Error("parallel.schedule", fmt::format("{} is not built", text));
  }
  if (interleaved && !stated) {
    const std::int64_t layers = stated_count(row, "model", "layers").value_or(1);
    degrees.virtual_stages = layers % (2 * degrees.pipeline) == 0 ? 2 : 1;
    assumed.push_back(fmt::format("virtual_pp ({})", degrees.virtual_stages));
  } else if (text.empty()) {
    assumed.emplace_back(degrees.virtual_stages > 1 ? "schedule (interleaved)"
                                                    : "schedule (1f1b)");
  }
  return degrees.virtual_stages > 1 ? "interleaved" : "1f1b";
}

// Layers of each chunk: "even", "balanced", or a list.
Json stages_question(const Json& row, const Degrees& degrees, Assumed& assumed) {
  const Json& flags = flags_of(row);
  const Json& recipe = section_of(section_of(section_of(row, "software"), "extra"), "recipe");
  if (member(flags, "pipeline-model-parallel-layout") != nullptr ||
      member(section_of(section_of(row, "parallel"), "extra"), "layout") != nullptr ||
      member(recipe, "pp_layout") != nullptr) {
    throw Error("parallel.extra.layout", "layers laid out by a pattern are not mapped");
  }
  const std::int64_t layers = stated_count(row, "model", "layers").value_or(1);
  const std::int64_t chunks = degrees.pipeline * degrees.virtual_stages;
  const auto first = count_of(flags, "decoder-first-pipeline-num-layers");
  const auto last = count_of(flags, "decoder-last-pipeline-num-layers");
  const std::int64_t before = switch_of(flags, "account-for-embedding-in-pipeline-split") == true;
  const std::int64_t after = switch_of(flags, "account-for-loss-in-pipeline-split") == true;
  if (degrees.pipeline > 1 && (first || last || before + after > 0)) {
    // Megatron-LM, transformer_block.py: what the ends have is given, the rest is shared evenly;
    // over virtual stages too, where embedding and loss count as a layer each.
    const std::int64_t each = (layers + before + after) / chunks;
    const std::int64_t at_first = first.value_or(each - before);
    const std::int64_t at_last = last.value_or(each - after);
    const std::int64_t middle = chunks - 2;
    const std::int64_t rest = layers - at_first - at_last;
    const bool shared = !first && !last && (layers + before + after) % chunks == 0;
    if ((degrees.virtual_stages == 1 || shared) && middle >= 0 && rest >= 0 &&
        (middle == 0 ? rest == 0 : rest % middle == 0)) {
      Json stages = Json::array({at_first});
      for (std::int64_t i = 0; i < middle; ++i) stages.push_back(rest / middle);
      stages.push_back(at_last);
      return stages;
    }
    throw Error("software.extra.flags", "this uneven layout of layers is not mapped");
  }
  if (chunks == 1 || layers % chunks == 0) return "even";
  const std::string framework = lower(text_of(section_of(row, "software"), "framework"));
  const bool bridge = has(framework, "megatron-bridge");
  if ((degrees.virtual_stages > 1 || bridge) && (layers + 2) % chunks == 0) {
    // Megatron-LM interleaves layers that do not divide only where embedding and loss count as one
    // each (arguments.py, account_for_embedding_in_pipeline_split). Megatron-Core shares out no
    // others either; the recipe of Megatron-Bridge for 94 layers (qwen3_moe.py) has both.
    Json stages = Json::array();
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      const bool end = chunk == 0 || chunk + 1 == chunks;
      stages.push_back((layers + 2) / chunks - (end ? 1 : 0));
    }
    assumed.emplace_back("stages (embedding and loss count as layers)");
    return stages;
  }
  const char* layout = degrees.virtual_stages > 1 ? "balanced" : "even";
  assumed.push_back(fmt::format("stages ({})", layout));
  return layout;
}

Json parallel_question(const Json& row, Degrees& degrees, Assumed& assumed) {
  const Json& section = section_of(row, "parallel");
  Json parallel = {{"tensor", degrees.tensor}, {"pipeline", degrees.pipeline},
                   {"data", degrees.data}};
  if (degrees.context > 1) parallel["context"] = degrees.context;
  if (degrees.context > 1 && shares_heads(row)) {
    parallel["context_exchange"] = "all_to_all";
  }
  if (degrees.tensor > 1) {
    const auto sequence = switch_of(section, "sequence_parallel");
    if (!sequence) assumed.emplace_back("sequence_parallel (no)");
    parallel["sequence_parallel"] = sequence.value_or(false);
    const std::string overlap =
        lower(text_of(section_of(section_of(row, "software"), "extra"), "overlap"));
    const auto pieces = switch_of(flags_of(row), "tp-comm-overlap");
    const bool alone = has(overlap, "no tp");
    if (alone) parallel["tensor_overlap"] = false;
    if (alone || pieces == false) parallel["tensor_pieces"] = 1;
    if (!alone && pieces == true && sequence == true) {
      // PyTorch's fused products (torch/distributed/_symmetric_memory, _pipelined_all_gather_and_
      // consume) take a part from each rank; TransformerEngine's userbuffers have num_splits = 4.
      const std::string framework = lower(text_of(section_of(row, "software"), "framework"));
      const bool a_rank_each = has(framework, "titan");
      parallel["tensor_pieces"] = a_rank_each ? degrees.tensor : 4;
      parallel["tensor_overlap"] = true;
    }
  }
  if (degrees.pipeline == 1) return parallel;
  const std::string schedule = read_schedule(row, degrees, assumed);
  parallel["schedule"] = schedule;
  parallel["virtual_stages"] = degrees.virtual_stages;
  parallel["stages"] = stages_question(row, degrees, assumed);
  const std::string stated =
      lower(text_of(section, "schedule") + " " +
            text_of(section_of(section_of(row, "software"), "extra"), "overlap"));
  if (has(stated, "no p2p overlap") || has(stated, "sync p2p")) {
    parallel["pipeline_overlap"] = false;
  }
  return parallel;
}

// -------------------------------------------------------------------------------------- sharding

// "FSDP2 shard=8", "FSDP=128 x DP=1", "HSDP (shard in node, replicate across)": the shard group.
std::optional<std::int64_t> shard_group_of(const std::string& mode, std::int64_t per_node) {
  if (mode.starts_with("HSDP")) return per_node;
  for (const std::string_view key : {"shard=", "FSDP="}) {
    const std::size_t at = mode.find(key);
    if (at == std::string::npos) continue;
    std::int64_t value = 0;
    const char* begin = mode.data() + at + key.size();
    if (std::from_chars(begin, mode.data() + mode.size(), value).ec == std::errc()) return value;
  }
  return std::nullopt;
}

Json sharding_question(const Json& row, const Degrees& degrees, std::int64_t per_node,
                       Assumed& assumed) {
  const std::int64_t data = degrees.data, copies = degrees.context * data;
  const Json& section = section_of(row, "parallel");
  const Json& flags = flags_of(row);
  const std::string mode = text_of(section, "fsdp_mode");
  Json sharding = Json::object();
  const Json* stated = member(section, "zero_stage");
  const auto stage = count_of(section, "zero_stage");
  if (stated == nullptr) {
    if (copies > 1) assumed.emplace_back("zero_stage (0)");
  } else if (!stage && *stated != 0 && *stated != "0") {
    throw Error("parallel.zero_stage", "must be 0, 1, 2 or 3");
  }
  sharding["zero"] = stage.value_or(0);
  if (mode == "SHARD_GRAD_OP") {  // PyTorch's: sharded at rest, whole from forward to backward
    sharding["zero"] = 3;
    sharding["reshard_after_forward"] = false;
  }
  if (copies == 1) return sharding;
  auto group = shard_group_of(mode, per_node);
  const auto instances = count_of(flags, "num-distributed-optimizer-instances");
  if (instances && *instances > 0 && data % *instances == 0) group = data / *instances;
  if (group && *group >= 1 && *group < data) sharding["shard_group"] = *group;
  if (mode.starts_with("FSDP+DP")) assumed.emplace_back("shard_group (all of data)");
  const std::string overlap =
      text_of(section_of(section_of(row, "software"), "extra"), "overlap");
  if (has(overlap, "no grad-reduce") || overlap.starts_with("none")) {
    sharding["overlap"] = false;
  } else if (switch_of(flags, "overlap-grad-reduce") == true || sharding["zero"] == 3 ||
             text_of(flags, "DDP-impl") == "torch") {  // Megatron-LM until 2022: "local" waits
    sharding["overlap"] = true;
  } else if (!flags.empty()) {
    sharding["overlap"] = false;  // the whole command line is there, and does not ask for it
  }
  return sharding;
}

// ----------------------------------------------------------------------------------------- batch

Json batch_question(const Json& row, std::int64_t data, Assumed& assumed) {
  const auto sequence = stated_count(row, "model", "seq_len");
  auto global = stated_count(row, "parallel", "global_batch");
  auto micro = stated_count(row, "parallel", "micro_batch");
  const auto steps = stated_count(row, "parallel", "grad_accumulation");
  constexpr std::int64_t kMost = 1'000'000'000;
  for (const auto& value : {sequence, global, micro, steps}) {
    if (value.value_or(1) > kMost) throw Error("parallel", "a batch beyond what can be counted");
  }
  if (!sequence) throw Error("model.seq_len", "is not stated");
  if (!micro && global && steps && *global % (data * *steps) == 0) {
    micro = *global / (data * *steps);
  }
  if (!micro) {
    micro = 1;
    assumed.emplace_back("micro_batch (1)");
  }
  if (!global && steps) global = *micro * data * *steps;
  if (!global) throw Error("parallel.global_batch", "is not stated");
  if (switch_of(section_of(section_of(row, "parallel"), "extra"), "micro_batch_is_assumed") ==
      true) {
    assumed.emplace_back("micro_batch (by the row)");
  }
  Json batch = {{"sequence_length", *sequence}, {"micro", *micro}, {"global", *global}};
  const Json& extra = section_of(section_of(row, "model"), "extra");
  if (const auto document = count_of(extra, "document_length")) {
    batch["document_length"] = *document;
  }
  return batch;
}

// --------------------------------------------------------------------------------------- cluster

const Device& run_device(const Json& row, std::int64_t gpus, const Shipped& shipped,
                         Assumed& assumed) {
  const std::string gpu = text_of(section_of(row, "hardware"), "gpu");
  if (gpu.empty()) throw Error("hardware.gpu", "is not stated");
  const NamedDevice named = find_device(gpu, shipped.devices);
  if (named.device == nullptr) {
    throw Error("hardware.gpu",
                fmt::format("no device is shipped for {}", gpu.substr(0, gpu.find(" ("))));
  }
  if (gpus > 1 && !named.same_links) {
    throw Error("hardware.gpu", fmt::format("no device has the links of {}", gpu));
  }
  if (!named.assumed.empty()) assumed.push_back(named.assumed);
  return *named.device;
}

// A row's node may be a tray of a rack, all of which is one NVLink domain: the box here. What does
// not fit in one is shared out evenly.
std::int64_t devices_per_box(const Json& row, std::int64_t gpus, const Device& device,
                             Assumed& assumed) {
  const auto stated = stated_count(row, "hardware", "gpus_per_node");
  if (!stated) {
    if (gpus > 1) assumed.push_back(fmt::format("gpus_per_node ({})", device.devices_per_node));
    return device.devices_per_node;
  }
  constexpr std::int64_t kTray = 4;
  if (*stated > kTray || device.devices_per_node <= kBoxMost || gpus <= *stated) return *stated;
  std::int64_t box = std::min<std::int64_t>(gpus, device.devices_per_node);
  while (gpus % box != 0) --box;
  if (box < gpus) assumed.push_back(fmt::format("NVLink domain (of {} devices)", box));
  return box;
}

Json cluster_question(const Json& row, std::int64_t gpus, std::int64_t per_node,
                      const Device& device, Assumed& assumed) {
  const Json& hardware = section_of(row, "hardware");
  if (has(lower(text_of(hardware, "intra_node_link")), "pcie")) {
    throw Error("hardware.intra_node_link", "nodes linked by PCIe are not mapped");
  }
  if (gpus <= per_node) return fmt::format("{}-1x{}", device.name, gpus);
  if (gpus % per_node != 0) {
    throw Error("hardware.gpus_per_node",
                fmt::format("{} GPUs do not fill nodes of {}", gpus, per_node));
  }
  const std::int64_t nodes = gpus / per_node;
  const std::string text = text_of(hardware, "inter_node_link");
  const auto link = read_link(text, device.nics_per_node, static_cast<int>(per_node));
  if (!link || has(lower(text), "not stated")) {
    assumed.emplace_back("inter_node_link (the standard box's)");
  }
  const auto measured = number_of(hardware, "all_reduce_gb_per_s");
  if (!link && !measured) return fmt::format("{}-{}x{}", device.name, nodes, per_node);
  Json fabric = Json::object();
  if (link) {
    const int bits = static_cast<int>(link->rate.value * 8 / 1e9 + 0.5);
    fabric["nics_per_node"] = link->cards;
    fabric["nic_bandwidth"] = fmt::format("{} Gb/s", bits);
  }
  if (measured) {
    // The source timed its own fabric: the bus bandwidth of a large all-reduce, whatever the number
    // of ranks, is what the cards of a node send together (NVIDIA/nccl-tests doc/PERFORMANCE.md).
    const double wires =
        link ? link->rate.value * link->cards : device.nic_bandwidth.value * device.nics_per_node;
    fabric["nic_efficiency"] = std::min(1.0, *measured * 1e9 / wires);
  }
  return {{"device", device.name},
          {"nodes", nodes},
          {"devices_per_node", per_node},
          {"fabric", std::move(fabric)}};
}

Json without_nulls(const Json& object) {
  Json kept = Json::object();
  for (const auto& [key, value] : object.items()) {
    if (!value.is_null()) kept[key] = value;
  }
  return kept;
}

}  // namespace

const Json& section_of(const Json& row, std::string_view key) {
  static const Json nothing = Json::object();
  const Json* found = member(row, key);
  return found != nullptr && found->is_object() ? *found : nothing;
}

const Json& flags_of(const Json& row) {
  return section_of(section_of(section_of(row, "software"), "extra"), "flags");
}

std::optional<std::int64_t> stated_count(const Json& row, std::string_view section,
                                         std::string_view key) {
  const Json& object = section_of(row, section);
  const Json* found = member(object, key);
  if (found == nullptr || *found == 0 || *found == "") return std::nullopt;
  if (const auto count = count_of(object, key)) return count;
  throw Error(fmt::format("{}.{}", section, key), "is not a count above 0");
}

RunQuestion run_question(const Json& row, const Shipped& shipped) {
  RunQuestion question;
  Assumed& assumed = question.assumed;
  // The model's head first, what the row cannot be asked for after it: the reason that is told
  // should be the deepest.
  refuse_software(row);
  const std::int64_t tensor = stated_count(row, "parallel", "tp").value_or(1);
  if (tensor > kRanksMax) throw Error("parallel.tp", "too many ranks");
  Json model = model_question(row, shipped.models, assumed);
  Json precision = precision_question(row, assumed);
  refuse_layout(row);
  refuse_experts(row, tensor);
  const Device& device = run_device(row, stated_count(row, "hardware", "gpus_total").value_or(1),
                                    shipped, assumed);
  Degrees degrees = read_degrees(row, assumed);
  const std::int64_t per_node = devices_per_box(row, degrees.gpus, device, assumed);
  if (per_node > kRanksMax) throw Error("hardware.gpus_per_node", "too many GPUs");
  Json& what_if = question.what_if;
  what_if = {{"framework", nullptr},
             {"model", std::move(model)},
             {"cluster", cluster_question(row, degrees.gpus, per_node, device, assumed)},
             {"batch", batch_question(row, degrees.data, assumed)},
             {"parallel", parallel_question(row, degrees, assumed)},
             {"sharding", sharding_question(row, degrees, per_node, assumed)},
             {"recompute", recompute_question(row, assumed)},
             {"precision", std::move(precision)},
             {"attention", attention_question(row)},
             {"loss", loss_question(row)},
             {"allocator", Json::object()}};
  ask_experts(row, tensor, what_if, assumed);
  if (const auto stated = count_of(flags_of(row), "make-vocab-size-divisible-by")) {
    what_if["vocabulary_multiple"] = *stated;
  }
  const Json fusion = fusion_question(row);
  if (!fusion.empty()) what_if["fusion"].update(fusion);
  const std::string kernel = attention_kernel_question(row, device);
  if (!kernel.empty()) what_if["attention_kernel"] = kernel;
  const std::string name = text_of(section_of(row, "software"), "framework");
  const Framework* framework = published_framework(shipped.frameworks, name, month_of(row));
  if (framework == nullptr) {
    what_if["dropout"] = false;  // what published configurations of today do
  } else {
    what_if["framework"] = framework->name;
    const Json* engine = value_at(framework->defaults, "buffers.gather_buffer");
    const Json buffers = buffers_question(row, engine != nullptr && *engine == true, device);
    if (!buffers.empty()) what_if["buffers"] = buffers;
  }
  // Megatron-Core's own CUDA graphs, of layers or of the whole iteration: the host issues those.
  const Json& recipe = section_of(section_of(section_of(row, "software"), "extra"), "recipe");
  const std::string graphs = text_of(recipe, "cuda_graph_impl");
  const bool whole = graphs == "local" || graphs == "full_iteration";
  // Or of parts of a layer: what goes with a router.
  const Json* scope = member(recipe, "cuda_graph_scope");
  const bool routed = scope != nullptr && has(scope->dump(), "moe_router");
  if (whole) what_if["host"]["launch"] = "0 us";
  if (whole && member(what_if, "capacity_factor") != nullptr) {
    what_if["host"]["route_sync"] = false;
  }
  if (whole || routed) what_if["host"]["route"] = "0 us";
  const Json& run = section_of(section_of(row, "software"), "extra");
  if (const auto scan = switch_of(run, "scan_layers")) what_if["scan_layers"] = *scan;
  if (switch_of(run, "launch_blocking") == true) {
    what_if["host"]["launch_blocking"] = true;
    what_if["parallel"]["pipeline_overlap"] = false;
  }
  const Json& extra = section_of(section_of(row, "model"), "extra");
  if (const auto dropout = switch_of(extra, "dropout")) what_if["dropout"] = *dropout;
  ask_deterministic(row, framework, device, what_if);
  note_filled_in(framework, what_if, assumed);
  what_if = without_nulls(what_if);
  const bool micro_stated = stated_count(row, "parallel", "micro_batch") ||
                            stated_count(row, "parallel", "grad_accumulation");
  question.others = other_choices(row, what_if, micro_stated);
  return question;
}

}  // namespace stepcast

// The rules of legal plans, as values: the search asks about many plans and wants no exceptions.
// Each rule names its numbers and the nearest choice that it would allow; finding that is a walk
// over divisors, only done where a rule is broken.
#include "models/plan.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/attention_rules.h"
#include "models/choices.h"
#include "models/expert_rules.h"
#include "sim/base/error.h"
#include "sim/program/pieces.h"
#include "sim/program/program.h"

namespace stepcast {

namespace {

using Trouble = std::optional<PlanTrouble>;

// No sum of bytes may overflow, however absurd the plan: an upper estimate has to stay below this.
constexpr double kActivationBytesMax = 0x1p60;
constexpr double kElementsMax = 0x1p49;  // of one tensor; a Job's text allows twice that

Trouble trouble(std::string_view section, std::string_view key, std::string what) {
  return PlanTrouble{std::string(section), std::string(key), std::move(what)};
}

Trouble degree_trouble(const Plan& plan) {
  const std::pair<const char*, std::int64_t> degrees[] = {
      {"tensor", plan.tensor}, {"context", plan.context},
      {"expert", plan.expert}, {"pipeline", plan.pipeline},
      {"data", plan.data},     {"virtual_stages", plan.virtual_stages}};
  for (const auto& [key, degree] : degrees) {
    if (degree < 1)
      return trouble("parallel", key, fmt::format("must be at least 1, is {}", degree));
  }
  if (plan.ranks() > kRanksMax) {
    return trouble("parallel", "data",
                   fmt::format("{} x data {} are more than {} ranks", model_degrees_text(plan),
                               plan.data, kRanksMax));
  }
  return std::nullopt;
}

// Each context rank has two stretches of the sequence (Batch in sim/program/program.h), of which
// tensor ranks take equal parts under sequence parallelism.
Trouble context_trouble(const Plan& plan) {
  if (plan.context == 1) return std::nullopt;
  const std::int64_t stretches = 2 * plan.context;
  if (plan.sequence_length % stretches != 0) {
    return trouble("batch", "sequence_length",
                   fmt::format("context {} cuts the sequence into {} stretches, but {} is not a "
                               "multiple of that; use {}",
                               plan.context, stretches, plan.sequence_length,
                               nearest_multiples(plan.sequence_length, stretches)));
  }
  if (plan.attended() < plan.sequence_length) {
    return trouble("batch", "document_length",
                   "documents packed into a sequence that context ranks share are not covered yet; "
                   "set it to 0, or parallel.context to 1");
  }
  if (!plan.fused_attention) {
    return trouble("parallel", "context",
                   "unfused attention takes the scores of a whole sequence; set attention to "
                   "\"fused\", or context to 1");
  }
  return std::nullopt;
}

// What is exchanged in pieces is what sequence parallelism gathers and scatters.
Trouble pieces_trouble(const Plan& plan) {
  if (plan.tensor_pieces == 1) return std::nullopt;
  if (plan.tensor_pieces < 1 || plan.tensor_pieces > kPiecesMax) {
    return trouble("parallel", "tensor_pieces",
                   fmt::format("must be 1 to {}, is {}", kPiecesMax, plan.tensor_pieces));
  }
  if (!plan.sequence_parallel || !plan.tensor_overlap) {
    return trouble("parallel", "tensor_pieces",
                   fmt::format("exchanges in {} pieces need sequence_parallel and tensor_overlap; "
                               "set both to true, or tensor_pieces to 1",
                               plan.tensor_pieces));
  }
  const std::int64_t tokens = plan.tokens();
  if (tokens % plan.tensor_pieces != 0) {
    return trouble("parallel", "tensor_pieces",
                   fmt::format("{} tokens of a micro-batch are not {} equal pieces; use {}", tokens,
                               plan.tensor_pieces, nearest_divisors(plan.tensor_pieces, tokens)));
  }
  return std::nullopt;
}

Trouble pipeline_trouble(const Plan& plan) {
  const bool interleaved = plan.schedule == PipelineSchedule::kInterleaved;
  if (plan.virtual_stages > 1 && !interleaved) {
    return trouble("parallel", "schedule",
                   fmt::format("virtual_stages {} needs the schedule \"interleaved\"; or set "
                               "virtual_stages to 1",
                               plan.virtual_stages));
  }
  if (interleaved && plan.pipeline < 2) {
    return trouble("parallel", plan.virtual_stages > 1 ? "virtual_stages" : "schedule",
                   fmt::format("an interleaved schedule (virtual_stages {}) needs pipeline 2 or "
                               "more, has pipeline {}; or set virtual_stages to 1 and the schedule "
                               "to \"1f1b\"",
                               plan.virtual_stages, plan.pipeline));
  }
  const char* waits = plan.launch_blocking ? "launch_blocking" : "p2p_sync";
  if (interleaved && (plan.host_waits_for_messages() || plan.pass_sync)) {
    return trouble("host", plan.host_waits_for_messages() ? waits : "pass_sync",
                   "an interleaved schedule in which the host waits exchanges messages of both "
                   "directions at once, which is not covered yet; set p2p_sync, pass_sync and "
                   "launch_blocking to false");
  }
  if (plan.host_waits_for_messages() && plan.pipeline_overlap) {
    return trouble("host", waits,
                   fmt::format("a host that waits for every message lets nothing run beside one; "
                               "set parallel.pipeline_overlap to false, or {} to false",
                               waits));
  }
  const std::int64_t chunks = plan.pipeline * plan.virtual_stages;
  if (plan.layout == StageLayout::kGiven && std::ssize(plan.stages) != chunks) {
    return trouble("parallel", "stages",
                   fmt::format("lists {} chunks, but pipeline {} x virtual_stages {} = {}",
                               plan.stages.size(), plan.pipeline, plan.virtual_stages, chunks));
  }
  return std::nullopt;
}

// Where the host waits for every kernel, nothing is there to run beside another.
Trouble launch_trouble(const Plan& plan, const Model& model) {
  if (!plan.launch_blocking) return std::nullopt;
  if (model.experts > 0) {
    return trouble("host", "launch_blocking",
                   "a host that waits for each of the many kernels of experts is not covered yet; "
                   "set it to false");
  }
  if (plan.tensor_pieces > 1) {
    return trouble("host", "launch_blocking",
                   fmt::format("lets no exchange run in pieces beside a product; set it to false, "
                               "or parallel.tensor_pieces {} to 1",
                               plan.tensor_pieces));
  }
  return std::nullopt;
}

Trouble batch_trouble(const Plan& plan) {
  if (plan.sequence_length < 1 || plan.micro_batch < 1) {
    return trouble("batch", plan.micro_batch < 1 ? "micro" : "sequence_length",
                   "must be at least 1");
  }
  if (plan.document_length < 0 || plan.sequence_length % plan.attended() != 0) {
    return trouble("batch", "document_length",
                   fmt::format("sequences of {} tokens are not packed of documents of {}; use {}",
                               plan.sequence_length, plan.document_length,
                               nearest_divisors(plan.document_length, plan.sequence_length)));
  }
  if (plan.attended() < plan.sequence_length && !plan.fused_attention) {
    return trouble("batch", "document_length",
                   "unfused attention masks the whole sequence; set attention to \"fused\"");
  }
  const std::int64_t unit = plan.micro_batch * plan.data;
  if (plan.global_batch < unit || plan.global_batch % unit != 0) {
    return trouble("batch", "global",
                   fmt::format("global batch {} is not a multiple of micro {} x data {} = {}; use "
                               "{}",
                               plan.global_batch, plan.micro_batch, plan.data, unit,
                               nearest_multiples(plan.global_batch, unit)));
  }
  const std::int64_t chunks = plan.pipeline * plan.virtual_stages;
  // A forward and a backward call each, a wait of the host behind either, and a few a chunk for the
  // optimizer.
  const std::int64_t calls = plan.host_waits_for_messages() ? 4 : 2;
  const std::int64_t most = (kCallsMax - 8 * chunks) / (calls * chunks);
  if (plan.micro_batches() > most) {
    return trouble("batch", "global",
                   fmt::format("{} micro-batches through {} chunks are too many to write down; at "
                               "most {}",
                               plan.micro_batches(), chunks, most));
  }
  const std::int64_t parts = plan.context * plan.tensor;
  if (plan.sequence_parallel && plan.sequence_length % parts != 0) {
    const std::string context =
        plan.context > 1 ? fmt::format("context {} x ", plan.context) : std::string();
    return trouble("batch", "sequence_length",
                   fmt::format("sequence_parallel splits the sequence, but {} is not a multiple of "
                               "{}tensor {}; use {}",
                               plan.sequence_length, context, plan.tensor,
                               nearest_multiples(plan.sequence_length, parts)));
  }
  return std::nullopt;
}

Trouble sharding_trouble(const Plan& plan) {
  if (plan.zero < 0 || plan.zero > 3) {
    return trouble("sharding", "zero", fmt::format("must be 0, 1, 2 or 3, is {}", plan.zero));
  }
  if (plan.bucket.count < 1) return trouble("sharding", "bucket", "must be at least one byte");
  if (plan.shard_group > 0 && plan.data % plan.shard_group != 0) {
    return trouble("sharding", "shard_group",
                   fmt::format("data {} is not a multiple of shard_group {}; use {}", plan.data,
                               plan.shard_group, nearest_divisors(plan.shard_group, plan.data)));
  }
  if (plan.zero == 0 && plan.replicas() > 1) {
    return trouble("sharding", "shard_group",
                   fmt::format("shard_group {} shards nothing under zero 0; set zero to 1, 2 or 3, "
                               "or leave shard_group out",
                               plan.shard_group));
  }
  return std::nullopt;
}

Trouble precision_trouble(const Plan& plan) {
  const EightBit& eight_bit = plan.eight_bit;
  if (!eight_bit.on()) return std::nullopt;
  if (plan.compute != Dtype::kBf16) {
    return trouble("precision", "compute", "8-bit products stand among bf16 values only");
  }
  if (!eight_bit.weights) return std::nullopt;
  if (eight_bit.blocks()) {
    return trouble("precision", "fp8_weights",
                   "weights scaled in blocks are quantised along both sides, which takes them in "
                   "16 bits; set it to false, or scaling to \"tensor\" or \"delayed\"");
  }
  if (!plan.master) {
    return trouble("precision", "master",
                   "8-bit weights need fp32 ones that the optimizer updates");
  }
  return std::nullopt;
}

// Of the layers without experts; 0: there are none.
std::int64_t dense_ffn(const Model& model) {
  return model.experts == 0 || model.dense_layers > 0 ? model.ffn : 0;
}

// cuBLASLt takes 8-bit operands whose sides are multiples of 16.
Trouble eight_bit_trouble(const Plan& plan, const Model& model) {
  constexpr std::int64_t kUnit = 16;
  if (!plan.eight_bit.on()) return std::nullopt;
  const std::pair<const char*, std::int64_t> sides[] = {
      {"hidden size", model.hidden},
      {"width of the queries", model.query_width() / plan.tensor},
      {"width of the keys", model.kv_width() / plan.tensor},
      {"width of the values", model.result_width() / plan.tensor},
      {"number of latents of keys", model.kv_rank},
      {"number of latents of queries", model.q_rank},
      {"rotated width", model.rotary_dim},
      {"width of the FFN", dense_ffn(model) / plan.tensor},
      {"width of the shared expert", model.shared_ffn / plan.tensor},
      {"width of an expert", model.expert_ffn / plan.expert_tensor}};
  for (const auto& [name, side] : sides) {
    if (side % kUnit == 0) continue;
    return trouble("precision", "compute",
                   fmt::format("the {} on a rank, {}, is no multiple of {}, as 8-bit products need "
                               "it; use bf16",
                               name, side, kUnit));
  }
  return std::nullopt;
}

// Unfused attention's batched products read their heads out of one packed tensor.
Trouble attention_trouble(const Plan& plan) {
  if (plan.fused_qkv || plan.fused_attention) return std::nullopt;
  return trouble("", "fused_qkv",
                 "unfused attention reads queries, keys and values as one product makes them; set "
                 "it to true, or attention to \"fused\"");
}

// One loop over all layers keeps the same of each.
Trouble loop_trouble(const Plan& plan) {
  if (!plan.scan_layers || plan.recompute_layers == 0) return std::nullopt;
  return trouble("", "scan_layers",
                 "layers in one loop are all run again or none: leave \"layers\" of recompute out");
}

// Tensor ranks hold whole heads, whole key-value heads and equal parts of the FFN.
Trouble tensor_trouble(const Plan& plan, const Model& model) {
  const std::int64_t ffn = std::gcd(dense_ffn(model), model.shared_ffn);
  const std::int64_t legal = std::gcd(std::gcd(model.heads, model.kv_heads), ffn);
  const std::pair<const char*, std::int64_t> sizes[] = {
      {"heads", model.heads},
      {"key-value heads", model.kv_heads},
      {"columns of the FFN", dense_ffn(model)},
      {"columns of the shared expert", model.shared_ffn}};
  for (const auto& [name, size] : sizes) {
    if (size % plan.tensor == 0) continue;
    return trouble("parallel", "tensor",
                   fmt::format("{} {} cannot be divided by tensor {}; use {}", size, name,
                               plan.tensor, divisors_text(legal)));
  }
  return std::nullopt;
}

// All-to-alls give each context rank whole heads of the packed queries, keys and values, or of
// each.
Trouble shared_heads_trouble(const Plan& plan, const Model& model) {
  if (!plan.shares_heads()) return std::nullopt;
  const std::int64_t heads = std::gcd(model.heads, model.kv_heads) / plan.tensor;
  if (heads % plan.context != 0) {
    return trouble("parallel", "context",
                   fmt::format("{} heads that a tensor rank has of queries and of keys cannot be "
                               "divided by context {}; use {}, or another context_exchange",
                               heads, plan.context, divisors_text(heads)));
  }
  if (model.qk_norm && plan.fused_qkv) {
    return trouble("parallel", "context_exchange",
                   "normalised queries and keys lie apart from the values; set fused_qkv to false, "
                   "or this to \"ring\" or \"all_gather\"");
  }
  return std::nullopt;
}

Trouble given_stages_trouble(const Plan& plan, const Model& model) {
  const std::vector<std::int64_t>& stages = plan.stages;
  const auto sum = std::accumulate(stages.begin(), stages.end(), std::int64_t{0});
  if (sum != model.layers) {
    return trouble("parallel", "stages",
                   fmt::format("lays {} layers ({}), but the model has {}", sum,
                               fmt::join(stages, " + "), model.layers));
  }
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const bool end = i == 0 || i + 1 == stages.size();
    if (stages[i] >= 1 || (stages[i] == 0 && end)) continue;
    return trouble("parallel", "stages",
                   fmt::format("chunk {} of {} has {} layers; only the first may have none (the "
                               "embedding alone) and the last (the head alone)",
                               i, stages.size(), stages[i]));
  }
  return std::nullopt;
}

Trouble stages_trouble(const Plan& plan, const Model& model) {
  if (plan.layout == StageLayout::kGiven) return given_stages_trouble(plan, model);
  const std::int64_t p = plan.pipeline, v = plan.virtual_stages, chunks = p * v;
  const bool even = plan.layout == StageLayout::kEven;
  if (model.layers < chunks - (even ? 0 : 1)) {
    const std::int64_t most = model.layers + (even ? 0 : 1);
    return trouble("parallel", v > 1 ? "virtual_stages" : "pipeline",
                   fmt::format("{} layers are too few for pipeline {} x virtual_stages {} = {} "
                               "chunks; at most {}",
                               model.layers, p, v, chunks, most));
  }
  if (!even || v == 1 || model.layers % chunks == 0) return std::nullopt;
  const std::string other = "use \"stages\": \"balanced\" or a list of layers";
  if (model.layers % p != 0) {
    return trouble(
        "parallel", "pipeline",
        fmt::format("{} layers cannot be laid evenly on pipeline {} x virtual_stages {} = "
                    "{} chunks; pipeline {} divides them, or {}",
                    model.layers, p, v, chunks, nearest_divisors(p, model.layers), other));
  }
  return trouble(
      "parallel", "virtual_stages",
      fmt::format("{} layers cannot be laid evenly on pipeline {} x virtual_stages {} = {} "
                  "chunks; use virtual_stages {}, or {}",
                  model.layers, p, v, chunks, nearest_divisors(v, model.layers / p), other));
}

Trouble sequence_trouble(const Plan& plan, const Model& model) {
  if (model.learned_positions && plan.sequence_length > model.positions) {
    return trouble("batch", "sequence_length",
                   fmt::format("{} tokens, but the model has learned positions for {}",
                               plan.sequence_length, model.positions));
  }
  const auto real = [](std::int64_t n) { return static_cast<double>(n); };
  const double width =
      64.0 * real(model.hidden) + 16.0 * real(model.query_width()) + 16.0 * real(model.ffn);
  const double scores =
      plan.fused_attention ? 0.0 : 16.0 * real(model.heads) * real(plan.sequence_length);
  const double vocabulary = real(padded_vocabulary(model, plan));
  const double slots = model.experts == 0 ? 0.0
                                          : real(model.experts) * real(plan.tensor) *
                                                real(expert_capacity(model, plan)) /
                                                real(plan.tokens());  // for a token
  const double experts = slots * (real(model.hidden) + 2 * real(model.expert_ffn));
  const bool gathers = plan.expert_exchange == ExpertExchange::kAllGather;
  const double gathered =
      gathers ? real(plan.expert) * real(plan.expert_tensor) *
                    (real(model.hidden) + 2 * real(model.experts_per_token))
              : 0.0;
  const double layer = width + 16 * experts + 16 * gathered + scores;
  const double token = real(model.layers) * layer + 16.0 * vocabulary;
  const double tokens = real(plan.tokens());
  const double widest = std::max({real(model.hidden), 2 * real(model.ffn), vocabulary, experts,
                                  gathered, 2 * real(model.shared_ffn),
                                  3 * real(model.query_width()), scores / 16});
  if (tokens * widest > kElementsMax) {
    return trouble("batch", "micro",
                   fmt::format("a tensor of {} x {} tokens has too many elements to count; at most "
                               "{:.1e}",
                               plan.micro_batch, plan.sequence_length, kElementsMax));
  }
  if (token * tokens * real(plan.micro_batches()) > kActivationBytesMax) {
    return trouble("batch", "sequence_length",
                   fmt::format("the activations of {} x {} tokens are beyond what can be counted",
                               plan.micro_batch, plan.sequence_length));
  }
  return std::nullopt;
}

}  // namespace

std::string model_degrees_text(const Plan& plan) {
  const std::string context =
      plan.context > 1 ? fmt::format(" x context {}", plan.context) : std::string();
  return fmt::format("tensor {}{} x pipeline {}", plan.tensor, context, plan.pipeline);
}

const std::vector<std::string> kRecomputeModules = {
    "attention_core", "norm", "activation", "mlp",     "attention",
    "projection",     "up",   "qkv",        "quantize", "context",
    "latent_up"};

std::int64_t Plan::ranks() const {
  std::int64_t product = 1;
  for (const std::int64_t degree : {tensor, context, data, pipeline}) {
    product = std::min<std::int64_t>(product * degree, kRanksMax + 1);
  }
  return product;
}

Mesh Plan::mesh() const {
  Mesh mesh;
  mesh.degree(Axis::kTensor) = static_cast<int>(tensor);
  mesh.degree(Axis::kContext) = static_cast<int>(context);
  mesh.degree(Axis::kExpert) = static_cast<int>(expert_data());
  mesh.degree(Axis::kData) = static_cast<int>(shards() / context / expert_data());
  mesh.degree(Axis::kReplica) = static_cast<int>(replicas());
  mesh.degree(Axis::kPipeline) = static_cast<int>(pipeline);
  if (!order.empty()) {
    STEPCAST_CHECK(order.size() == mesh.order.size(), "an order names every axis");
    std::copy(order.begin(), order.end(), mesh.order.begin());
  }
  return mesh;
}

bool softmax_is_fused(const Plan& plan, const Model& model) {
  if (plan.softmax == SoftmaxKernels::kFused) return true;
  const std::int64_t columns = plan.sequence_length;
  const std::int64_t longest = plan.softmax == SoftmaxKernels::kMegatron ? 2048 : 4096;
  const std::int64_t a_block = columns <= 128 ? 8 : 4;
  const std::int64_t sequences = plan.micro_batch * (model.heads / plan.tensor);
  return plan.compute != Dtype::kFp32 && columns > 16 && columns <= longest && columns % 4 == 0 &&
         sequences % a_block == 0;
}

std::int64_t padded_vocabulary(const Model& model, const Plan& plan) {
  const std::int64_t unit = plan.vocabulary_multiple * plan.tensor;
  return (model.vocabulary + unit - 1) / unit * unit;
}

std::optional<PlanTrouble> trouble_alone(const Plan& plan) {
  for (const auto rule :
       {degree_trouble, context_trouble, expert_trouble, pieces_trouble, pipeline_trouble,
        batch_trouble, sharding_trouble, precision_trouble, attention_trouble, loop_trouble}) {
    if (Trouble found = rule(plan)) return found;
  }
  return std::nullopt;
}

std::optional<PlanTrouble> trouble_with(const Plan& plan, const Model& model) {
  for (const auto rule :
       {experts_trouble, attention_kind_trouble, tensor_trouble, shared_heads_trouble,
        eight_bit_trouble, sequence_trouble, stages_trouble, launch_trouble}) {
    if (Trouble found = rule(plan, model)) return found;
  }
  return std::nullopt;
}

void check_plan(const Plan& plan, const Model& model) {
  Trouble found = trouble_alone(plan);
  if (!found) found = trouble_with(plan, model);
  if (!found) return;
  const std::string section = found->section.empty() ? "" : found->section + ".";
  throw Error("plan: " + section + found->key, found->what);
}

}  // namespace stepcast

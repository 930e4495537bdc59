// The plan as a person writes it. What is left out is filled in here, once; everything after this
// sees a whole Plan. Legality is judged by the rules in plan.cc and told at the key's place.
#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/choices.h"
#include "models/plan.h"
#include "models/words.h"
#include "sim/base/error.h"
#include "sim/program/pieces.h"

namespace stepcast {

namespace {

constexpr Limits kDegree{1, kRanksMax};
constexpr Limits kSequence{1, 1 << 24};
constexpr Limits kMicroBatch{1, 1 << 20};
constexpr Limits kGlobalBatch{1, INT32_MAX};
constexpr Limits kLayerCount{0, 10'000};
constexpr Limits kVocabularyMultiple{1, 1 << 16};
constexpr Limits kPrefetch{0, 64};  // units gathered ahead; each is an event of the rank

const std::vector<std::pair<std::string, PipelineSchedule>> kSchedules = {
    {"gpipe", PipelineSchedule::kGpipe},
    {"1f1b", PipelineSchedule::k1f1b},
    {"interleaved", PipelineSchedule::kInterleaved}};
const std::vector<std::pair<std::string, StageLayout>> kLayouts = {
    {"even", StageLayout::kEven}, {"balanced", StageLayout::kBalanced}};
const std::vector<std::pair<std::string, ContextExchange>> kContextExchanges = {
    {"ring", ContextExchange::kRing},
    {"all_gather", ContextExchange::kAllGather},
    {"all_to_all", ContextExchange::kAllToAll}};
const std::vector<std::pair<std::string, ExpertExchange>> kExpertExchanges = {
    {"all_to_all", ExpertExchange::kAllToAll}, {"all_gather", ExpertExchange::kAllGather}};
const std::vector<std::pair<std::string, Recompute>> kRecomputes = {
    {"none", Recompute::kNone},
    {"full", Recompute::kFull},
    {"selective", Recompute::kSelective},
    {"per_op", Recompute::kPerOp}};
const std::vector<std::pair<std::string, Dtype>> kDtypes = {
    {"fp32", Dtype::kFp32}, {"bf16", Dtype::kBf16}, {"fp16", Dtype::kFp16}};
const std::vector<std::pair<std::string, Dtype>> kComputes = {
    {"fp32", Dtype::kFp32}, {"bf16", Dtype::kBf16}, {"fp16", Dtype::kFp16}, {"fp8", Dtype::kFp8}};
const std::vector<std::pair<std::string, Scaling>> kScalings = {
    {"none", Scaling::kNone},   {"delayed", Scaling::kDelayed}, {"tensor", Scaling::kTensor},
    {"block", Scaling::kBlock}, {"mx", Scaling::kMx}};
const std::vector<std::pair<std::string, bool>> kCopies = {{"fp32", true}, {"none", false}};
const std::vector<std::pair<std::string, CrossEntropy>> kLosses = {
    {"parallel", CrossEntropy::kParallel},
    {"torch", CrossEntropy::kTorch},
    {"megatron", CrossEntropy::kMegatron},
    {"megatron_fused", CrossEntropy::kMegatronFused},
    {"transformer_engine", CrossEntropy::kTransformerEngine}};
const std::vector<std::pair<std::string, SoftmaxKernels>> kSoftmaxes = {
    {"fused", SoftmaxKernels::kFused},
    {"megatron", SoftmaxKernels::kMegatron},
    {"megatron_core", SoftmaxKernels::kMegatronCore}};
const std::vector<std::pair<std::string, bool>> kAttentions = {{"fused", true}, {"unfused", false}};

// Beyond these a rank's tokens, or none but one, go to an expert whatever the factor.
constexpr double kCapacityLeast = 1e-6, kCapacityMost = 1e6;

const std::vector<std::pair<std::string, Filled>> kFills = {
    {"product", kFilledProduct}, {"norm", kFilledNorm},         {"attention", kFilledAttention},
    {"softmax", kFilledSoftmax}, {"dropout", kFilledDropout},   {"loss", kFilledLoss},
    {"copy", kFilledCopy},       {"exchange", kFilledExchange}, {"message", kFilledMessage}};

// The strings of an array, each one of `words`.
std::vector<std::string> word_list(const Object& object, std::string_view key,
                                   const std::vector<std::string>& words) {
  std::vector<std::string> list;
  object.array_size(key);  // throws for what is no array
  for (const Json& element : object.at(key)) {
    const std::string word = element.is_string() ? element.get<std::string>() : "";
    if (std::find(words.begin(), words.end(), word) == words.end()) {
      object.fail(key, fmt::format("must list only {}{}", fmt::join(words, ", "),
                                   did_you_mean(word, words)));
    }
    if (std::find(list.begin(), list.end(), word) != list.end()) {
      object.fail(key, fmt::format("names \"{}\" twice", word));
    }
    list.push_back(word);
  }
  return list;
}

// Inner to outer. Axes that a person need not know stay where they make sense: replicas outside of
// what they are replicas of, context and expert next to tensor.
std::vector<Axis> read_order(const Object& object) {
  object.touch("order");
  const Mesh standard;
  if (!object.has("order")) return {};
  std::vector<std::string> names;
  for (Axis axis : standard.order) names.emplace_back(axis_name(axis));
  std::vector<std::string> order = word_list(object, "order", names);
  const auto find = [&](std::string_view name) {
    return std::find(order.begin(), order.end(), name);
  };
  for (const char* name : {"tensor", "data", "pipeline"}) {
    if (find(name) == order.end()) {
      object.fail("order",
                  fmt::format("leaves out \"{}\"; tensor, data and pipeline must be there", name));
    }
  }
  if (find("replica") == order.end()) order.insert(find("data") + 1, "replica");
  if (find("context") == order.end()) order.insert(find("tensor") + 1, "context");
  if (find("expert") == order.end()) order.insert(find("context") + 1, "expert");
  std::vector<Axis> axes;
  for (const std::string& name : order) {
    const auto at = std::find(names.begin(), names.end(), name) - names.begin();
    axes.push_back(standard.order[static_cast<std::size_t>(at)]);
  }
  if (std::equal(axes.begin(), axes.end(), standard.order.begin())) return {};
  return axes;
}

void read_stages(const Object& object, Plan& plan) {
  if (!object.has("stages") || !object.at("stages").is_array()) {
    plan.layout = object.word("stages", plan.layout, kLayouts);
    return;
  }
  plan.layout = StageLayout::kGiven;
  for (const Json& count : object.at("stages")) {
    const bool fits =
        count.is_number_integer() && count >= kLayerCount.least && count <= kLayerCount.most;
    if (!fits) {
      object.fail("stages", fmt::format("must list layers a chunk, each from {} to {}",
                                        kLayerCount.least, kLayerCount.most));
    }
    plan.stages.push_back(count.get<std::int64_t>());
  }
}

// What the cluster leaves for data parallelism, and whether all fits together.
void read_data_degree(const Object& object, std::int64_t devices, Plan& plan) {
  const std::int64_t inner = plan.tensor * plan.context * plan.pipeline;
  const std::string factors = model_degrees_text(plan);
  const bool divides = devices > 0 && devices % inner == 0;
  plan.data = object.integer("data", divides ? devices / inner : 1, kDegree);
  if (devices == 0) return;
  if (!divides && !object.has("data")) {
    // The first degree that no longer divides what those before it leave.
    std::int64_t left = devices;
    for (const auto& [key, degree] : {std::pair{"tensor", plan.tensor},
                                      {"context", plan.context},
                                      {"pipeline", plan.pipeline}}) {
      if (left % degree == 0) {
        left /= degree;
        continue;
      }
      object.fail(key, fmt::format("{} = {} ranks do not divide the {} devices of the cluster; {} "
                                   "{} would",
                                   factors, inner, devices, key, nearest_divisors(degree, left)));
    }
  }
  if (plan.ranks() == devices || plan.ranks() > kRanksMax) return;  // trouble_alone() says so
  object.fail("data", fmt::format("{} x data {} = {} ranks, but the cluster has {} devices; {}",
                                  factors, plan.data, plan.ranks(), devices,
                                  divides ? fmt::format("data {} would match", devices / inner)
                                          : "no data degree would match"));
}

void read_parallel(const Object& object, std::int64_t devices, Plan& plan) {
  plan.tensor = object.integer("tensor", 1, kDegree);
  plan.sequence_parallel = object.boolean("sequence_parallel", plan.sequence_parallel);
  plan.tensor_overlap = object.boolean("tensor_overlap", plan.tensor_overlap);
  plan.batch_first = object.boolean("batch_first", plan.batch_first);
  plan.gather_again = object.boolean("gather_again", plan.gather_again);
  plan.tensor_pieces = object.integer("tensor_pieces", plan.tensor_pieces, {1, kPiecesMax});
  plan.context = object.integer("context", 1, kDegree);
  plan.context_exchange = object.word("context_exchange", plan.context_exchange, kContextExchanges);
  plan.expert = object.integer("expert", 1, kDegree);
  plan.expert_tensor = object.integer("expert_tensor", 1, kDegree);
  plan.expert_exchange = object.word("expert_exchange", plan.expert_exchange, kExpertExchanges);
  plan.expert_overlap = object.boolean("expert_overlap", plan.expert_overlap);
  plan.pipeline = object.integer("pipeline", 1, kDegree);
  plan.virtual_stages = object.integer("virtual_stages", 1, {1, 10'000});
  plan.schedule = object.word(
      "schedule",
      plan.virtual_stages > 1 ? PipelineSchedule::kInterleaved : PipelineSchedule::k1f1b,
      kSchedules);
  plan.pipeline_overlap = object.boolean("pipeline_overlap", plan.pipeline_overlap);
  plan.scatter_gather = object.boolean("scatter_gather", plan.scatter_gather);
  read_stages(object, plan);
  plan.order = read_order(object);
  read_data_degree(object, devices, plan);
  object.done();
}

void read_batch(const Object& object, Plan& plan) {
  plan.sequence_length = object.integer("sequence_length", kSequence);
  plan.document_length = object.integer("document_length", 0, {0, kSequence.most});
  plan.micro_batch = object.integer("micro", 1, kMicroBatch);
  plan.global_batch = object.integer("global", plan.micro_batch * plan.data, kGlobalBatch);
  object.done();
}

void read_sharding(const Object& object, Plan& plan) {
  plan.zero = static_cast<int>(object.integer("zero", 0, {0, 3}));
  plan.bucket = object.bytes("bucket", plan.bucket);
  plan.all_reduce = object.boolean("all_reduce", plan.all_reduce);
  plan.overlap = object.boolean("overlap", plan.overlap);
  plan.prefetch = object.integer("prefetch", plan.prefetch, kPrefetch);
  plan.flat_weights = object.boolean("flat_weights", plan.flat_weights);
  plan.shard_group = object.integer("shard_group", 0, {0, kRanksMax});
  plan.reshard_after_forward = object.boolean("reshard_after_forward", plan.reshard_after_forward);
  object.done();
}

void read_recompute(const Object& what_if, Plan& plan) {
  if (!what_if.has("recompute") || !what_if.at("recompute").is_object()) {
    plan.recompute = what_if.word("recompute", plan.recompute, kRecomputes);
    return;
  }
  const Object object = what_if.object("recompute");
  for (const char* key : {"every", "layers", "modules"}) object.touch(key);
  object.done();
  if (object.has("every") + object.has("layers") + object.has("modules") != 1) {
    what_if.fail("recompute",
                 "needs either \"every\" (layers a group), \"layers\" (the first of each chunk) or "
                 "\"modules\" (a list)");
  }
  if (!object.has("modules")) {
    plan.recompute = Recompute::kFull;
    if (object.has("every")) plan.recompute_every = object.integer("every", {1, kLayerCount.most});
    if (object.has("layers")) {
      plan.recompute_layers = object.integer("layers", {1, kLayerCount.most});
    }
    return;
  }
  plan.recompute = Recompute::kModules;
  plan.recompute_modules = word_list(object, "modules", kRecomputeModules);
  if (plan.recompute_modules.empty()) {
    object.fail("modules",
                fmt::format("names none; use \"recompute\": \"none\", or name some of {}",
                            fmt::join(kRecomputeModules, ", ")));
  }
  const auto named = [&](const char* module) {
    const auto& all = plan.recompute_modules;
    return std::find(all.begin(), all.end(), module) != all.end();
  };
  if (named("context") && !named("attention_core")) {
    object.fail("modules", "\"context\", what attention gives, is made again only with "
                           "\"attention_core\": name both");
  }
}

// 8-bit products: around them everything is bf16.
void read_eight_bit(const Object& object, Plan& plan) {
  const bool on = plan.compute == Dtype::kFp8;
  EightBit& eight_bit = plan.eight_bit;
  eight_bit.scaling = object.word("scaling", on ? Scaling::kTensor : Scaling::kNone, kScalings);
  eight_bit.transposes = object.boolean("fp8_transposes", eight_bit.transposes);
  eight_bit.weights = object.boolean("fp8_weights", eight_bit.weights);
  if (on) plan.compute = Dtype::kBf16;
  if (on && !eight_bit.on()) {
    object.fail("scaling", "8-bit products need one of delayed, tensor, block, mx");
  }
  if (!on && (eight_bit.on() || eight_bit.weights)) {
    object.fail(eight_bit.on() ? "scaling" : "fp8_weights",
                "is of 8-bit products: set \"compute\" to \"fp8\"");
  }
}

void read_precision(const Object& object, Plan& plan) {
  plan.compute = object.word("compute", plan.compute, kComputes);
  read_eight_bit(object, plan);
  plan.gradients = object.word("gradients", plan.compute, kDtypes);
  plan.moments = object.word("moments", plan.moments, kDtypes);
  // fp32 weights are their own master, fp32 gradients need no fp32 copy.
  plan.master = object.word("master", true, kCopies) && plan.compute != Dtype::kFp32;
  plan.gradient_copy =
      object.word("gradient_copy", false, kCopies) && plan.gradients != Dtype::kFp32;
  object.done();
}

void read_filled(const Object& what_if, Plan& plan) {
  plan.deterministic = what_if.boolean("deterministic", plan.deterministic);
  what_if.touch("filled");
  if (!what_if.has("filled")) return;
  std::vector<std::string> words;
  for (const auto& [word, what] : kFills) words.push_back(word);
  const std::vector<std::string> list = word_list(what_if, "filled", words);
  plan.filled = kFilledNone;
  for (const auto& [word, what] : kFills) {
    if (std::find(list.begin(), list.end(), word) == list.end()) continue;
    plan.filled = static_cast<std::uint16_t>(plan.filled | what);
  }
}

// How kernels are launched is no matter of the plan.
void read_host(const Object& object, Plan& plan) {
  for (const char* of_device : {"launch", "pass", "route", "graphs"}) object.touch(of_device);
  plan.p2p_sync = object.boolean("p2p_sync", plan.p2p_sync);
  plan.pass_sync = object.boolean("pass_sync", plan.pass_sync);
  plan.route_sync = object.boolean("route_sync", plan.route_sync);
  plan.optimizer_sync = object.boolean("optimizer_sync", plan.optimizer_sync);
  plan.launch_blocking = object.boolean("launch_blocking", plan.launch_blocking);
  object.done();
}

void read_buffers(const Object& object, Plan& plan) {
  plan.weight_gradient_placeholders =
      object.boolean("weight_gradient_placeholders", plan.weight_gradient_placeholders);
  plan.gather_buffer = object.boolean("gather_buffer", plan.gather_buffer);
  plan.score_buffer = object.boolean("score_buffer", plan.score_buffer);
  plan.deferred_head = object.integer("deferred_head", plan.deferred_head, {0, kGlobalBatch.most});
  plan.kernel_workspace = object.bytes("kernel_workspace", plan.kernel_workspace);
  object.done();
}

std::string exact_bytes(Bytes bytes) {
  constexpr std::int64_t kMega = 1'000'000;
  if (bytes.count % kMega == 0) return fmt::format("{} MB", bytes.count / kMega);
  return fmt::format("{} B", bytes.count);
}

Json write_parallel(const Plan& plan) {
  Json json;
  json["tensor"] = plan.tensor;
  json["sequence_parallel"] = plan.sequence_parallel;
  json["tensor_overlap"] = plan.tensor_overlap;
  json["batch_first"] = plan.batch_first;
  json["gather_again"] = plan.gather_again;
  json["tensor_pieces"] = plan.tensor_pieces;
  json["context"] = plan.context;
  json["context_exchange"] = word_of(plan.context_exchange, kContextExchanges);
  json["expert"] = plan.expert;
  json["expert_tensor"] = plan.expert_tensor;
  json["expert_exchange"] = word_of(plan.expert_exchange, kExpertExchanges);
  json["expert_overlap"] = plan.expert_overlap;
  json["pipeline"] = plan.pipeline;
  json["virtual_stages"] = plan.virtual_stages;
  json["data"] = plan.data;
  json["schedule"] = word_of(plan.schedule, kSchedules);
  if (plan.layout == StageLayout::kGiven) {
    json["stages"] = plan.stages;
  } else {
    json["stages"] = word_of(plan.layout, kLayouts);
  }
  json["pipeline_overlap"] = plan.pipeline_overlap;
  json["scatter_gather"] = plan.scatter_gather;
  json["order"] = Json::array();
  for (Axis axis : plan.mesh().order) json["order"].push_back(axis_name(axis));
  return json;
}

Json write_recompute(const Plan& plan) {
  if (plan.recompute == Recompute::kModules) return Json{{"modules", plan.recompute_modules}};
  if (plan.recompute == Recompute::kFull && plan.recompute_every > 1) {
    return Json{{"every", plan.recompute_every}};
  }
  if (plan.recompute == Recompute::kFull && plan.recompute_layers > 0) {
    return Json{{"layers", plan.recompute_layers}};
  }
  return word_of(plan.recompute, kRecomputes);
}

}  // namespace

Plan read_plan(const Object& what_if, const Model& model, std::int64_t devices) {
  Plan plan;
  read_parallel(what_if.object("parallel"), devices, plan);
  read_batch(what_if.object("batch"), plan);
  read_sharding(what_if.object("sharding"), plan);
  read_recompute(what_if, plan);
  plan.recompute_early_stop =
      what_if.boolean("recompute_early_stop", plan.recompute_early_stop);
  read_precision(what_if.object("precision"), plan);
  plan.vocabulary_multiple =
      what_if.integer("vocabulary_multiple", plan.vocabulary_multiple, kVocabularyMultiple);
  plan.capacity_factor = what_if.number("capacity_factor", plan.capacity_factor,
                                        kCapacityLeast, kCapacityMost);
  plan.fused_qkv = what_if.boolean("fused_qkv", plan.fused_qkv);
  plan.fused_gate_up = what_if.boolean("fused_gate_up", plan.fused_gate_up);
  plan.fused_attention = what_if.word("attention", plan.fused_attention, kAttentions);
  plan.softmax = what_if.word("softmax", plan.softmax, kSoftmaxes);
  plan.loss = what_if.word("loss", plan.loss, kLosses);
  plan.dropout = what_if.boolean("dropout", model.dropout);
  plan.dropout_rate =
      what_if.number("dropout_rate", model.dropout_rate, kDropoutLeast, kDropoutMost);
  plan.clip_gradients = what_if.boolean("clip_gradients", plan.clip_gradients);
  plan.scan_layers = what_if.boolean("scan_layers", plan.scan_layers);
  read_filled(what_if, plan);
  read_host(what_if.object("host"), plan);
  const Object allocator = what_if.object("allocator");
  plan.expandable_segments = allocator.boolean("expandable_segments", plan.expandable_segments);
  if (allocator.has("blas_workspace")) plan.blas_workspace = allocator.bytes("blas_workspace");
  allocator.touch("blas_workspace");
  allocator.done();
  read_buffers(what_if.object("buffers"), plan);

  // Whether data ranks can share experts is no question where there are none.
  std::optional<PlanTrouble> trouble = no_experts_trouble(plan, model);
  if (!trouble) trouble = trouble_alone(plan);
  if (!trouble) trouble = trouble_with(plan, model);
  if (trouble && trouble->section.empty()) what_if.fail(trouble->key, trouble->what);
  if (trouble) what_if.object(trouble->section).fail(trouble->key, trouble->what);
  return plan;
}

Json write_plan(const Plan& plan) {
  Json json;
  json["batch"] = {{"sequence_length", plan.sequence_length},
                   {"document_length", plan.document_length},
                   {"micro", plan.micro_batch},
                   {"global", plan.global_batch}};
  json["parallel"] = write_parallel(plan);
  json["sharding"] = {{"zero", plan.zero},
                      {"bucket", exact_bytes(plan.bucket)},
                      {"all_reduce", plan.all_reduce},
                      {"overlap", plan.overlap},
                      {"prefetch", plan.prefetch},
                      {"flat_weights", plan.flat_weights},
                      {"shard_group", plan.shard_group},
                      {"reshard_after_forward", plan.reshard_after_forward}};
  json["recompute"] = write_recompute(plan);
  json["recompute_early_stop"] = plan.recompute_early_stop;
  json["precision"] = {{"compute", word_of(plan.product(), kComputes)},
                       {"scaling", word_of(plan.eight_bit.scaling, kScalings)},
                       {"fp8_transposes", plan.eight_bit.transposes},
                       {"fp8_weights", plan.eight_bit.weights},
                       {"gradients", word_of(plan.gradients, kDtypes)},
                       {"master", word_of(plan.master, kCopies)},
                       {"moments", word_of(plan.moments, kDtypes)},
                       {"gradient_copy", word_of(plan.gradient_copy, kCopies)}};
  json["vocabulary_multiple"] = plan.vocabulary_multiple;
  json["capacity_factor"] = plan.capacity_factor;
  json["fused_qkv"] = plan.fused_qkv;
  json["fused_gate_up"] = plan.fused_gate_up;
  json["attention"] = word_of(plan.fused_attention, kAttentions);
  json["softmax"] = word_of(plan.softmax, kSoftmaxes);
  json["loss"] = word_of(plan.loss, kLosses);
  json["dropout"] = plan.dropout;
  json["dropout_rate"] = plan.dropout_rate;
  json["clip_gradients"] = plan.clip_gradients;
  json["scan_layers"] = plan.scan_layers;
  json["deterministic"] = plan.deterministic;
  json["filled"] = Json::array();
  for (const auto& [word, what] : kFills) {
    if ((plan.filled & what) != 0) json["filled"].push_back(word);
  }
  json["host"] = {{"p2p_sync", plan.p2p_sync},
                  {"pass_sync", plan.pass_sync},
                  {"route_sync", plan.route_sync},
                  {"optimizer_sync", plan.optimizer_sync},
                  {"launch_blocking", plan.launch_blocking}};
  json["allocator"] = {
      {"expandable_segments", plan.expandable_segments},
      {"blas_workspace", plan.blas_workspace ? Json(exact_bytes(*plan.blas_workspace)) : Json()}};
  json["buffers"] = {{"weight_gradient_placeholders", plan.weight_gradient_placeholders},
                     {"gather_buffer", plan.gather_buffer},
                     {"score_buffer", plan.score_buffer},
                     {"deferred_head", plan.deferred_head},
                     {"kernel_workspace", exact_bytes(plan.kernel_workspace)}};
  return json;
}

}  // namespace stepcast

// One table. A name that ends in * is a family: flags and switches of a framework are as many as it
// has, and are kept as the source writes them. Left out on purpose: what was computed from another
// field (parameters, utilisation by several definitions), words of the sources, paths of data.
#include "tools/validate/published_facts.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "sim/base/error.h"

namespace stepcast {
namespace {

enum class Type { kText, kCount, kNumber, kSwitch, kScalar, kAny };

struct Fact {
  std::string_view name;
  Type type;
};

constexpr Fact kFacts[] = {
    {"id", Type::kText},
    {"trust", Type::kCount},
    {"notes", Type::kText},
    {"recompute", Type::kText},
    {"offload.*", Type::kScalar},
    {"source.repo", Type::kText},
    {"source.commit", Type::kText},
    {"source.tag", Type::kText},
    {"source.path", Type::kText},
    {"source.line", Type::kCount},
    {"source.table", Type::kText},
    {"source.url", Type::kText},
    {"model.name", Type::kText},
    {"model.layers", Type::kCount},
    {"model.hidden", Type::kCount},
    {"model.heads", Type::kCount},
    {"model.kv_heads", Type::kCount},
    {"model.ffn_hidden", Type::kCount},
    {"model.gated_mlp", Type::kSwitch},
    {"model.vocab", Type::kCount},
    {"model.seq_len", Type::kCount},
    {"model.tied_embeddings", Type::kSwitch},
    {"model.experts", Type::kCount},
    {"model.experts_per_token", Type::kCount},
    {"model.moe_ffn_hidden", Type::kCount},
    {"model.shared_experts", Type::kCount},
    {"model.extra.*", Type::kScalar},
    {"hardware.gpu", Type::kText},
    {"hardware.gpus_total", Type::kCount},
    {"hardware.gpus_per_node", Type::kCount},
    {"hardware.inter_node_link", Type::kText},
    {"hardware.intra_node_link", Type::kText},
    {"hardware.all_reduce_gb_per_s", Type::kNumber},
    {"hardware.all_reduce_spread", Type::kNumber},
    {"software.framework", Type::kText},
    {"software.precision", Type::kText},
    {"software.attention_impl", Type::kText},
    {"software.torch_compile", Type::kScalar},
    {"software.extra.*", Type::kAny},
    {"parallel.tp", Type::kCount},
    {"parallel.pp", Type::kCount},
    {"parallel.dp", Type::kCount},
    {"parallel.cp", Type::kCount},
    {"parallel.ep", Type::kCount},
    {"parallel.virtual_pp", Type::kCount},
    {"parallel.schedule", Type::kText},
    {"parallel.sequence_parallel", Type::kSwitch},
    {"parallel.zero_stage", Type::kCount},
    {"parallel.fsdp_mode", Type::kText},
    {"parallel.micro_batch", Type::kCount},
    {"parallel.global_batch", Type::kCount},
    {"parallel.grad_accumulation", Type::kCount},
    {"parallel.extra.*", Type::kScalar},
    {"measured.step_time_s", Type::kNumber},
    {"measured.tokens_per_s_per_gpu", Type::kNumber},
    {"measured.peak_memory_gib", Type::kNumber},
    {"measured.extra.step_time_is_derived", Type::kSwitch},
    {"measured.extra.step_time_min_s", Type::kNumber},
    {"measured.extra.step_time_max_s", Type::kNumber},
    {"measured.extra.published_tokens_per_s_total", Type::kNumber},
    {"measured.extra.peak_memory_bytes", Type::kNumber},
    {"measured.extra.peak_reserved_gib", Type::kNumber},
    {"measured.extra.steady_allocated_bytes", Type::kNumber},
    {"measured.extra.peak_allocated_mib_by_rank.*", Type::kNumber},
};

// Of families: the sources' paths, what a test of a framework does besides the step, and what was
// computed or guessed.
constexpr std::string_view kNoFacts[] = {
    "model.extra.active_params_billion",
    "model.extra.params_are_derived",
    "model.extra.tokenizer",
    "model.extra.vocab_file",
    "parallel.extra.dims_from",
    "software.extra.test_type",
    "software.extra.flags.vocab-file",
    "software.extra.flags.tokenizer-type",
    "software.extra.flags.tp-comm-overlap-cfg",
};

const Fact* find_fact(std::string_view name) {
  if (std::find(std::begin(kNoFacts), std::end(kNoFacts), name) != std::end(kNoFacts)) {
    return nullptr;
  }
  const auto* found = std::find_if(std::begin(kFacts), std::end(kFacts), [&](const Fact& fact) {
    if (!fact.name.ends_with('*')) return fact.name == name;
    const std::string_view family = fact.name.substr(0, fact.name.size() - 1);
    return name.starts_with(family) && name.size() > family.size();
  });
  return found == std::end(kFacts) ? nullptr : found;
}

bool whole(const Json& value) {
  if (value.is_number_integer()) return value.get<double>() >= 0;
  if (!value.is_number()) return false;
  return value.get<double>() >= 0 && value.get<double>() == std::floor(value.get<double>());
}

}  // namespace

std::string fact_fault(std::string_view name, const Json& value) {
  const Fact* fact = find_fact(name);
  if (fact == nullptr) return "is no fact of a run";
  switch (fact->type) {
    case Type::kText:
      return value.is_string() && !value.get_ref<const std::string&>().empty() ? ""
                                                                               : "must be text";
    case Type::kCount: return whole(value) ? "" : "must be a whole number, 0 or more";
    case Type::kNumber:
      return value.is_number() && value.get<double>() > 0 ? "" : "must be a number above 0";
    case Type::kSwitch: return value.is_boolean() ? "" : "must be true or false";
    case Type::kScalar: return value.is_primitive() ? "" : "must be text, a number, true or false";
    case Type::kAny:
      return value.is_object() ? "must not be an object; write a fact for each of its keys" : "";
  }
  return "";
}

bool is_fact(std::string_view name) { return find_fact(name) != nullptr; }

std::size_t fact_order(std::string_view name) {
  const Fact* fact = find_fact(name);
  STEPCAST_CHECK(fact != nullptr, "a fact's name");
  return static_cast<std::size_t>(fact - std::begin(kFacts));
}

std::vector<std::string> fact_names() {
  std::vector<std::string> names;
  for (const Fact& fact : kFacts) {
    if (!fact.name.ends_with('*')) names.emplace_back(fact.name);
  }
  return names;
}

bool is_derived(std::string_view name, const Json& facts) {
  const auto told = [&](const char* other) { return facts.contains(other); };
  if (name == "measured.peak_memory_gib") return told("measured.extra.peak_memory_bytes");
  if (name == "measured.tokens_per_s_per_gpu") {
    return told("measured.step_time_s") && !told("measured.extra.step_time_is_derived");
  }
  return false;
}

}  // namespace stepcast

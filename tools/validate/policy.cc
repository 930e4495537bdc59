// A run's precision, recomputation and attention as a what-if: words that tables use, in a few
// spellings each. What is not known is refused by name rather than taken for something near.
// Linear in the text.
#include <algorithm>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "sim/base/error.h"
#include "tools/validate/fields.h"
#include "tools/validate/question.h"
#include "tools/whatif/framework.h"

namespace stepcast {
namespace {

// "" where the row leaves it to the framework.
std::string compute_word(const Json& row) {
  const std::string text = lower(text_of(section_of(row, "software"), "precision"));
  if (has(text, "fp4")) throw Error("software.precision", "4-bit runs are not covered");
  if (has(text, "fp8")) return "fp8";
  if (text.empty() || has(text, "fp16/bf16")) return "";
  for (const char* word : {"bf16", "fp16", "fp32"}) {
    if (has(text, word)) return word;
  }
  throw Error("software.precision", fmt::format("\"{}\" is not known", text));
}

// How 8-bit operands are scaled, by the precision's name or that of the recipe. Not stated: one
// scale a tensor; TransformerEngine's own default was delayed scaling, Megatron-Bridge's recipes
// have current scaling, and where its tables give a second column for Blackwell, MX.
std::string scaling_word(const Json& row, std::vector<std::string>& assumed) {
  const Json& software = section_of(row, "software");
  const std::string text = lower(text_of(software, "precision"));
  const Json& recipe = section_of(section_of(software, "extra"), "recipe");
  const std::string words = text + " " + lower(text_of(recipe, "preset"));
  constexpr std::pair<std::string_view, const char*> kWords[] = {
      {"mx", "mx"},           {"fp8_sc", "block"},     {"block", "block"},
      {"current", "tensor"},  {"tensorwise", "tensor"}, {"fp8-cs", "tensor"},
      {"fp8_cs", "tensor"},   {"delayed", "delayed"},  {"fp8_ds", "delayed"}};
  for (const auto& [word, scaling] : kWords) {
    if (has(words, word)) return scaling;
  }
  const bool bridge = has(lower(text_of(software, "framework")), "megatron-bridge");
  const char* scaling = bridge ? "tensor" : "delayed";
  if (has(text, "alternative")) scaling = "mx";
  assumed.push_back(fmt::format("scaling ({})", scaling));
  return scaling;
}

// "selective:[layernorm mla_up_proj]", "per-op:moe_act,mlp", "selective (core_attn)". In a model
// with experts Megatron-Core's mlp is that of the dense layers alone, moe the experts and all that
// is around them (transformer_config.py, recompute_modules).
Json recompute_modules(std::string_view list, bool experts, std::vector<std::string>& assumed) {
  constexpr std::pair<std::string_view, std::string_view> kModules[] = {
      {"core_attn", "attention_core"}, {"layernorm", "norm"}, {"mlp", "mlp"},
      {"attention", "attention"},      {"norm", "norm"},      {"activation", "activation"},
      {"up", "up"},                    {"projection", "projection"},
      {"qkv", "qkv"},                  {"quantize", "quantize"},
      {"context", "context"},          {"mla_up_proj", "latent_up"},
      {"moe_act", "activation"},       {"moe", "mlp"}};
  Json modules = Json::array();
  for (std::size_t at = 0; at < list.size();) {
    at = std::min(list.find_first_not_of(" ,[]()", at), list.size());
    const std::size_t end = std::min(list.find_first_of(" ,[]()", at), list.size());
    const std::string_view word = list.substr(at, end - at);
    at = end;
    if (word.empty()) continue;
    if (experts && word == "mlp") {
      assumed.emplace_back("recompute (not of the dense layers' MLP)");
      continue;
    }
    const auto found = std::find_if(std::begin(kModules), std::end(kModules),
                                    [&](const auto& pair) { return pair.first == word; });
    if (found == std::end(kModules)) {
      throw Error("recompute", fmt::format("the module {} is not modelled", word));
    }
    if (std::find(modules.begin(), modules.end(), Json(found->second)) == modules.end()) {
      modules.push_back(found->second);
    }
  }
  return modules;
}

// Megatron-LM's own layers, not Transformer Engine's.
bool local_layers(const Json& row) {
  const std::string layers = lower(text_of(section_of(row, "software"), "attention_impl"));
  return layers.ends_with("/local") || text_of(flags_of(row), "transformer-impl") == "local";
}

// A GPT of today's configurations drops out unless it is said not to.
bool drops_out(const Json& what_if) {
  if (const Json* said = value_at(what_if, "dropout")) return *said == true;
  const Json* style = value_at(what_if, "model.style");
  return style != nullptr && *style == "gpt";
}

}  // namespace

Json precision_question(const Json& row, std::vector<std::string>& assumed) {
  Json precision = Json::object();
  const std::string compute = compute_word(row);
  if (!compute.empty()) precision["compute"] = compute;
  if (compute == "fp32") return precision;
  const Json& software = section_of(row, "software");
  const Json& extra = section_of(software, "extra");
  const Json& flags = flags_of(row);
  if (compute == "fp8") {
    precision["scaling"] = scaling_word(row, assumed);
    const bool blocks = precision["scaling"] == "mx" || precision["scaling"] == "block";
    if (switch_of(flags, "fp8-param-gather") == true && !blocks) precision["fp8_weights"] = true;
  }
  // Megatron-Core's precision-aware optimizer.
  std::string moments = lower(text_of(section_of(extra, "recipe"), "exp_avg_dtype"));
  if (moments.empty()) moments = lower(text_of(flags, "exp-avg-dtype"));
  if (moments == "bf16" || moments == "fp16") precision["moments"] = moments;
  const std::string mixed = text_of(extra, "fsdp_mixed_precision");
  if (switch_of(flags, "grad-reduce-in-bf16") == true || mixed == "PURE") {
    const bool bf16 = compute.empty() || compute == "fp8";
    precision["gradients"] = bf16 ? "bf16" : compute;
    return precision;
  }
  if (has(lower(text_of(software, "precision")), "fp32 main grads") || mixed == "DEFAULT" ||
      switch_of(flags, "accumulate-allreduce-grads-in-fp32") == true) {
    precision["gradients"] = "fp32";
  }
  return precision;
}

Json recompute_question(const Json& row, std::vector<std::string>& assumed) {
  const std::string text = lower(text_of(row, "recompute"));
  if (text.empty()) {
    if (member(row, "recompute") != nullptr) throw Error("recompute", "must be text");
    return {};
  }
  if (text.starts_with("none")) return "none";
  if (text == "selective:op") return "per_op";
  if (text == "full") {
    // Megatron-Bridge, scripts/performance/utils: set_recompute_overrides takes the method "block".
    const Json& extra = section_of(section_of(row, "software"), "extra");
    const auto layers = count_of(section_of(extra, "recipe"), "recompute_num_layers");
    return layers ? Json{{"layers", *layers}} : Json("full");
  }
  if (text.starts_with("full:block:")) {
    const Json holder = {{"n", text.substr(11)}};
    if (const auto layers = count_of(holder, "n")) return {{"layers", *layers}};
  }
  if (text == "full:uniform:1") return "full";
  if (text.starts_with("full:uniform:")) {
    const Json holder = {{"n", text.substr(13)}};
    if (const auto every = count_of(holder, "n")) return {{"every", *every}};
  }
  if (text.starts_with("full")) {
    throw Error("recompute", fmt::format("\"{}\" is not modelled", text));
  }
  const std::size_t list = text.find_first_of(":(");
  const bool experts = stated_count(row, "model", "experts").value_or(1) > 1;
  const Json modules = list == std::string::npos
                           ? Json::array()
                           : recompute_modules(text.substr(list + 1), experts, assumed);
  if (text.starts_with("selective") || text.starts_with("per-op")) {
    if (modules.empty() && experts && list != std::string::npos) return "none";
    if (modules.empty() || modules == Json::array({"attention_core"})) return "selective";
    return {{"modules", modules}};
  }
  throw Error("recompute", fmt::format("\"{}\" is not known", text));
}

Json attention_question(const Json& row) {
  std::string text = lower(text_of(section_of(row, "software"), "attention_impl"));
  const std::string backend = lower(text_of(flags_of(row), "attention-backend"));
  if (!backend.empty()) text = backend;
  if (text.starts_with("unfused") || text.starts_with("local") || text.ends_with("/local")) {
    return "unfused";
  }
  for (const std::string_view word : {"fused", "flash", "cudnn", "te ", "transformer_engine"}) {
    if (has(text, word)) return "fused";
  }
  return {};
}

Json fusion_question(const Json& row) {
  Json fusion = Json::object();
  const Json& flags = flags_of(row);
  if (switch_of(flags, "no-gradient-accumulation-fusion") == true) fusion["accumulation"] = false;
  return fusion;
}

// Two fusions of cross-entropy: Megatron-LM's own, and Transformer Engine's.
Json loss_question(const Json& row) {
  const Json& extra = section_of(section_of(row, "software"), "extra");
  const Json& flags = flags_of(row);
  if (has(lower(text_of(extra, "cross_entropy_fusion")), "te ")) return "transformer_engine";
  const std::string framework = lower(text_of(section_of(row, "software"), "framework"));
  const bool own_loss = has(framework, "titan");  // not one of Megatron-LM's, whose flags these are
  if (flags.empty() || own_loss) return {};
  if (switch_of(flags, "cross-entropy-loss-fusion") != true) return "megatron";
  const bool engine = text_of(flags, "cross-entropy-fusion-impl") == "te";
  return engine ? "transformer_engine" : "megatron_fused";
}

// Deterministic algorithms of PyTorch need CUBLAS_WORKSPACE_CONFIG, :4096:8 in Megatron-LM's tests.
// Its own layers fill what Transformer Engine's do, but for products: those are torch.matmul.
//
// On Blackwell cuDNN has no backward of attention with dropout that is the same again, so
// Transformer Engine (common/fused_attn/fused_attn.cpp, "determinism on Blackwell") leaves it to
// flash-attn 2.
void ask_deterministic(const Json& row, const Framework* framework, const Device& device,
                       Json& what_if) {
  if (switch_of(flags_of(row), "deterministic-mode") != true) return;
  what_if["deterministic"] = true;
  what_if["allocator"]["blas_workspace"] = "32 MiB";
  const bool blackwell = device.nccl && device.nccl->generation == NcclGeneration::kBlackwell;
  const Json* kernel = value_at(what_if, "attention_kernel");
  const bool cudnn = kernel != nullptr && *kernel == "cudnn";
  if (blackwell && cudnn && drops_out(what_if) && device.kernels.attention.contains("flash2")) {
    what_if["attention_kernel"] = "flash2";
  }
  const Json* filled = framework == nullptr ? nullptr : value_at(framework->defaults, "filled");
  if (filled == nullptr || !local_layers(row)) return;
  what_if["filled"] = Json::array();
  for (const Json& word : *filled) {
    if (word != "product") what_if["filled"].push_back(word);
  }
}

// Sources: models/buffers.h. Transformer Engine's workspace follows the generation as PyTorch's
// does: 32 MiB from Hopper on, 4 MiB before. Its products of experts run on four streams, each of
// which has as much again (transformer_engine/pytorch/module/base.py, get_multi_stream_cublas_
// workspace).
Json buffers_question(const Json& row, bool engine, const Device& device) {
  Json buffers = Json::object();
  const Json& flags = flags_of(row);
  if (switch_of(flags, "defer-embedding-wgrad-compute") == true) {
    // 0, as where it is left out, defers all micro-batches.
    buffers["deferred_head"] = count_of(flags, "wgrad-deferral-limit").value_or(INT32_MAX);
  }
  if (!engine) return buffers;
  if (local_layers(row)) {
    buffers["weight_gradient_placeholders"] = false;
    buffers["score_buffer"] = true;
    return buffers;
  }
  constexpr std::int64_t kHopper = std::int64_t{32} << 20;
  const bool hopper = device.blas_workspace && device.blas_workspace->count >= kHopper;
  const bool groups = stated_count(row, "model", "experts").value_or(1) > 1 &&
                      (flags.empty() || switch_of(flags, "moe-grouped-gemm") == true);
  buffers["kernel_workspace"] = fmt::format("{} MiB", (hopper ? 32 : 4) * (groups ? 5 : 1));
  if (switch_of(flags, "no-gradient-accumulation-fusion") == true) {
    buffers["weight_gradient_placeholders"] = false;
  }
  return buffers;
}

std::string attention_kernel_question(const Json& row, const Device& device) {
  const std::string text = lower(text_of(section_of(row, "software"), "attention_impl"));
  // llm-foundry's Triton kernel is a port of FlashAttention 1 with a bias.
  constexpr std::pair<std::string_view, const char*> kKernels[] = {
      {"triton", "flash1"}, {"flash v2", "flash2"}, {"flash v3", "flash3"},
      {"cudnn", "cudnn"},   {"te ", "cudnn"},       {"transformer_engine", "cudnn"}};
  for (const auto& [word, kernel] : kKernels) {
    if (has(text, word) && device.kernels.attention.contains(kernel)) return kernel;
  }
  return "";
}

}  // namespace stepcast

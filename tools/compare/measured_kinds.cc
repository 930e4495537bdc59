// The kind of a kernel: of ours by its op, of others by words in its name. The order of the words
// matters: "fmha_cutlassF_bf16_aligned" is attention, not a matrix product.
#include <utility>

#include "sim/base/error.h"
#include "tools/base/text.h"
#include "tools/compare/measured_trace.h"

namespace stepcast {
namespace {

constexpr std::array kKindWords = {
    std::pair{std::string_view("nccl"), KernelKind::kCommunication},
    std::pair{std::string_view("rccl"), KernelKind::kCommunication},
    std::pair{std::string_view("memcpy"), KernelKind::kCopy},
    std::pair{std::string_view("memset"), KernelKind::kCopy},
    std::pair{std::string_view("flash"), KernelKind::kAttention},
    std::pair{std::string_view("fmha"), KernelKind::kAttention},
    std::pair{std::string_view("sdpa"), KernelKind::kAttention},
    std::pair{std::string_view("attention"), KernelKind::kAttention},
    std::pair{std::string_view("attn"), KernelKind::kAttention},
    std::pair{std::string_view("adam"), KernelKind::kOptimizer},
    std::pair{std::string_view("multi_tensor_apply"), KernelKind::kOptimizer},
    std::pair{std::string_view("multitensor"), KernelKind::kOptimizer},
    std::pair{std::string_view("lpnorm"), KernelKind::kOptimizer},  // of gradients, for clipping
    std::pair{std::string_view("cross_entropy"), KernelKind::kLoss},
    std::pair{std::string_view("crossentropy"), KernelKind::kLoss},
    std::pair{std::string_view("nll_loss"), KernelKind::kLoss},
    std::pair{std::string_view("logsoftmax"), KernelKind::kLoss},
    std::pair{std::string_view("log_softmax"), KernelKind::kLoss},
    std::pair{std::string_view("embedding"), KernelKind::kGather},
    std::pair{std::string_view("indexselect"), KernelKind::kGather},
    std::pair{std::string_view("index_select"), KernelKind::kGather},
    std::pair{std::string_view("layer_norm"), KernelKind::kNorm},
    std::pair{std::string_view("layernorm"), KernelKind::kNorm},
    std::pair{std::string_view("rms_norm"), KernelKind::kNorm},
    std::pair{std::string_view("rmsnorm"), KernelKind::kNorm},
    std::pair{std::string_view("ln_fwd"), KernelKind::kNorm},
    std::pair{std::string_view("ln_bwd"), KernelKind::kNorm},
    std::pair{std::string_view("cucomputegrad"), KernelKind::kNorm},  // Apex
    std::pair{std::string_view("gemm"), KernelKind::kGemm},
    std::pair{std::string_view("gemv"), KernelKind::kGemm},
    std::pair{std::string_view("nvjet"), KernelKind::kGemm},  // cuBLAS on Hopper and Blackwell
    std::pair{std::string_view("cijk_"), KernelKind::kGemm},  // hipBLASLt, rocBLAS
    std::pair{std::string_view("cublas"), KernelKind::kGemm},
    std::pair{std::string_view("splitkreduce"), KernelKind::kGemm},
    std::pair{std::string_view("triton_mm"), KernelKind::kGemm},
    std::pair{std::string_view("triton_tem_"), KernelKind::kGemm},
    std::pair{std::string_view("elementwise"), KernelKind::kPointwise},
    std::pair{std::string_view("triton_"), KernelKind::kPointwise},
    std::pair{std::string_view("softmax"), KernelKind::kPointwise},
    std::pair{std::string_view("dropout"), KernelKind::kPointwise},
    std::pair{std::string_view("gelu"), KernelKind::kPointwise},
    std::pair{std::string_view("swiglu"), KernelKind::kPointwise},
    std::pair{std::string_view("silu"), KernelKind::kPointwise},
    std::pair{std::string_view("rope"), KernelKind::kPointwise},
    std::pair{std::string_view("rotary"), KernelKind::kPointwise},
    std::pair{std::string_view("cast_transpose"), KernelKind::kPointwise},
    std::pair{std::string_view("catarray"), KernelKind::kPointwise},
    std::pair{std::string_view("permute"), KernelKind::kPointwise},  // TransformerEngine: of tokens
    std::pair{std::string_view("sort_chunks"), KernelKind::kPointwise},
    std::pair{std::string_view("row_id_map"), KernelKind::kPointwise},
    std::pair{std::string_view("reduce_kernel"), KernelKind::kPointwise}};

}  // namespace

std::string_view kernel_kind_name(KernelKind kind) {
  switch (kind) {
    case KernelKind::kGemm: return "gemm";
    case KernelKind::kAttention: return "attention";
    case KernelKind::kNorm: return "norm";
    case KernelKind::kPointwise: return "pointwise";
    case KernelKind::kGather: return "gather";
    case KernelKind::kLoss: return "loss";
    case KernelKind::kOptimizer: return "optimizer";
    case KernelKind::kCopy: return "copy";
    case KernelKind::kOther: return "other";
    case KernelKind::kCommunication: return "communication";
  }
  STEPCAST_CHECK(false, "no such kind of kernel");
}

KernelKind kind_of_op(const Op& op, Phase phase) {
  if (phase == Phase::kOptimizer) return KernelKind::kOptimizer;
  return match(
      op, [](const Gemm&) { return KernelKind::kGemm; },
      [](const Attention&) { return KernelKind::kAttention; },
      [](const Norm&) { return KernelKind::kNorm; },
      [](const Pointwise&) { return KernelKind::kPointwise; },
      [](const Gather&) { return KernelKind::kGather; },
      [](const Loss&) { return KernelKind::kLoss; },
      [](const Update&) { return KernelKind::kOptimizer; },
      [](const Route&) { return KernelKind::kOther; },
      [](const Permute&) { return KernelKind::kPointwise; },
      [](const Regroup&) { return KernelKind::kPointwise; },
      [](const OwnSlots&) { return KernelKind::kOther; },
      [](const ShareHeads&) { return KernelKind::kPointwise; },
      [](const LatentKeys&) { return KernelKind::kPointwise; });
}

KernelKind kind_of_name(std::string_view name) {
  const std::string text = lower(name);
  for (const auto& [word, kind] : kKindWords) {
    if (has(text, word)) return kind;
  }
  return KernelKind::kOther;
}

}  // namespace stepcast

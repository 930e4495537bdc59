// Which kernels carry out an Attention, as op_kernels.h says it of the other Ops: on tensor cores
// for bf16 and head dimensions 64 and 128, by plain_attention.h for the rest. Queries, keys and
// values are packed, or three tensors, as Attention in op.h says.
#pragma once

#include <cmath>

#include "execute/cuda/flash_backward.h"
#include "execute/cuda/flash_forward.h"
#include "execute/cuda/op_kernels.h"
#include "execute/cuda/plain_attention.h"

namespace stepcast::cuda {

// The operands of an Attention, found among a Work's.
struct AttentionOperands {
  AttentionShape shape;
  int dim = 0;
  bool all_bf16 = true;
  HeadNumbers q, k, v, o, d_o, d_q, d_k, d_v;
  float* lse = nullptr;
  bool drops = false;
  AttentionDropout dropout;
};

inline HeadNumbers head_numbers(const Operand& operand, std::int64_t first_column,
                                const Attention& op) {
  const std::int64_t width = operand.tensor->shape.sizes[1];
  return {view(operand).from(first_column), width, op.batch * width, op.head_dim};
}

inline AttentionOperands attention_operands(const Attention& op, const Work& work) {
  const bool forward = op.pass == Pass::kForward;
  const std::size_t n = work.reads.size();
  const auto sources = forward ? work.reads : work.reads.first(n - 3);
  const bool packed = sources.size() < 3;
  const std::int64_t key = op.heads * op.head_dim, value = key + op.kv_heads * op.head_dim;
  const auto part = [&](std::span<const Operand> of, std::size_t i) {  // q, k, v
    if (!packed) return head_numbers(of[i], 0, op);
    const std::int64_t first[] = {0, key, value};
    return head_numbers(i == 2 ? of.back() : of.front(), first[i], op);
  };
  const Tensor& last = *sources.back().tensor;
  const std::int64_t tokens = last.shape.sizes[0];
  const std::int64_t width = (packed ? op.heads + 2 * op.kv_heads : op.kv_heads) * op.head_dim;
  STEPCAST_CHECK(last.shape.sizes[1] == width && tokens == op.batch * op.queries,
                 "an Attention says the shape of its operands");
  STEPCAST_CHECK(op.head_dim <= kPlainDimMax, "a head has at most 256 columns");
  AttentionOperands out;
  out.dim = static_cast<int>(op.head_dim);
  out.shape.sequences = static_cast<int>(op.batch);
  out.shape.heads = static_cast<int>(op.heads);
  out.shape.kv_heads = static_cast<int>(op.kv_heads);
  out.shape.positions = static_cast<int>(tokens / op.batch);
  out.shape.causal = op.causal && op.queries == op.keys;
  out.shape.scale = 1 / std::sqrt(static_cast<float>(op.head_dim));
  out.q = part(sources, 0);
  out.k = part(sources, 1);
  out.v = part(sources, 2);
  out.o = head_numbers(forward ? work.writes[0] : work.reads[n - 3], 0, op);
  out.lse = floats(forward ? work.writes[1] : work.reads[n - 2]);
  out.drops = op.dropout;
  if (op.dropout) out.dropout = {work.dropout.rule, dropout_rows(op, work)};
  if (!forward) {
    out.d_o = head_numbers(work.reads[n - 1], 0, op);
    out.d_q = part(work.writes, 0);
    out.d_k = part(work.writes, 1);
    out.d_v = part(work.writes, 2);
  }
  for (const HeadNumbers& one :
       {out.q, out.k, out.v, out.o, forward ? out.o : out.d_o, forward ? out.o : out.d_q,
        forward ? out.o : out.d_k, forward ? out.o : out.d_v}) {
    const bool fits = one.data.storage == Storage::kBf16 && one.data.aligned();
    out.all_bf16 = out.all_bf16 && fits;
  }
  return out;
}

template <class Real>
HeadRows<Real> head_rows(const HeadNumbers& numbers) {
  return {static_cast<Real*>(numbers.data.data), numbers.sequence, numbers.row, numbers.head};
}

// rowsum(dO O).
inline std::int64_t attention_scratch_floats(const Attention& op) {
  return op.pass == Pass::kForward ? 0 : op.batch * op.heads * op.queries;
}

template <int kDim, bool kDrops, class Run>
void flash_kernels(const AttentionOperands& a, bool forward, float* scratch, Run run) {
  const auto q = head_rows<const Bf16>(a.q), k = head_rows<const Bf16>(a.k);
  const auto v = head_rows<const Bf16>(a.v);
  if (forward) {
    return run(
        FlashForward<kDim, kDrops>{a.shape, q, k, v, head_rows<Bf16>(a.o), a.lse, a.dropout});
  }
  const auto d_o = head_rows<const Bf16>(a.d_o);
  run(FlashDots<kDim>{a.shape, head_rows<const Bf16>(a.o), d_o, scratch});
  run(FlashQueries<kDim, kDrops>{a.shape, q, k, v, d_o, a.lse, scratch, head_rows<Bf16>(a.d_q),
                                 a.dropout});
  run(FlashKeys<kDim, kDrops>{a.shape, q, k, v, d_o, a.lse, scratch, head_rows<Bf16>(a.d_k),
                              head_rows<Bf16>(a.d_v), a.dropout});
}

template <int kDim, class Run>
void flash_kernels(const AttentionOperands& a, bool forward, float* scratch, Run run) {
  if (a.drops) return flash_kernels<kDim, true>(a, forward, scratch, run);
  flash_kernels<kDim, false>(a, forward, scratch, run);
}

template <class Run>
void op_kernels(const Attention& op, const Work& work, float* scratch, Run run) {
  const AttentionOperands a = attention_operands(op, work);
  const bool forward = op.pass == Pass::kForward;
  if (a.all_bf16 && a.dim == 64) return flash_kernels<64>(a, forward, scratch, run);
  if (a.all_bf16 && a.dim == 128) return flash_kernels<128>(a, forward, scratch, run);
  PlainAttention kernel{PlainPass::kForward,
                        a.shape,
                        a.dim,
                        a.q,
                        a.k,
                        a.v,
                        a.o,
                        a.d_o,
                        a.d_q,
                        a.d_k,
                        a.d_v,
                        a.lse,
                        a.drops,
                        a.dropout};
  if (forward) return run(kernel);
  kernel.pass = PlainPass::kQueries;
  run(kernel);
  kernel.pass = PlainPass::kKeys;
  run(kernel);
}

// What kernels of an Op keep between each other in device memory. A Gemm's: the partial sums of its
// bias gradient.
inline std::int64_t op_scratch_floats(const Op& op) {
  return match(
      op,
      [](const Gemm& gemm) {
        const bool sums = gemm.bias && gemm.role == GemmRole::kWeightGradient;
        return sums ? column_sum_floats(gemm.m) : 0;
      },
      [](const Attention& attention) { return attention_scratch_floats(attention); },
      [](const Norm& norm) { return norm_scratch_floats(norm); },
      [](const Pointwise& pointwise) { return pointwise_scratch_floats(pointwise); },
      [](const Gather&) { return std::int64_t{0}; }, [](const Loss&) { return std::int64_t{0}; },
      [](const Update& update) {
        return update.part == UpdatePart::kSquaredNorm ? kSquaredNormFloats : 0;
      },
      [](const Route&) { return std::int64_t{0}; }, [](const Permute&) { return std::int64_t{0}; },
      [](const Regroup&) { return std::int64_t{0}; },
      [](const OwnSlots&) { return std::int64_t{0}; },
      [](const ShareHeads&) { return std::int64_t{0}; },
      [](const LatentKeys&) { return std::int64_t{0}; });
}

}  // namespace stepcast::cuda

// Which kernels carry out an Op, with which operands: the one place that says so. `run` is called
// with each kernel in turn; on the device it launches them on a stream (launch.cu), in tests it
// emulates them. What an Op means follows execute/cpu; scratch is device memory of scratch_bytes
// (kernels.h). Attention: flash_kernels.h.
#pragma once

#include <algorithm>

#include "execute/backend.h"
#include "execute/cuda/elementwise_kernels.h"
#include "execute/cuda/norm_kernels.h"
#include "execute/cuda/softmax_kernels.h"
#include "execute/cuda/token_kernels.h"
#include "execute/cuda/update_kernels.h"
#include "sim/base/error.h"

namespace stepcast::cuda {

inline Storage storage_of(Dtype dtype) {
  STEPCAST_CHECK(dtype == Dtype::kFp32 || dtype == Dtype::kBf16, "kernels compute fp32 and bf16");
  return dtype == Dtype::kBf16 ? Storage::kBf16 : Storage::kFp32;
}

// Written as what it is read by: a View is a ConstView too.
inline View view(const Operand& operand) {
  return {operand.data, storage_of(operand.tensor->dtype)};
}

inline ConstView optional_view(std::span<const Operand> operands, std::size_t i) {
  return i < operands.size() ? ConstView(view(operands[i])) : ConstView();
}

inline float* floats(const Operand& operand) {
  STEPCAST_CHECK(operand.tensor->dtype == Dtype::kFp32, "statistics are fp32");
  return static_cast<float*>(operand.data);
}

inline const std::int64_t* token_ids(const Operand& operand) {
  return static_cast<const std::int64_t*>(operand.data);
}

// Whether what is written there stands among the reads from `first` on: it is added to.
inline bool adds_to(const Work& work, std::size_t write, std::size_t first) {
  return std::any_of(work.reads.begin() + static_cast<std::ptrdiff_t>(first), work.reads.end(),
                     [&](const Operand& in) { return in.data == work.writes[write].data; });
}

inline TokenRows token_rows(const Work& work, std::int64_t rows) {
  return {rows, work.place.token(0, rows), work.place.batch.micro_batch};
}

// --------------------------------------------------------------------------------- column sums

inline std::int64_t column_sum_floats(std::int64_t columns) { return columns * kPartialBlocksMax; }

template <class Run>
void column_sum_kernels(ConstView x, std::int64_t rows, std::int64_t columns, View sums,
                        bool accumulate, float* scratch, Run run) {
  const ColumnPartials partials{x, rows, columns, scratch};
  run(partials);
  run(FoldPartials{scratch, columns, columns, partials.geometry().blocks_y, accumulate, sums});
}

// ---------------------------------------------------------------------------------------- norms

inline NormLayout norm_layout(const Norm& op, const Tensor& x, const Tensor& y,
                              const Tensor& weight) {
  NormLayout layout;
  layout.rows = op.rows;
  layout.columns = layout.in_width = layout.out_width = op.columns;
  if (weight.shape.rank < 2) return layout;
  layout.in_width = x.shape.sizes[1];
  layout.out_width = y.shape.sizes[1];
  layout.heads = op.rows / x.shape.sizes[0];  // queries and keys of a token
  layout.queries = 2 * layout.heads - layout.in_width / op.columns;
  return layout;
}

// Of the weight's gradient at most two rows, and the bias's.
inline std::int64_t norm_scratch_floats(const Norm& op) {
  return op.pass == Pass::kForward ? 0 : 3 * op.columns * kPartialBlocksMax;
}

template <class Run>
void op_kernels(const Norm& op, const Work& work, float* scratch, Run run) {
  const bool layer = op.kind == NormKind::kLayer;
  if (op.pass == Pass::kForward) {
    const Tensor &x = *work.reads[0].tensor, &weight = *work.reads[1].tensor;
    return run(NormForward{norm_layout(op, x, *work.writes[0].tensor, weight), layer,
                           view(work.reads[0]), view(work.reads[1]), optional_view(work.reads, 2),
                           view(work.writes[0]), floats(work.writes[1])});
  }
  NormBackward kernel;
  const Tensor& weight = *work.reads[2].tensor;
  kernel.layout = norm_layout(op, *work.reads[1].tensor, *work.writes[0].tensor, weight);
  kernel.layer = layer;
  kernel.with_bias = work.writes.size() > 2;
  kernel.weight_rows = weight.shape.rank < 2 ? 1 : 2;
  kernel.d_y = view(work.reads[0]);
  kernel.x = view(work.reads[1]);
  kernel.weight = view(work.reads[2]);
  kernel.statistics = floats(work.reads[3]);
  kernel.d_x = view(work.writes[0]);
  kernel.partials = scratch;
  run(kernel);
  const std::int64_t stride = kernel.parts() * op.columns;
  const std::int64_t weights = kernel.weight_rows * op.columns;
  const int blocks = kernel.geometry().blocks;
  run(FoldPartials{scratch, stride, weights, blocks, adds_to(work, 1, 4), view(work.writes[1])});
  if (!kernel.with_bias) return;
  run(FoldPartials{scratch + weights, stride, op.columns, blocks, adds_to(work, 2, 4),
                   view(work.writes[2])});
}

// ------------------------------------------------------------------------------------ pointwise

inline std::int64_t pointwise_scratch_floats(const Pointwise& op) {
  return op.kind == PointwiseKind::kAddRowsBackward ? column_sum_floats(op.columns) : 0;
}

template <class Run>
void add_rows_kernels(const Pointwise& op, const Work& work, float* scratch, Run run) {
  const bool forward = op.kind == PointwiseKind::kAddRows;
  const Operand& table = forward ? work.reads[1] : work.writes[0];
  const bool one_row = table.tensor->shape.elements() == op.columns;
  if (forward) {
    return run(AddRowsForward{token_rows(work, op.rows), op.columns, one_row, view(work.reads[0]),
                              view(table), view(work.writes[0])});
  }
  const bool accumulate = adds_to(work, 0, 1);
  if (one_row) {
    return column_sum_kernels(view(work.reads[0]), op.rows, op.columns, view(table), accumulate,
                              scratch, run);
  }
  run(AddPositionsBackward{token_rows(work, op.rows), op.columns,
                           table.tensor->shape.elements() / op.columns, accumulate,
                           view(work.reads[0]), view(table)});
}

// Tensors end to end into one, or the tensor rank's share of the rows of one.
template <class Run>
void copy_kernels(const Work& work, Run run) {
  const View out = view(work.writes[0]);
  const std::int64_t size = work.writes[0].tensor->shape.elements();
  const bool share = work.reads.size() == 1 && work.reads[0].tensor->shape.elements() > size;
  std::int64_t at = 0;
  for (const Operand& in : work.reads) {
    const std::int64_t elements = share ? size : in.tensor->shape.elements();
    ElementwiseKernel kernel;
    kernel.kind = Elementwise::kCopy;
    kernel.size = elements;
    kernel.a = view(in).from(share ? work.place.tensor_rank * size : 0);
    kernel.out = out.from(at);
    run(kernel);
    at += elements;
  }
}

// The numbers are where they belong already, so each tensor is copied onto itself.
template <class Run>
void unflatten_kernels(const Work& work, Run run) {
  for (const Operand& one : work.writes) {
    ElementwiseKernel kernel;
    kernel.kind = Elementwise::kCopy;
    kernel.size = one.tensor->shape.elements();
    kernel.a = view(one);
    kernel.out = view(one);
    run(kernel);
  }
}

template <class Run>
void elementwise_kernels(Elementwise kind, std::int64_t columns, const Work& work, Run run) {
  for (const Operand& out : work.writes) {  // several only of kFill
    ElementwiseKernel kernel;
    kernel.kind = kind;
    kernel.size = out.tensor->shape.elements();
    kernel.columns = columns;
    kernel.a = kind == Elementwise::kFill ? ConstView() : optional_view(work.reads, 0);
    kernel.b = optional_view(work.reads, 1);
    kernel.bias = optional_view(work.reads, 2);
    kernel.out = view(out);
    run(kernel);
  }
}

template <class Run>
void gate_kernels(const Pointwise& op, const Work& work, bool with_gelu, bool backward, Run run) {
  const auto in = work.reads.subspan(backward ? 1 : 0);
  const bool packed = in.size() == 1;
  GateKernel kernel;
  kernel.with_gelu = with_gelu;
  kernel.rows = op.rows;
  kernel.columns = backward ? op.columns / 2 : op.columns;  // backward: those of both gradients
  kernel.stride = packed ? 2 * kernel.columns : kernel.columns;
  kernel.gate = view(in[0]);
  kernel.up = packed ? view(in[0]).from(kernel.columns) : view(in[1]);
  kernel.out = view(work.writes[0]);
  if (backward) {
    kernel.d_y = view(work.reads[0]);
    kernel.d_up = packed ? kernel.out.from(kernel.columns) : view(work.writes[1]);
  }
  run(kernel);
}

template <class Run>
void rotary_kernels(const Pointwise& op, const Work& work, double base, Run run) {
  STEPCAST_CHECK(op.head_dim > 0 && op.head_dim % 2 == 0, "rotary needs an even head_dim");
  const float direction = op.kind == PointwiseKind::kRotary ? 1 : -1;
  run(RotaryKernel{token_rows(work, op.rows), op.columns, work.writes[0].tensor->shape.sizes[1],
                   static_cast<int>(op.head_dim), direction, static_cast<float>(op.scale), base,
                   view(work.reads[0]), view(work.writes[0])});
}

template <class Run>
void dropout_kernels(const Pointwise& op, const Work& work, Run run) {
  const DropoutRule& rule = work.dropout.rule;
  const std::int64_t size = op.rows * op.columns;
  if (op.kind == PointwiseKind::kDropoutBackward) {
    return run(DropoutBackward{rule.scale, size, view(work.reads[0]),
                               static_cast<const std::uint8_t*>(work.reads[1].data),
                               view(work.writes[0])});
  }
  const bool adds = op.kind == PointwiseKind::kDropoutAdd;
  DropoutForward kernel;
  kernel.rule = rule;
  kernel.rows = dropout_rows(op, work);
  kernel.size = size;
  kernel.columns = op.columns;
  kernel.x = view(work.reads[0]);
  if (adds) kernel.residual = view(work.reads[1]);
  kernel.bias = optional_view(work.reads, 2);
  kernel.y = view(work.writes[0]);
  kernel.mask = static_cast<std::uint8_t*>(work.writes[1].data);
  run(kernel);
}

inline constexpr double kRotaryBaseOfCpu = 10000;  // kRotaryBase in execute/cpu/kernels.h

template <class Run>
void op_kernels(const Pointwise& op, const Work& work, float* scratch, Run run) {
  switch (op.kind) {
    case PointwiseKind::kAdd: return elementwise_kernels(Elementwise::kAdd, op.columns, work, run);
    case PointwiseKind::kAddRows:
    case PointwiseKind::kAddRowsBackward: return add_rows_kernels(op, work, scratch, run);
    case PointwiseKind::kGelu:
      return elementwise_kernels(Elementwise::kGelu, op.columns, work, run);
    case PointwiseKind::kGeluBackward:
      return elementwise_kernels(Elementwise::kGeluBackward, op.columns, work, run);
    case PointwiseKind::kSwiglu: return gate_kernels(op, work, false, false, run);
    case PointwiseKind::kSwigluBackward: return gate_kernels(op, work, false, true, run);
    case PointwiseKind::kGeglu: return gate_kernels(op, work, true, false, run);
    case PointwiseKind::kGegluBackward: return gate_kernels(op, work, true, true, run);
    case PointwiseKind::kRotary:
    case PointwiseKind::kRotaryBackward: return rotary_kernels(op, work, kRotaryBaseOfCpu, run);
    case PointwiseKind::kSoftmax:
      return run(SoftmaxForward{op.rows, op.columns, op.causal, view(work.reads[0]),
                                view(work.writes[0])});
    case PointwiseKind::kSoftmaxBackward:
      return run(SoftmaxBackward{op.rows, op.columns, view(work.reads[0]), view(work.reads[1]),
                                 view(work.writes[0])});
    case PointwiseKind::kMask:
    case PointwiseKind::kMaskBackward:
      return run(MaskScores{op.rows, op.columns,
                            op.kind == PointwiseKind::kMask ? static_cast<float>(kMaskedScore) : 0,
                            view(work.writes[0])});
    case PointwiseKind::kCast: return copy_kernels(work, run);
    case PointwiseKind::kUnflatten: return unflatten_kernels(work, run);
    case PointwiseKind::kScale:
      return elementwise_kernels(Elementwise::kScale, op.columns, work, run);
    case PointwiseKind::kFill:
      return elementwise_kernels(Elementwise::kFill, op.columns, work, run);
    case PointwiseKind::kDropout:
    case PointwiseKind::kDropoutBackward:
    case PointwiseKind::kDropoutAdd: return dropout_kernels(op, work, run);
    case PointwiseKind::kAmax:
    case PointwiseKind::kQuantize:
    case PointwiseKind::kQuantizeBoth:
    case PointwiseKind::kTranspose:
    case PointwiseKind::kSwigluOai:
    case PointwiseKind::kSwigluOaiBackward:
    case PointwiseKind::kAddExpertBias:
    case PointwiseKind::kAddExpertBiasBackward:
    case PointwiseKind::kKeysValues:
    case PointwiseKind::kKeysValuesBackward:
    case PointwiseKind::kMergeAttention: break;  // cuda_unsupported() names these
  }
  STEPCAST_CHECK(false, "unsupported() names the ops that no backend carries out");
}

// ----------------------------------------------------------------------------- tokens and losses

template <class Run>
void op_kernels(const Gather& op, const Work& work, Run run) {
  const std::int64_t first = work.place.tensor_rank * op.vocabulary;
  if (op.pass == Pass::kForward) {
    return run(GatherForward{op.rows, op.columns, op.vocabulary, first, token_ids(work.reads[0]),
                             view(work.reads[1]), view(work.writes[0])});
  }
  if (!adds_to(work, 0, 2)) elementwise_kernels(Elementwise::kFill, op.columns, work, run);
  run(GatherBackward{op.rows, op.columns, op.vocabulary, first, token_ids(work.reads[0]),
                     view(work.reads[1]), view(work.writes[0])});
}

template <class Run>
void op_kernels(const Loss& op, const Work& work, Run run) {
  LossKernel kernel;
  kernel.rows = op.rows;
  kernel.vocabulary = op.vocabulary;
  kernel.first = work.place.tensor_rank * op.vocabulary;
  // Columns beyond the real vocabulary are padding.
  kernel.columns =
      std::clamp<std::int64_t>(work.place.batch.vocabulary - kernel.first, 0, op.vocabulary);
  kernel.mean = static_cast<float>(1.0 / static_cast<double>(work.place.batch_tokens));
  kernel.logits = view(work.reads[0]);
  switch (op.part) {
    case LossPart::kMaximum:
      kernel.stage = LossStage::kMaximum;
      kernel.maximum = floats(work.writes[0]);
      break;
    case LossPart::kSums:
      kernel.stage = LossStage::kSums;
      kernel.ids = token_ids(work.reads[1]);
      kernel.maximum = floats(work.reads[2]);
      kernel.sums = floats(work.writes[0]);
      break;
    case LossPart::kFinish:
      kernel.stage = LossStage::kFinish;
      kernel.maximum = floats(work.reads[1]);
      kernel.sums = floats(work.reads[2]);
      kernel.ids = token_ids(work.reads[3]);
      kernel.loss = floats(work.writes[0]);
      kernel.out = view(work.writes[1]);
      break;
    case LossPart::kBackward:
      kernel.stage = LossStage::kBackward;
      kernel.ids = token_ids(work.reads[1]);
      kernel.out = view(work.writes[0]);
      break;
  }
  run(kernel);
}

}  // namespace stepcast::cuda

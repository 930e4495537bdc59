// Backend: what carries out one rank's kernels.
//
// The interpreter (rank.h) decides what runs when and where its operands lie; a backend only does
// the arithmetic of one Op. What an Op means beyond its shapes (which slice of a table this rank
// holds, at which position a row stands) follows from the Job's batch and the rank's place.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "execute/context_share.h"
#include "execute/dropout.h"
#include "sim/program/program.h"

namespace stepcast {

struct Operand {
  void* data = nullptr;
  const Tensor* tensor = nullptr;
};

// What is the same for all ops of a rank.
struct Place {
  Batch batch;
  std::int64_t tensor_rank = 0;  // coordinate on the tensor axis
  std::int64_t tensor_ranks = 1;
  std::int64_t batch_tokens = 1;  // of the global batch, over which the loss is a mean
  ContextShare context = {};
  std::int64_t expert_rank = 0;  // index among the ranks of Job::experts: which experts it has

  // The token, of those of the micro-batch that the rank's context has, 0 .. s b / c - 1, that row
  // `i` of a tensor of `rows` rows stands for; and its position in the sequence.
  std::int64_t token(std::int64_t i, std::int64_t rows) const {
    const bool shared = rows < batch.sequence_length / context.ranks * batch.micro_batch;
    return shared ? tensor_rank * rows + i : i;
  }
  std::int64_t position(std::int64_t i, std::int64_t rows) const {
    return context.position(token(i, rows) / batch.micro_batch);
  }
};

// Of an op that drops elements: which dropout of the model it is, and of which sequences.
struct Dropout {
  DropoutRule rule;
  std::int64_t first_sequence = 0;  // of the micro-batch, in the global batch of a step
};

struct Work {
  const Op& op;
  std::span<const Operand> reads, writes;
  const Place& place;
  Dropout dropout = {};
};

// Whether a rank's own tokens are whole sequences, of `positions`: where ranks share a sequence, it
// has its share of the heads of them (KeySource::kOwn in op.h).
constexpr bool has_whole_sequences(const Attention& op, std::int64_t positions) {
  return op.source == KeySource::kOwn && op.queries == positions;
}

// How many operands of a backward Attention stand behind d_o: d_qkv, or the sinks, and behind them
// their gradient where it is `added` to.
constexpr std::size_t behind_gradient(const Attention& op, bool added) {
  if (op.source == KeySource::kPassed) return 1;
  return op.sinks ? (added ? 2 : 1) : 0;
}

// Whether the op drops elements, or takes the gradient of that: it needs Work::dropout.
bool drops(const Op& op);
// Which rows of the model the op's are. REQUIRES: drops(work.op).
DropoutRows dropout_rows(const Pointwise& op, const Work& work);
DropoutRows dropout_rows(const Attention& op, const Work& work);

// AdamW (Loshchilov & Hutter 2019) with bias correction, after clipping by the global norm N
// (Pascanu et al. 2013). In step n = 1, 2, ..., with g the gradient times
// min(1, clip / (N + 1e-6)):
//   m = beta1 m + (1 - beta1) g        v = beta2 v + (1 - beta2) g^2
//   w = w - rate (m / (1 - beta1^n) / (sqrt(v / (1 - beta2^n)) + epsilon) + decay w)
// The decay is of all parameters alike.
struct AdamW {
  double rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.95;
  double epsilon = 1e-8;
  double decay = 0.01;
  double clip = 1.0;
};

// A stretch of the training state.
struct StateRange {
  float* weight = nullptr;
  const float* gradient = nullptr;
  float* moment1 = nullptr;
  float* moment2 = nullptr;
  std::int64_t elements = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  // Everything but an Update. REQUIRES: supports(work.op).
  virtual void compute(const Work& work) = 0;
  virtual double squared_norm(const float* values, std::int64_t elements) = 0;
  // `step` counts from 1; `scale` is what clipping makes of a gradient.
  virtual void update(const StateRange& range, const AdamW& options, std::int64_t step,
                      double scale) = 0;
  // Whether any number of a tensor is NaN. This one looks at the host's memory.
  virtual bool has_nan(const Operand& operand);
};

// "" or why no backend carries the op out yet: anything but fp32 and bf16, bf16 weights without a
// master, more slots than an int32 numbers.
std::string unsupported(const Op& op);

}  // namespace stepcast

// Op: the work of one kernel, as a value.
//
// An Op says what is computed and on which shapes, nothing about where or how long. Two Ops that
// compare equal do the same work, so one measured time serves both. The operands' order is fixed
// per kind and part; it is given beside each below as  reads -> writes, shapes as (rows, columns),
// and is what a gradient rule, a verifier and an executor rely on. All shapes are one rank's.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "sim/base/units.h"

namespace stepcast {

enum class Dtype : std::uint8_t { kFp32, kBf16, kFp16, kFp8, kInt64, kInt32, kUint8 };
std::string_view dtype_name(Dtype dtype);  // "fp32", "bf16", ...
constexpr std::int64_t dtype_size(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFp32:
    case Dtype::kInt32: return 4;
    case Dtype::kBf16:
    case Dtype::kFp16: return 2;
    case Dtype::kFp8:
    case Dtype::kUint8: return 1;
    case Dtype::kInt64: return 8;
  }
  return 0;
}

enum class Pass : std::uint8_t { kForward, kBackward };

// The three products of a linear layer y = x W^T, W (out, in). Layout, accumulation and speed
// differ.
enum class GemmRole : std::uint8_t { kForward, kInputGradient, kWeightGradient };

// C(m, n) = A(m, k) B(k, n), `batch` times; multiply-add counts as two FLOPs. A linear layer of
// `batch` experts (Tensor::experts), then `grouped`, holds their matrices one behind the other, as
// A, B and C are.
//   kForward         A (m, k), B stored (n, k) [, bias (n)]         -> C (m, n)
//   kInputGradient   A (m, k), B stored (k, n)                      -> C (m, n)
//   kWeightGradient  A stored (k, m), B (k, n)                      -> C (m, n) [, bias gradient
//   (m)]
// With `accumulate` the product is added to what C holds; C is then read too (listed last in reads,
// and the bias gradient after it).
// Unfused attention is four kinds of batched product over batch * kv_heads, which read their matrix
// out of a packed qkv (see Attention) and write their part of d_qkv in place:
//   scores [qk,] qkv -> scores;  context  probabilities, qkv -> o;  and their gradients.
// They are told from a linear layer's by their operands: none is a weight (of scope chunk). Scores
// are scaled by 1 / sqrt(head_dim) in the product. Row r of the scores of one batch element
// (sequence, then kv head) is query head r / s of that kv head, at position r % s.
struct Gemm {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t batch = 1;
  GemmRole role = GemmRole::kForward;
  Dtype dtype = Dtype::kBf16;       // of A and B
  Dtype output = Dtype::kBf16;      // of C
  bool accumulate = false;
  bool bias = false;
  bool block_scales = false;        // fp8: a scale for each block: 1 x 32 in the matrix units (MX),
                                    // 1 x 128 of A and 128 x 128 of B outside them (DeepGEMM)
  bool grouped = false;             // the batch is one of experts
  bool operator==(const Gemm&) const = default;
};

// Queries, keys and values live packed in one tensor qkv (tokens, (a + 2 g) d), as one projection
// writes them: first all queries, then keys, then values. Normalised queries and keys (Qwen3) are a
// tensor qk (tokens, (a + g) d) of their own in front: "[qk,] qkv" below. Where each has a product
// of its own, they are three tensors, q, k, v, and so are their gradients. Tokens are ordered
// sequence first (row = position * micro-batch + sequence): splitting rows splits the sequence.
//
// Values may be narrower than queries and keys (latent attention): then there are three tensors,
// and o is (tokens, a value_dim).
//
// Fused (flash-style) attention: softmax(q k^T / sqrt(head_dim)) v without the scores in memory.
//   kForward   [qk,] qkv | q, k, v [, sinks (a)]    -> o (tokens, a d), lse (batch, a, s) fp32
//   kBackward  [qk,] qkv | q, k, v, and o, lse, d_o [, sinks [, d_sinks]]
//                         -> d_qkv (of qk: its first columns) | d_q, d_k, d_v [, d_sinks]
// Backward recomputes the scores: 5 matrix products to forward's 2 (FlashAttention-2).
// With `sinks` (gpt-oss; Xiao et al. 2023, arXiv 2309.17453) every query sees one key more, whose
// score is its head's sink and whose value is zero: lse counts it. d_sinks is added to where it is
// read, too.
//
// Under context parallelism (Batch in program.h) a rank's queries meet the keys and values of other
// ranks too, which stand in a tensor kv (tokens, 2 g d): first all keys, then values. Below, q is
// [qk,] qkv, of which only the queries are read then, and only their columns of d_qkv written; or a
// tensor of queries alone, and d_qkv its gradient.
//   kOwn       the rank's own, in qkv, as above: its tokens are in ascending order. Where queries
//              are a whole sequence (Batch::sequence_length), those of all ranks' tokens: rank i of
//              c then has the i-th of c equal shares of its tensor rank's heads (ShareHeads)
//   kGathered  all ranks', in kv (c tokens, 2 g d), rank by rank. keys = c queries, of which
//              `causal` leaves half: every rank has an equal part of the whole triangle
//                kForward  q, kv -> o, lse        kBackward  q, kv, o, lse, d_o -> d_qkv, d_kv
//                                                   (the other columns of d_qkv become zero)
//   kPassed    those of the rank `step` before it on the axis, wrapping around. If that one is
//              earlier in the order, all queries see the first half of its keys; else the second
//              half of the queries sees all of them: the same work, keys = queries / 2 and not
//              causal. A query that sees none has o = 0 and the lowest lse.
//                kForward   q, kv -> o, lse: of these keys alone (kMergeAttention)
//                kBackward  q, kv, o, lse, d_o, d_qkv -> d_qkv (added to), d_kv; o and lse merged
enum class KeySource : std::uint8_t { kOwn, kGathered, kPassed };

struct Attention {
  Pass pass = Pass::kForward;
  std::int64_t batch = 0, heads = 0, kv_heads = 0;
  std::int64_t queries = 0, keys = 0, head_dim = 0;
  bool causal = true;       // half of the score matrix is skipped
  bool dropout = false;     // of the probabilities: a mask made again where needed, not stored
  Dtype dtype = Dtype::kBf16;
  bool deterministic = false;  // backward adds up the gradient of q in an order that never changes
  KeySource source = KeySource::kOwn;
  std::int64_t step = 0;       // of kPassed: 1 .. c - 1
  std::int64_t value_dim = 0;  // columns of a head's values; 0: head_dim
  std::int64_t window = 0;     // of kOwn, causal: a query sees so many keys up to its own; 0: all
  bool sinks = false;          // of kOwn
  bool operator==(const Attention&) const = default;
};

constexpr std::int64_t value_columns(const Attention& a) {
  return a.value_dim > 0 ? a.value_dim : a.head_dim;
}

// Keys and values of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1). Of a
// head's key `own` columns come from the latents, as its values do; behind them stand `rotated`
// ones that all heads share, rotated here by their row's position (as kRotary does).
//   kForward   kv (rows, heads (own + values)), shared (rows, rotated) -> k (rows, heads (own +
//              rotated)), v (rows, heads values)
//   kBackward  d_k, d_v -> d_kv, d_shared
struct LatentKeys {
  Pass pass = Pass::kForward;
  std::int64_t rows = 0, heads = 0, own = 0, rotated = 0, values = 0;
  Dtype dtype = Dtype::kBf16;
  bool operator==(const LatentKeys&) const = default;
};

enum class NormKind : std::uint8_t { kLayer, kRms };

// Normalisation over the columns.
//   kForward   x (rows, columns), weight [, bias]          -> y, statistics (rows, 2 | 1) fp32
//   kBackward  d_y, x, weight, statistics                  -> d_x, d_weight [, d_bias]
//   A weight gradient that stands among the reads too is added to; else it is overwritten (so for
//   Gather and kAddRowsBackward). Norm of queries and keys (QK-norm):
//   x is qkv, of which the first heads are rows of head_dim columns; backward works in place on
//   d_qkv, the weight is (2, columns): queries', keys'.
struct Norm {
  Pass pass = Pass::kForward;
  NormKind kind = NormKind::kLayer;
  std::int64_t rows = 0, columns = 0;
  Dtype dtype = Dtype::kBf16;
  bool operator==(const Norm&) const = default;
};

// Elementwise and row-wise work, bound by memory. (rows, columns) is the shape of the output,
// except where said. Masks hold one byte an element: 1 where dropout keeps it, 0 where it does not.
// At which rate it drops, and which elements, Job::dropout says (program.h).
enum class PointwiseKind : std::uint8_t {
  kAdd,              // a, b [, bias (columns)] -> a + b + bias (may be in place)
  kAddRows,          // x (rows, columns), table -> x + table. A table of one row is a bias;
                     //   of several, learned positions: a row of x takes that of its position
  kAddRowsBackward,  // d_y (rows, columns) -> d_table: each row added to the one it took
  kAddExpertBias,    // x (rows, columns), bias (experts columns), p (rows) -> x + p bias: as many
                     //   rows of each expert, one expert's after the other
  kAddExpertBiasBackward,  // d_y (rows, columns), bias, p -> d_bias, d_p; d_bias is added to where
                           //   it stands among the reads, too
  // The next eight, where `weighted`: one more read at the end, p (rows), by which each row of the
  // result is multiplied; backward one more write, d_p.
  kGelu,             // x -> gelu(x)
  kGeluBackward,     // d_y, x -> d_x
  kSwiglu,           // gate_up (rows, 2 columns) | gate, up -> silu(gate) * up (rows, columns)
  kSwigluBackward,   // d_y, gate_up | gate, up -> d_gate_up | d_gate, d_up; columns of both
  kGeglu,            // as kSwiglu with gelu
  kGegluBackward,
  kSwigluOai,        // as kSwiglu, of gpt-oss: gate sigmoid(1.702 gate) (up + 1), of a gate of 7 at
                     //   most and an up of -7 to 7
  kSwigluOaiBackward,
  kDropout,          // x -> y, mask
  kDropoutBackward,  // d_y, mask -> d_x
  kDropoutAdd,       // x, residual [, bias] -> dropout(x + bias) + residual, mask
  kRotary,           // qkv, qk -> in place: the first `columns` = (a + g) d columns are rotated by
                     //   their row's position, a head's column j with j + d / 2; q | k -> another
  kRotaryBackward,   // d_qkv -> in place, rotated back
  kSoftmax,          // scores (rows, columns) -> masked softmax; row r's query stands at
                     //   position r % columns
  kSoftmaxBackward,  // d_p, p -> d_scores
  kMask,             // scores -> in place: where causal kSoftmax masks, they become kMaskedScore
  kMaskBackward,     // d_scores -> in place: there they become 0
  kCast,             // x... -> x in another dtype; into a tensor of 1 / t of the rows: the tensor
                     //   rank's share of them
  kFill,             // -> zeros
  kScale,            // x -> c x. What made x was divided by c besides (Megatron-LM's query-key
                     //   layer scaling): execute takes 1 for both
  // Operands of 8-bit products, (rows, columns) that of x. A product reads its operands along k, in
  // which it sums; so a matrix that two products read along different sides is needed twice: once
  // as it stands and once for its columns, transposed or with scales of its own.
  kAmax,             // x -> amax (1) fp32: the largest |x|, from which a scale follows
  kQuantize,         // x [, amax] -> x scaled, in 8 bits
  kQuantizeBoth,     // x [, amax] -> the same, and the copy for the columns
  kTranspose,        // x -> its transpose
  kUnflatten,        // x... -> in place: out of the buffer in which they came, each into its own
  // Of context parallelism (see Attention).
  kKeysValues,          // [qk,] qkv | k, v -> kv (rows, columns = 2 g d)
  kKeysValuesBackward,  // d_kv, d_qkv | d_kv, d_k, d_v -> these, their last columns added to;
                        //   d_kv -> d_k, d_v
  kMergeAttention,      // o (rows, columns = a d), lse, o', lse' of other keys -> o, lse of both,
                        //   in place: o = (o e^lse + o' e^lse') / (e^lse + e^lse')
};
std::string_view pointwise_name(PointwiseKind kind);

// GELU or a gate, forward or backward: those that may be `weighted`.
constexpr bool is_activation(PointwiseKind kind) {
  return kind >= PointwiseKind::kGelu && kind <= PointwiseKind::kSwigluOaiBackward;
}
constexpr bool is_gate_gradient(PointwiseKind kind) {
  return kind == PointwiseKind::kSwigluBackward || kind == PointwiseKind::kGegluBackward ||
         kind == PointwiseKind::kSwigluOaiBackward;
}
constexpr bool is_activation_gradient(PointwiseKind kind) {
  return kind == PointwiseKind::kGeluBackward || is_gate_gradient(kind);
}

// gpt-oss (openai/gpt-oss gpt_oss/torch/model.py, swiglu).
inline constexpr double kOaiSlope = 1.702, kOaiLimit = 7;

// Megatron-LM's (megatron/model/utils.py, attention_mask_func): the exponential of nothing.
inline constexpr double kMaskedScore = -10000;

// Rates that dropout may have: its probability to zero an element.
inline constexpr double kDropoutLeast = 1e-6, kDropoutMost = 1 - 1e-6;

// Factors that a rotation may have.
inline constexpr double kRotaryScaleLeast = 0.1, kRotaryScaleMost = 10;

struct Pointwise {
  PointwiseKind kind = PointwiseKind::kAdd;
  std::int64_t rows = 0, columns = 0;
  Dtype dtype = Dtype::kBf16;        // of the inputs
  Dtype output = Dtype::kBf16;       // of the outputs
  bool causal = false;               // kSoftmax: entries right of the diagonal are masked
  std::int64_t head_dim = 0;         // kRotary and its backward: columns of one head
  bool scores = false;               // kDropout: rows are those of scores (see Gemm), not tokens
  bool weighted = false;             // an activation of experts: times the router's weight of a row
  std::int64_t rotated = 0;          // kRotary and its backward, in place: of a head's columns only
                                     // the last so many; 0: all
  std::int64_t experts = 0;          // kAddExpertBias and its backward: how many the rows are of
  double scale = 1;                  // kRotary and its backward: of the columns that it rotates
  bool operator==(const Pointwise&) const = default;
};

// Table lookup (embedding). The table holds `vocabulary` rows; a token outside this rank's slice
// of a vocabulary-parallel table reads as zeros.
//   kForward   ids (rows), table (vocabulary, columns)      -> y (rows, columns)
//   kBackward  ids, d_y                                     -> d_table
struct Gather {
  Pass pass = Pass::kForward;
  std::int64_t rows = 0, columns = 0, vocabulary = 0;
  Dtype dtype = Dtype::kBf16;        // of the table and y
  Dtype gradient = Dtype::kBf16;     // of d_table
  bool operator==(const Gather&) const = default;
};

// Cross-entropy over logits (rows, vocabulary), in parts so that a vocabulary split over ranks can
// reduce between them (Megatron-LM's vocab-parallel loss).
//   kMaximum   logits                                        -> maximum (rows) fp32
//   kSums      logits, ids, maximum                          -> sums (rows, 2) fp32: exp-sum,
//   target
//   kFinish    logits, maximum, sums, ids, copied?           -> loss (rows) fp32, probabilities
//              `copied`: what the logits are a copy of, where the caller of the loss holds it until
//              the loss is there; nothing is read of it
//   kBackward  probabilities, ids, d_likelihood?             -> d_logits
//              `d_likelihood`, of the probabilities' shape, zeros: a framework that writes out the
//              gradient of the log-probabilities has it; what follows from `ids` is not read of it
//   `probabilities` has the dtype of `statistics` and the shape of the logits.
enum class LossPart : std::uint8_t { kMaximum, kSums, kFinish, kBackward };

struct Loss {
  LossPart part = LossPart::kMaximum;
  std::int64_t rows = 0, vocabulary = 0;
  Dtype dtype = Dtype::kBf16;        // of the logits and d_logits
  Dtype statistics = Dtype::kFp32;   // of the probabilities kept for backward
  bool operator==(const Loss&) const = default;
};

// The optimizer's work on `elements` of the training state that this rank owns.
//   kSquaredNorm   gradients..., sum (1) fp32               -> sum, the squares added
//                  Each element of the model counts once: a weight that both ends hold on the
//                  first stage; one that is not cut over the tensor axis on the first tensor rank,
//                  but experts' on all where Job::experts has that axis; and one of no expert,
//                  where state is not sharded (Flat), on the first rank of Job::experts' other axes
//   kAdamW         gradients..., norm, master?, moments     -> weights..., master?, moments
enum class UpdatePart : std::uint8_t { kSquaredNorm, kAdamW };

struct Update {
  UpdatePart part = UpdatePart::kAdamW;
  std::int64_t elements = 0;
  Dtype weight = Dtype::kBf16;
  Dtype gradient = Dtype::kBf16;
  bool master = true;                // an fp32 copy of the weights is read and written
  Dtype moment = Dtype::kFp32;
  bool operator==(const Update&) const = default;
};

// A mixture of experts (Shazeer et al. 2017; GShard, Lepikhin et al. 2020): each token goes to
// `chosen` of the experts. A rank gives each expert up to `capacity` of its tokens; those beyond
// are dropped for that expert, later tokens first. capacity = rows drops none.
//
// The router. A token's weights are the softmax over its chosen experts, those with the highest
// logits (of equal ones the first): Mixtral's, and the same as the softmax over all, made to sum
// to one again. A slot is a place among experts * capacity, expert by expert. A choice that was
// dropped has none: there stands -2 - expert.
//   kForward   logits (rows, experts)  -> weights (rows, chosen) fp32, slots (rows, chosen) int32:
//              a row's choices from the highest logit down
//   kBackward  d_weights, weights, slots-> d_logits: of what was dropped d_weights is zero
struct Route {
  Pass pass = Pass::kForward;
  std::int64_t rows = 0, experts = 0, chosen = 0, capacity = 0;
  Dtype dtype = Dtype::kBf16;  // of the logits
  bool operator==(const Route&) const = default;
};

// Tokens to their slots and back. `slots` = experts * capacity; a slot that nobody takes is zero.
//   kPermute    x (rows, columns), slots (rows, chosen) [, weights] -> y (slots, columns) [, p
//               (slots) fp32: the weights]
//   kUnpermute  y (slots, columns), slots [, p] -> x (rows, columns), the sum over a row's slots
//               [, weights (rows, chosen) fp32]
// Each is the other's gradient.
enum class PermutePart : std::uint8_t { kPermute, kUnpermute };
struct Permute {
  PermutePart part = PermutePart::kPermute;
  std::int64_t rows = 0, chosen = 0, slots = 0, columns = 0;
  Dtype dtype = Dtype::kBf16;
  bool weighted = false;  // with the operands in brackets
  bool operator==(const Permute&) const = default;
};

// Where tokens go that every rank of a group has gathered: of the slots that its ranks chose, the
// tokens of one after the other, those of the experts that this rank has. There the `capacity`
// slots of an expert for each rank's tokens follow each other, rank by rank. A choice of another
// rank's expert has none: -1.
//   slots (rows, chosen) int32 -> slots (rows, chosen) int32, below experts * ranks * capacity
struct OwnSlots {
  std::int64_t rows = 0, chosen = 0;
  std::int64_t experts = 0, capacity = 0;  // of this rank; of one expert, for one rank's tokens
  std::int64_t ranks = 1;                  // whose tokens they are; rows are a multiple of it
  bool operator==(const OwnSlots&) const = default;
};

// Blocks of `rows` rows, `outer` times `inner` of them, change places: block (i, j) becomes (j, i).
// So what came rank by rank stands expert by expert. Or they are the two stretches of a sequence
// that each of its ranks has (Batch in program.h), of which the second run backwards:
//   kToSequence  (i, j) of `outer` ranks' stretches (inner = 2) goes to its place in the sequence,
//                i or 2 outer - 1 - i
//   kToRanks     what stands there (outer = 2, inner ranks) goes back
//   x (outer inner rows, columns) -> y
enum class Regrouping : std::uint8_t { kTranspose, kToSequence, kToRanks };
struct Regroup {
  std::int64_t outer = 0, inner = 0, rows = 0, columns = 0;
  Dtype dtype = Dtype::kBf16;
  Regrouping order = Regrouping::kTranspose;
  bool operator==(const Regroup&) const = default;
};

// What ranks that share a sequence send each other where each takes whole sequences of its share of
// the heads (DeepSpeed-Ulysses, Jacobs et al. 2023). `columns`: of all heads' queries, keys and
// values, which stand side by side; 0: none of that kind.
//   x (rows, sum of columns) -> y (ranks rows, sum / ranks): of one rank after the other its heads'
//   columns of all rows; `back`: y -> x. Each is the other's gradient
struct ShareHeads {
  bool back = false;
  std::int64_t rows = 0, ranks = 0;
  std::array<std::int64_t, 3> columns = {};
  Dtype dtype = Dtype::kBf16;
  std::int64_t width() const { return columns[0] + columns[1] + columns[2]; }
  bool operator==(const ShareHeads&) const = default;
};

using Op = std::variant<Gemm, Attention, Norm, Pointwise, Gather, Loss, Update, Route, Permute,
                        Regroup, LatentKeys, OwnSlots, ShareHeads>;

// FLOPs that the kernel performs (a causal Attention counts half of the score matrix).
// Memory-bound kinds count a handful of operations an element.
Flops flops(const Op& op);

// Bytes that must cross the memory bus at least once: every operand read, every result written.
Bytes traffic(const Op& op);

// "gemm forward 4096x8192x1024 bf16": stable, without spaces inside a field's value; parse_op reads
// it back (throws Error).
std::string to_text(const Op& op);
Op parse_op(std::string_view text, std::string_view place);

std::size_t hash_value(const Op& op);

}  // namespace stepcast

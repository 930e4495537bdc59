// How many operands each kind of op takes, from the operand lists in op.h. O(1).

#include <algorithm>

#include "sim/program/text.h"
#include "sim/program/verify_parts.h"

namespace stepcast {

namespace {

struct Range {
  int least = 0, most = 0;
  bool holds(int n) const { return n >= least && n <= most; }
};
struct Arity {
  Range reads, writes;
};

constexpr int kAnyNumber = INT32_MAX;

// A batched product that reads its matrices out of qkv may name one tensor for both, and may write
// its part of d_qkv in place: hence 1 to 4 where nothing accumulates. The gradient of a bias, where
// it accumulates, may be listed among the reads behind C.
Arity arity(const Gemm& g) {
  const bool weight_bias = g.bias && g.role == GemmRole::kWeightGradient;
  const Range writes = {weight_bias ? 2 : 1, weight_bias ? 2 : 1};
  if (!g.accumulate && !g.bias) return {{1, 4}, writes};
  const int bias = g.bias && g.role == GemmRole::kForward ? 1 : 0;
  const int least = 2 + bias + (g.accumulate ? 1 : 0);
  return {{least, least + (g.accumulate && weight_bias ? 1 : 0)}, writes};
}

Arity arity(const Attention& a) {
  const bool forward = a.pass == Pass::kForward;
  switch (a.source) {
    case KeySource::kOwn:
      if (a.sinks) return forward ? Arity{{2, 4}, {2, 2}} : Arity{{5, 8}, {2, 4}};
      return forward ? Arity{{1, 3}, {2, 2}} : Arity{{4, 6}, {1, 3}};
    case KeySource::kGathered: return forward ? Arity{{2, 3}, {2, 2}} : Arity{{5, 6}, {2, 2}};
    case KeySource::kPassed: return forward ? Arity{{2, 3}, {2, 2}} : Arity{{6, 7}, {2, 2}};
  }
  return {};
}

Arity arity(const Norm& n) {
  const int bias = n.kind == NormKind::kLayer ? 1 : 0;
  if (n.pass == Pass::kForward) return {{2, 2 + bias}, {2, 2}};
  return {{4, 5 + bias}, {2, 2 + bias}};  // where the gradients accumulate they are read as well
}

Arity arity(const Pointwise& p) {
  if (p.weighted) {  // of one tensor that holds gate and up
    return is_activation_gradient(p.kind) ? Arity{{3, 3}, {2, 2}} : Arity{{2, 2}, {1, 1}};
  }
  switch (p.kind) {
    case PointwiseKind::kAdd: return {{2, 3}, {1, 1}};
    case PointwiseKind::kAddRowsBackward: return {{1, 2}, {1, 1}};
    case PointwiseKind::kAddExpertBias: return {{3, 3}, {1, 1}};
    case PointwiseKind::kAddExpertBiasBackward: return {{3, 4}, {2, 2}};
    case PointwiseKind::kAddRows:
    case PointwiseKind::kGeluBackward:
    case PointwiseKind::kDropoutBackward:
    case PointwiseKind::kSoftmaxBackward: return {{2, 2}, {1, 1}};
    case PointwiseKind::kKeysValuesBackward: return {{1, 3}, {1, 2}};
    case PointwiseKind::kKeysValues: return {{1, 2}, {1, 1}};
    case PointwiseKind::kMergeAttention: return {{4, 4}, {2, 2}};
    case PointwiseKind::kSwiglu:
    case PointwiseKind::kGeglu:
    case PointwiseKind::kSwigluOai: return {{1, 2}, {1, 1}};
    case PointwiseKind::kSwigluBackward:
    case PointwiseKind::kGegluBackward:
    case PointwiseKind::kSwigluOaiBackward: return {{2, 3}, {1, 2}};
    case PointwiseKind::kDropout: return {{1, 1}, {2, 2}};
    case PointwiseKind::kDropoutAdd: return {{2, 3}, {2, 2}};
    case PointwiseKind::kFill: return {{0, 0}, {1, kAnyNumber}};   // one kernel over many tensors
    case PointwiseKind::kCast: return {{1, kAnyNumber}, {1, 1}};
    case PointwiseKind::kUnflatten: return {{1, kAnyNumber}, {1, kAnyNumber}};
    case PointwiseKind::kQuantize: return {{1, 2}, {1, 1}};
    case PointwiseKind::kQuantizeBoth: return {{1, 2}, {2, 2}};
    case PointwiseKind::kGelu:
    case PointwiseKind::kRotary:
    case PointwiseKind::kRotaryBackward:
    case PointwiseKind::kSoftmax:
    case PointwiseKind::kMask:
    case PointwiseKind::kMaskBackward:
    case PointwiseKind::kScale:
    case PointwiseKind::kAmax:
    case PointwiseKind::kTranspose: return {{1, 1}, {1, 1}};
  }
  return {};
}

Arity arity(const Gather& g) {
  return {{2, g.pass == Pass::kForward ? 2 : 3}, {1, 1}};
}

Arity arity(const Loss& l) {
  switch (l.part) {
    case LossPart::kMaximum: return {{1, 1}, {1, 1}};
    case LossPart::kSums: return {{3, 3}, {1, 1}};
    case LossPart::kFinish: return {{4, 5}, {2, 2}};
    case LossPart::kBackward: return {{2, 3}, {1, 1}};
  }
  return {};
}

Arity arity(const Update& u) {
  if (u.part == UpdatePart::kSquaredNorm) return {{1, kAnyNumber}, {1, 1}};
  return {{2, kAnyNumber}, {2, kAnyNumber}};
}

Arity arity(const Route& r) {
  return r.pass == Pass::kForward ? Arity{{1, 1}, {2, 2}} : Arity{{3, 3}, {1, 1}};
}

Arity arity(const Permute& p) {
  const int weights = p.weighted ? 1 : 0;
  return {{2 + weights, 2 + weights}, {1 + weights, 1 + weights}};
}

Arity arity(const Regroup&) { return {{1, 1}, {1, 1}}; }
Arity arity(const OwnSlots&) { return {{1, 1}, {1, 1}}; }
Arity arity(const ShareHeads&) { return {{1, 1}, {1, 1}}; }
Arity arity(const LatentKeys&) { return {{2, 2}, {2, 2}}; }

// What is read packed in one tensor has one gradient, what is read from several has as many.
int gradients_due(const Op& op, int reads, int writes) {
  if (const auto* a = std::get_if<Attention>(&op)) {
    if (a->pass == Pass::kForward || a->source != KeySource::kOwn) return 0;
    if (!a->sinks) return reads == 6 ? 3 : 1;
    // Of 7: three tensors, or one behind qk with a sum of the sinks' gradient.
    if (reads == 7) return writes == 4 ? 4 : 2;
    return reads == 8 ? 4 : 2;
  }
  const auto* p = std::get_if<Pointwise>(&op);
  const bool gate = p != nullptr && is_gate_gradient(p->kind);
  return gate ? reads - 1 : 0;  // of weighted ones, too: d_gate_up and d_p
}

void append_range(std::string& out, Range range) {
  append(out, range.least);
  if (range.most == kAnyNumber) append(out, " or more");
  else if (range.most > range.least) append(out, " to ", range.most);
}

}  // namespace

std::string operand_fault(const Op& op, int reads, int writes) {
  const Arity fits = std::visit([](const auto& o) { return arity(o); }, op);
  if (fits.reads.holds(reads) && fits.writes.holds(writes)) {
    const int due = gradients_due(op, reads, writes);
    if (due == 0 || due == writes) return "";
  }
  std::string fault;
  append(fault, '\'', to_text(op), "' reads ");
  append_range(fault, fits.reads);
  append(fault, " and writes ");
  append_range(fault, fits.writes);
  append(fault, " operands, not ", reads, " and ", writes);
  return fault;
}

}  // namespace stepcast

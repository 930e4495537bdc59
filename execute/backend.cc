// What backends carry out, said once for all of them.
#include "execute/backend.h"

namespace stepcast {

namespace {

bool single(Dtype dtype) { return dtype == Dtype::kFp32; }

bool all_single(const Gemm& g) { return single(g.dtype) && single(g.output); }
bool all_single(const Attention& a) { return single(a.dtype); }
bool all_single(const Norm& n) { return single(n.dtype); }
bool all_single(const Pointwise& p) { return single(p.dtype) && single(p.output); }
bool all_single(const Gather& g) { return single(g.dtype) && single(g.gradient); }
bool all_single(const Loss& l) { return single(l.dtype) && single(l.statistics); }
bool all_single(const Update& u) {
  return single(u.weight) && single(u.gradient) && single(u.moment) && !u.master;
}

bool drops(const Op& op) {
  if (const auto* attention = std::get_if<Attention>(&op)) return attention->dropout;
  const auto* pointwise = std::get_if<Pointwise>(&op);
  return pointwise != nullptr && (pointwise->kind == PointwiseKind::kDropout ||
                                  pointwise->kind == PointwiseKind::kDropoutBackward ||
                                  pointwise->kind == PointwiseKind::kDropoutAdd);
}

}  // namespace

std::string unsupported(const Op& op) {
  if (drops(op)) return "dropout is not carried out yet";
  if (!std::visit([](const auto& o) { return all_single(o); }, op)) {
    return "only fp32 without a further master copy is carried out yet";
  }
  const auto* pointwise = std::get_if<Pointwise>(&op);
  if (pointwise != nullptr && pointwise->kind == PointwiseKind::kScale) {
    return "scaling by a number that the Job does not give";
  }
  if (pointwise != nullptr && (pointwise->kind == PointwiseKind::kRotary ||
                               pointwise->kind == PointwiseKind::kRotaryBackward) &&
      pointwise->head_dim % 2 != 0) {
    return "rotary turns pairs of columns; head_dim is odd";
  }
  return "";
}

}  // namespace stepcast

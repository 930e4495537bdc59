// Ops as text and back: the kind, its part, the sizes, the dtype, then what only some have, in one
// fixed order. Reading is one pass over the words.
//
//   gemm weight_gradient 4096x8192x1024 batch=8 bf16 output=fp32 accumulate bias block_scales
//        grouped (in one line)
//   attention forward batch=1 heads=32 kv_heads=8 queries=4096 keys=4096 head_dim=128 bf16 causal
//   attention forward batch=1 ... queries=2048 keys=8192 head_dim=128 bf16 causal gathered
//   attention forward batch=1 ... queries=2048 keys=1024 head_dim=128 bf16 step=3
//   attention forward batch=1 ... head_dim=192 value_dim=128 bf16 causal window=1024
//   pointwise rotary 4096x5120 bf16 head_dim=128 scale 1.5
//   norm backward rms 4096x8192 bf16            pointwise softmax 4096x4096 bf16 output=bf16 causal
//   pointwise dropout 4096x4096 bf16 scores
//   gather forward 4096x8192 vocabulary=50257 bf16 gradient=fp32
//   loss finish 4096x50257 bf16 statistics=fp32
//   update adamw 1000 weight=bf16 gradient=bf16 master moment=fp32
//   pointwise swiglu 4096x1024 bf16 weighted
//   route forward 4096x128 chosen=8 capacity=256 bf16
//   permute permute 4096x2048 chosen=8 slots=32768 bf16 weighted
//   share_heads forth 4096 ranks=8 queries=8192 keys=1024 values=1024 bf16
//   own_slots 32768x8 experts=16 capacity=256 ranks=8
//   regroup 8x16x256x2048 bf16                regroup 8x2x256x2048 bf16 to_sequence
//   latent_keys forward 4096 heads=16 own=128 rotated=64 values=128 bf16
//
// batch=1 and an output of the same dtype as the input are left out.

#include "sim/program/op.h"

#include <algorithm>
#include <array>

#include "sim/program/text.h"

namespace stepcast {

namespace {

constexpr int kPointwiseKinds = static_cast<int>(PointwiseKind::kMergeAttention) + 1;

std::string_view pass_name(Pass pass) { return pass == Pass::kForward ? "forward" : "backward"; }
std::string_view norm_name(NormKind kind) { return kind == NormKind::kLayer ? "layer" : "rms"; }
std::string_view role_name(GemmRole role) {
  switch (role) {
    case GemmRole::kForward: return "forward";
    case GemmRole::kInputGradient: return "input_gradient";
    case GemmRole::kWeightGradient: return "weight_gradient";
  }
  return "?";
}
std::string_view part_name(LossPart part) {
  switch (part) {
    case LossPart::kMaximum: return "maximum";
    case LossPart::kSums: return "sums";
    case LossPart::kFinish: return "finish";
    case LossPart::kBackward: return "backward";
  }
  return "?";
}
std::string_view permute_name(PermutePart part) {
  return part == PermutePart::kPermute ? "permute" : "unpermute";
}
std::string_view update_name(UpdatePart part) {
  return part == UpdatePart::kSquaredNorm ? "squared_norm" : "adamw";
}

// ---- printing --------------------------------------------------------------------------------

void print(std::string& out, const Gemm& g) {
  append(out, "gemm ", role_name(g.role), ' ', g.m, 'x', g.n, 'x', g.k);
  if (g.batch != 1) append(out, " batch=", g.batch);
  append(out, ' ', dtype_name(g.dtype));
  if (g.output != g.dtype) append(out, " output=", dtype_name(g.output));
  if (g.accumulate) append(out, " accumulate");
  if (g.bias) append(out, " bias");
  if (g.block_scales) append(out, " block_scales");
  if (g.grouped) append(out, " grouped");
}

void print(std::string& out, const Attention& a) {
  append(out, "attention ", pass_name(a.pass), " batch=", a.batch, " heads=", a.heads);
  append(out, " kv_heads=", a.kv_heads, " queries=", a.queries, " keys=", a.keys);
  append(out, " head_dim=", a.head_dim, ' ');
  if (a.value_dim > 0) append(out, "value_dim=", a.value_dim, ' ');
  append(out, dtype_name(a.dtype));
  if (a.causal) append(out, " causal");
  if (a.window > 0) append(out, " window=", a.window);
  if (a.sinks) append(out, " sinks");
  if (a.dropout) append(out, " dropout");
  if (a.deterministic) append(out, " deterministic");
  if (a.source == KeySource::kGathered) append(out, " gathered");
  if (a.source == KeySource::kPassed) append(out, " step=", a.step);
}

void print(std::string& out, const Norm& n) {
  append(out, "norm ", pass_name(n.pass), ' ', norm_name(n.kind), ' ', n.rows, 'x', n.columns, ' ',
         dtype_name(n.dtype));
}

void print(std::string& out, const Pointwise& p) {
  append(out, "pointwise ", pointwise_name(p.kind), ' ', p.rows, 'x', p.columns, ' ',
         dtype_name(p.dtype));
  if (p.output != p.dtype) append(out, " output=", dtype_name(p.output));
  if (p.causal) append(out, " causal");
  if (p.head_dim != 0) append(out, " head_dim=", p.head_dim);
  if (p.rotated != 0) append(out, " rotated=", p.rotated);
  if (p.scale != 1) append(out, " scale ", p.scale);
  if (p.scores) append(out, " scores");
  if (p.weighted) append(out, " weighted");
  if (p.experts != 0) append(out, " experts=", p.experts);
}

void print(std::string& out, const Gather& g) {
  append(out, "gather ", pass_name(g.pass), ' ', g.rows, 'x', g.columns, " vocabulary=",
         g.vocabulary, ' ', dtype_name(g.dtype), " gradient=", dtype_name(g.gradient));
}

void print(std::string& out, const Loss& l) {
  append(out, "loss ", part_name(l.part), ' ', l.rows, 'x', l.vocabulary, ' ', dtype_name(l.dtype),
         " statistics=", dtype_name(l.statistics));
}

void print(std::string& out, const Update& u) {
  append(out, "update ", update_name(u.part), ' ', u.elements, " weight=", dtype_name(u.weight),
         " gradient=", dtype_name(u.gradient));
  if (u.master) append(out, " master");
  append(out, " moment=", dtype_name(u.moment));
}

void print(std::string& out, const Route& r) {
  append(out, "route ", pass_name(r.pass), ' ', r.rows, 'x', r.experts, " chosen=", r.chosen);
  append(out, " capacity=", r.capacity, ' ', dtype_name(r.dtype));
}

void print(std::string& out, const Permute& p) {
  append(out, "permute ", permute_name(p.part), ' ', p.rows, 'x', p.columns, " chosen=", p.chosen);
  append(out, " slots=", p.slots, ' ', dtype_name(p.dtype));
  if (p.weighted) append(out, " weighted");
}

void print(std::string& out, const OwnSlots& o) {
  append(out, "own_slots ", o.rows, 'x', o.chosen, " experts=", o.experts);
  append(out, " capacity=", o.capacity, " ranks=", o.ranks);
}

void print(std::string& out, const LatentKeys& l) {
  append(out, "latent_keys ", pass_name(l.pass), ' ', l.rows, " heads=", l.heads, " own=", l.own);
  append(out, " rotated=", l.rotated, " values=", l.values, ' ', dtype_name(l.dtype));
}

void print(std::string& out, const Regroup& r) {
  append(out, "regroup ", r.outer, 'x', r.inner, 'x', r.rows, 'x', r.columns, ' ');
  append(out, dtype_name(r.dtype));
  if (r.order == Regrouping::kToSequence) append(out, " to_sequence");
  if (r.order == Regrouping::kToRanks) append(out, " to_ranks");
}

void print(std::string& out, const ShareHeads& s) {
  append(out, "share_heads ", s.back ? "back " : "forth ", s.rows, " ranks=", s.ranks);
  append(out, " queries=", s.columns[0], " keys=", s.columns[1], " values=", s.columns[2], ' ');
  append(out, dtype_name(s.dtype));
}

// ---- parsing ---------------------------------------------------------------------------------

Dtype read_dtype(Tokens& in, std::string_view prefix = "") {
  return in.word(dtype_name, kDtypes, prefix);
}

Dtype read_output(Tokens& in, Dtype otherwise) {
  return in.peek().starts_with("output=") ? read_dtype(in, "output=") : otherwise;
}

Op read_gemm(Tokens& in) {
  Gemm g;
  g.role = in.word(role_name, 3);
  in.sizes({&g.m, &g.n, &g.k});
  if (in.peek().starts_with("batch=")) g.batch = in.integer("batch=", 1, kSizeMax);
  g.dtype = read_dtype(in);
  g.output = read_output(in, g.dtype);
  g.accumulate = in.take("accumulate");
  g.bias = in.take("bias");
  g.block_scales = in.take("block_scales");
  g.grouped = in.take("grouped");
  return g;
}

Op read_attention(Tokens& in) {
  Attention a;
  a.pass = in.word(pass_name, 2);
  a.batch = in.integer("batch=", 1, kSizeMax);
  a.heads = in.integer("heads=", 1, kSizeMax);
  a.kv_heads = in.integer("kv_heads=", 1, kSizeMax);
  a.queries = in.integer("queries=", 1, kSizeMax);
  a.keys = in.integer("keys=", 1, kSizeMax);
  a.head_dim = in.integer("head_dim=", 1, kSizeMax);
  if (in.peek().starts_with("value_dim=")) {
    a.value_dim = in.integer("value_dim=", 1, kSizeMax);
  }
  a.dtype = read_dtype(in);
  a.causal = in.take("causal");
  if (a.causal && in.peek().starts_with("window=")) {
    a.window = in.integer("window=", 1, kSizeMax);
  }
  a.sinks = in.take("sinks");
  a.dropout = in.take("dropout");
  a.deterministic = in.take("deterministic");
  if (in.take("gathered")) a.source = KeySource::kGathered;
  if (a.source == KeySource::kOwn && in.peek().starts_with("step=")) {
    a.source = KeySource::kPassed;
    a.step = in.integer("step=", 1, kRanksMax);
  }
  if (a.sinks && a.source != KeySource::kOwn) in.fail("sinks of the rank's own keys alone");
  return a;
}

Op read_norm(Tokens& in) {
  Norm n;
  n.pass = in.word(pass_name, 2);
  n.kind = in.word(norm_name, 2);
  in.sizes({&n.rows, &n.columns});
  n.dtype = read_dtype(in);
  return n;
}

Op read_pointwise(Tokens& in) {
  Pointwise p;
  p.kind = in.word(pointwise_name, kPointwiseKinds);
  in.sizes({&p.rows, &p.columns});
  p.dtype = read_dtype(in);
  p.output = read_output(in, p.dtype);
  p.causal = in.take("causal");
  if (in.peek().starts_with("head_dim=")) p.head_dim = in.integer("head_dim=", 1, kSizeMax);
  if (p.head_dim > 0 && in.peek().starts_with("rotated=")) {
    p.rotated = in.integer("rotated=", 1, p.head_dim);
  }
  const bool rotates =
      p.kind == PointwiseKind::kRotary || p.kind == PointwiseKind::kRotaryBackward;
  if (rotates && in.take("scale")) p.scale = in.real(kRotaryScaleLeast, kRotaryScaleMost);
  p.scores = p.kind == PointwiseKind::kDropout && in.take("scores");
  p.weighted = is_activation(p.kind) && in.take("weighted");
  if (p.kind == PointwiseKind::kAddExpertBias ||
      p.kind == PointwiseKind::kAddExpertBiasBackward) {
    p.experts = in.integer("experts=", 1, p.rows);
    if (p.rows % p.experts != 0) in.fail("as many rows of each expert");
  }
  return p;
}

Op read_gather(Tokens& in) {
  Gather g;
  g.pass = in.word(pass_name, 2);
  in.sizes({&g.rows, &g.columns});
  g.vocabulary = in.integer("vocabulary=", 1, kSizeMax);
  g.dtype = read_dtype(in);
  g.gradient = read_dtype(in, "gradient=");
  return g;
}

Op read_loss(Tokens& in) {
  Loss l;
  l.part = in.word(part_name, 4);
  in.sizes({&l.rows, &l.vocabulary});
  l.dtype = read_dtype(in);
  l.statistics = read_dtype(in, "statistics=");
  return l;
}

Op read_update(Tokens& in) {
  Update u;
  u.part = in.word(update_name, 2);
  in.sizes({&u.elements});
  u.weight = read_dtype(in, "weight=");
  u.gradient = read_dtype(in, "gradient=");
  u.master = in.take("master");
  u.moment = read_dtype(in, "moment=");
  return u;
}

Op read_route(Tokens& in) {
  Route r;
  r.pass = in.word(pass_name, 2);
  in.sizes({&r.rows, &r.experts});
  r.chosen = in.integer("chosen=", 1, r.experts);
  r.capacity = in.integer("capacity=", 1, kSizeMax / r.experts);
  r.dtype = read_dtype(in);
  return r;
}

Op read_permute(Tokens& in) {
  Permute p;
  p.part = in.word(permute_name, 2);
  in.sizes({&p.rows, &p.columns});
  p.chosen = in.integer("chosen=", 1, kSizeMax);
  p.slots = in.integer("slots=", 1, kSizeMax);
  p.dtype = read_dtype(in);
  p.weighted = in.take("weighted");
  return p;
}

Op read_own_slots(Tokens& in) {
  OwnSlots o;
  in.sizes({&o.rows, &o.chosen});
  o.experts = in.integer("experts=", 1, kSizeMax);
  o.capacity = in.integer("capacity=", 1, kSizeMax / o.experts);
  o.ranks = in.integer("ranks=", 1, std::min(o.rows, kSizeMax / (o.experts * o.capacity)));
  if (o.rows % o.ranks != 0) in.fail("as many rows of each rank");
  return o;
}

Op read_latent_keys(Tokens& in) {
  LatentKeys l;
  l.pass = in.word(pass_name, 2);
  in.sizes({&l.rows});
  l.heads = in.integer("heads=", 1, kSizeMax);
  l.own = in.integer("own=", 1, kSizeMax);
  l.rotated = in.integer("rotated=", 1, kSizeMax);
  l.values = in.integer("values=", 1, kSizeMax);
  l.dtype = read_dtype(in);
  return l;
}

Op read_regroup(Tokens& in) {
  Regroup r;
  in.sizes({&r.outer, &r.inner, &r.rows, &r.columns});
  r.dtype = read_dtype(in);
  if (in.take("to_sequence")) r.order = Regrouping::kToSequence;
  if (in.take("to_ranks")) r.order = Regrouping::kToRanks;
  if (r.order == Regrouping::kToSequence && r.inner != 2) in.fail("two stretches of each rank");
  if (r.order == Regrouping::kToRanks && r.outer != 2) in.fail("two stretches of each rank");
  return r;
}

Op read_share_heads(Tokens& in) {
  ShareHeads s;
  s.back = in.take("back");
  if (!s.back && !in.take("forth")) in.fail("forth or back");
  in.sizes({&s.rows});
  s.ranks = in.integer("ranks=", 1, kSizeMax);
  constexpr std::array<std::string_view, 3> kParts = {"queries=", "keys=", "values="};
  for (std::size_t part = 0; part < kParts.size(); ++part) {
    s.columns[part] = in.integer(kParts[part], part == 0 ? 1 : 0, kSizeMax);
    if (s.columns[part] % s.ranks != 0) in.fail("columns that the ranks can share");
  }
  s.dtype = read_dtype(in);
  return s;
}

Op read_op(Tokens& in) {
  if (in.take("gemm")) return read_gemm(in);
  if (in.take("attention")) return read_attention(in);
  if (in.take("norm")) return read_norm(in);
  if (in.take("pointwise")) return read_pointwise(in);
  if (in.take("gather")) return read_gather(in);
  if (in.take("loss")) return read_loss(in);
  if (in.take("update")) return read_update(in);
  if (in.take("route")) return read_route(in);
  if (in.take("permute")) return read_permute(in);
  if (in.take("regroup")) return read_regroup(in);
  if (in.take("own_slots")) return read_own_slots(in);
  if (in.take("share_heads")) return read_share_heads(in);
  if (in.take("latent_keys")) return read_latent_keys(in);
  in.fail("gemm, attention, norm, pointwise, gather, loss, update, route, permute, own_slots, "
          "regroup, share_heads or latent_keys");
}

}  // namespace

std::string to_text(const Op& op) {
  std::string out;
  std::visit([&](const auto& o) { print(out, o); }, op);
  return out;
}

Op parse_op(std::string_view text, std::string_view place) {
  Tokens in(text, place);
  const Op op = read_op(in);
  in.end();
  if (traffic(op).count > kBytesMax) in.refuse("this op moves more bytes than any machine holds");
  return op;
}

}  // namespace stepcast

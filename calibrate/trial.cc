// Numbers lie between -1 and 1, except where a logarithm or a root is taken of them: there between
// 0 and 1. Ids are of the vocabulary, slots of experts those of some router.
#include "calibrate/trial.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "execute/hash.h"
#include "sim/base/error.h"

namespace stepcast {

namespace {

constexpr std::int64_t kPositions = 128;     // of a sequence in attention
constexpr std::int64_t kElements = 1 << 21;  // of logits and scores
constexpr std::int64_t kEntries = 4096;      // of a table

bool is_attention_product(const Op& op, bool with_weight) {
  return std::holds_alternative<Gemm>(op) && !with_weight;
}

}  // namespace

Trial::Trial(const Job& job, const Body& body, const Compute& compute)
    : op(job.ops[static_cast<std::size_t>(compute.op)]) {
  place.batch = job.batch;
  place.tensor_ranks = job.mesh.degree(Axis::kTensor);
  place.context = {job.batch.sequence_length, 0, job.mesh.degree(Axis::kContext)};
  place.batch_tokens = job.batch.sequence_length * job.batch.micro_batch;
  std::vector<TensorId> known;
  const auto index = [&](std::int32_t at) {
    const TensorId id = body.operands[static_cast<std::size_t>(compute.operands.first + at)];
    const auto found = std::find(known.begin(), known.end(), id);
    if (found != known.end()) return static_cast<std::size_t>(found - known.begin());
    known.push_back(id);
    tensors.push_back(job.tensors[static_cast<std::size_t>(id)]);
    return tensors.size() - 1;
  };
  for (std::int32_t i = 0; i < compute.operands.reads; ++i) reads.push_back(index(i));
  for (std::int32_t i = 0; i < compute.operands.writes; ++i) {
    writes.push_back(index(compute.operands.reads + i));
  }
  static constexpr std::uint32_t kStep = 0;
  if (drops(op)) dropout.rule = dropout_rule(job.dropout, 17, &kStep);
  shrink();
  fill();
}

bool Trial::with_weight() const {
  const auto* gemm = std::get_if<Gemm>(&op);
  if (gemm == nullptr) return false;
  const bool weight_gradient = gemm->role == GemmRole::kWeightGradient;
  if (!weight_gradient && reads.size() < 2) return false;
  return tensors[weight_gradient ? writes[0] : reads[1]].scope == Scope::kChunk;
}

void Trial::shrink_rows(std::int64_t rows, std::int64_t fewer) {
  for (Tensor& tensor : tensors) {
    if (tensor.shape.sizes[0] == rows) tensor.shape.sizes[0] = fewer;
  }
}

// One sequence of fewer positions; heads stay as they are.
void Trial::shrink_attention(std::int64_t positions) {
  const std::int64_t all = place.batch.sequence_length, sequences = place.batch.micro_batch;
  for (Tensor& tensor : tensors) {
    auto& sizes = tensor.shape.sizes;
    if (tensor.shape.rank == 3) {  // (sequences, heads, positions)
      sizes[0] = 1, sizes[2] = positions;
    } else if (sizes[0] == all * sequences) {
      sizes[0] = positions;
    } else if (sizes[0] % (all * sequences) == 0 && sizes[1] == all) {  // scores
      sizes[0] = sizes[0] / (all * sequences) * positions;
      sizes[1] = positions;
    }
  }
  match(
      op,
      [&](Attention& a) {
        a.batch = 1;
        a.queries = a.keys = positions;
      },
      [&](Gemm& g) {
        g.batch /= sequences;
        for (std::int64_t* size : {&g.m, &g.n, &g.k}) {
          if (*size % all == 0) *size = *size / all * positions;
        }
      },
      [](auto&) {});
  place.batch.sequence_length = positions;
  place.batch.micro_batch = 1;
  if (place.context.ranks > 1) place.context.positions = positions;  // whole sequences, of heads
}

void Trial::shrink() {
  const std::int64_t all = place.batch.sequence_length;
  if (auto* loss = std::get_if<Loss>(&op)) {
    const std::int64_t rows = std::max<std::int64_t>(1, kElements / loss->vocabulary);
    if (rows >= loss->rows) return;
    shrink_rows(loss->rows, rows);
    loss->rows = rows;
  } else if (auto* gather = std::get_if<Gather>(&op)) {
    if (gather->vocabulary <= kEntries || gather->rows == gather->vocabulary) return;
    shrink_rows(gather->vocabulary, kEntries);
    gather->vocabulary = kEntries;
    place.batch.vocabulary = std::min(place.batch.vocabulary, kEntries * place.tensor_ranks);
  } else if (auto* softmax = std::get_if<Pointwise>(&op)) {
    const bool scores = softmax->kind == PointwiseKind::kSoftmax || softmax->scores ||
                        softmax->kind == PointwiseKind::kSoftmaxBackward ||
                        softmax->kind == PointwiseKind::kMask ||
                        softmax->kind == PointwiseKind::kMaskBackward;
    if (!scores || softmax->rows * softmax->columns <= kElements) return;
    const std::int64_t rows =
        softmax->columns *
        std::max<std::int64_t>(1, kElements / softmax->columns / softmax->columns);
    if (rows >= softmax->rows) return;
    shrink_rows(softmax->rows, rows);
    softmax->rows = rows;
    place.batch.micro_batch = 1;  // of so many heads
  } else if (const auto* attention = std::get_if<Attention>(&op)) {
    if (attention->queries == all && attention->keys == all && all > kPositions) {
      shrink_attention(kPositions);
    }
  } else if (is_attention_product(op, with_weight())) {
    const Gemm& g = std::get<Gemm>(op);
    // The head's width is one of the three sizes; it must not be taken for the positions.
    int by_all = 0;
    for (const std::int64_t size : {g.m, g.n, g.k}) by_all += size % all == 0 ? 1 : 0;
    if (all > kPositions && by_all == 2) shrink_attention(kPositions);
  }
}

void Trial::fill() {
  const bool positive = std::holds_alternative<Loss>(op) || std::holds_alternative<Norm>(op);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto elements = static_cast<std::size_t>(tensors[i].shape.elements());
    const auto bytes = static_cast<std::size_t>(tensors[i].bytes().count);
    memory.emplace_back((bytes + sizeof(std::int64_t) - 1) / sizeof(std::int64_t));
    if (is_float(i)) {
      for (std::size_t at = 0; at < elements; ++at) {
        const double u = unit(hash(11, i, at));
        floats(i)[at] = static_cast<float>(positive ? u + 0.01 : 2 * u - 1);
      }
      continue;
    }
    if (tensors[i].dtype == Dtype::kUint8) {  // a mask
      auto* kept = reinterpret_cast<std::uint8_t*>(memory[i].data());
      for (std::size_t at = 0; at < elements; ++at) kept[at] = hash(19, i, at) % 8 != 0 ? 1 : 0;
      continue;
    }
    if (tensors[i].dtype == Dtype::kInt32) {
      fill_slots(i);
      continue;
    }
    STEPCAST_CHECK(tensors[i].dtype == Dtype::kInt64, "executable() names other dtypes");
    const auto entries =
        static_cast<std::uint64_t>(std::max<std::int64_t>(1, place.batch.vocabulary));
    for (std::size_t at = 0; at < elements; ++at) {
      memory[i][at] = static_cast<std::int64_t>(hash(13, i, at) % entries);
    }
  }
}

// A token's experts are neighbours, from any one on; elsewhere, where nobody says how many experts
// there are, choices lie apart in memory. No two have one slot; those beyond are dropped.
void Trial::fill_slots(std::size_t i) {
  std::int32_t* slots = integers(i);
  const auto number = [](std::int64_t slot) { return static_cast<std::int32_t>(slot); };
  if (const auto* route = std::get_if<Route>(&op)) {
    std::vector<std::int64_t> filled(static_cast<std::size_t>(route->experts), 0);
    for (std::int64_t choice = 0; choice < route->rows * route->chosen; ++choice) {
      const auto token = static_cast<std::uint64_t>(choice / route->chosen);
      const auto first = static_cast<std::int64_t>(hash(23, i, token) %
                                                   static_cast<std::uint64_t>(route->experts));
      const std::int64_t expert = (first + choice % route->chosen) % route->experts;
      std::int64_t& next = filled[static_cast<std::size_t>(expert)];
      slots[choice] =
          number(next < route->capacity ? expert * route->capacity + next++ : -2 - expert);
    }
    return;
  }
  const std::int64_t choices = tensors[i].shape.elements();
  const auto* permute = std::get_if<Permute>(&op);
  const std::int64_t all = permute == nullptr ? choices : permute->slots;
  std::int64_t apart = all / 3 + 1;
  while (std::gcd(apart, all) > 1) ++apart;
  for (std::int64_t choice = 0; choice < choices; ++choice) {
    slots[choice] = number(choice < all ? choice * apart % all : -2);
  }
}

std::vector<float> Trial::copy(std::size_t i) {
  return {floats(i), floats(i) + tensors[i].shape.elements()};
}

void Trial::run(Backend& backend) {
  std::vector<Operand> in, out;
  for (const std::size_t i : reads) in.push_back({data(i), &tensors[i]});
  for (const std::size_t i : writes) out.push_back({data(i), &tensors[i]});
  backend.compute({op, in, out, place, dropout});
}

}  // namespace stepcast

// Sight: which keys the queries of an Attention see, and where these keys lie (KeySource in op.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "execute/cpu/kernels.h"
#include "execute/cpu/packed.h"

namespace stepcast::cpu {

inline std::size_t behind_gradient(const Attention& op, const Work& work) {
  return behind_gradient(op, accumulates(work, work.writes.size() - 1, 0));
}

// What backward writes of them, without the gradient of the sinks.
inline std::span<const Operand> head_gradients(const Attention& op, const Work& work) {
  return work.writes.first(work.writes.size() - (op.sinks ? 1 : 0));
}

// The tensors of queries, keys and values that an op reads: [qk,] qkv or q, k, v; without the keys
// and values of other ranks, or the sinks, which stand behind them.
inline std::span<const Operand> heads_of(const Attention& op, const Work& work) {
  std::size_t others = op.source == KeySource::kOwn ? 0 : 1;
  if (op.pass == Pass::kBackward) {
    others += 3 + behind_gradient(op, work);
  } else if (op.sinks) {
    ++others;
  }
  return work.reads.first(work.reads.size() - others);
}

// Of one sequence. Keys are numbered such that a query sees the first few of them: the rank's own
// and those of another as they stand, those of all ranks by position.
class Sight {
 public:
  Sight(const Attention& op, const Place& place)
      : op_(op),
        own_(has_whole_sequences(op, place.context.positions) ? ContextShare{} : place.context),
        other_(own_.before(op.step)) {}

  std::int64_t queries() const { return op_.queries; }
  std::int64_t keys() const { return op_.source == KeySource::kPassed ? op_.queries : op_.keys; }

  std::int64_t visible(std::int64_t query) const {
    switch (op_.source) {
      case KeySource::kOwn: break;
      case KeySource::kGathered: return own_.position(query) + 1;
      case KeySource::kPassed:
        if (other_.rank < own_.rank) return keys() / 2;
        return query < queries() / 2 ? 0 : keys();
    }
    return op_.causal && op_.queries == op_.keys ? query + 1 : op_.keys;
  }
  // The first key that the query sees, of a sliding window.
  std::int64_t first(std::int64_t query) const {
    const std::int64_t seen = visible(query);
    return op_.window > 0 && seen > op_.window ? seen - op_.window : 0;
  }

  std::int64_t query_position(std::int64_t query) const { return own_.position(query); }
  std::int64_t key_position(std::int64_t key) const {
    return op_.source == KeySource::kGathered ? key : other_.position(key);
  }

 private:
  const Attention& op_;
  ContextShare own_, other_;
};

// The keys and values of one head, and their gradients where the op writes some. Those of all ranks
// are brought into the order of their positions, their gradients back from it.
template <class Real>
class KeyRows {
 public:
  KeyRows(const Attention& op, const Work& work, std::vector<Real>& scratch)
      : op_(op), work_(work), p_(op), scratch_(scratch) {
    if (gathered()) scratch.resize(static_cast<std::size_t>(4 * op.keys * op.head_dim));
  }

  Rows<Real> k, v, dk, dv;

  void turn_to(std::int64_t sequence, std::int64_t kv) {
    sequence_ = sequence;
    kv_ = kv;
    const bool forward = op_.pass == Pass::kForward;
    const std::span<const Operand> heads = heads_of(op_, work_);
    if (op_.source == KeySource::kOwn) {
      k = p_.view<Real>(heads, 1, sequence, kv);
      v = p_.view<Real>(heads, 2, sequence, kv);
      if (forward) return;
      dk = p_.view<Real>(head_gradients(op_, work_), 1, sequence, kv);
      dv = p_.view<Real>(head_gradients(op_, work_), 2, sequence, kv);
      return;
    }
    k = keys_of(work_.reads[heads.size()]);
    v = values_of(work_.reads[heads.size()]);
    if (!forward) dk = keys_of(work_.writes[1]), dv = values_of(work_.writes[1]);
    if (!gathered()) return;
    const std::int64_t size = op_.keys * op_.head_dim;
    Rows<Real>* all[] = {&k, &v, &dk, &dv};
    for (std::int64_t i = 0; i < 4; ++i) {
      const Rows<Real> ordered{scratch_.data() + i * size, op_.head_dim};
      if (i < 2) move(*all[i], ordered, true);
      *all[i] = ordered;
    }
  }

  // When all heads that share them have added to the gradients.
  void put_back() {
    if (!gathered()) return;
    move(keys_of(work_.writes[1]), dk, false);
    move(values_of(work_.writes[1]), dv, false);
  }

 private:
  bool gathered() const { return op_.source == KeySource::kGathered; }
  // Of a tensor of keys and values alone.
  Rows<Real> keys_of(const Operand& kv) const {
    return p_.view<Real>(kv, sequence_, kv_ * op_.head_dim);
  }
  Rows<Real> values_of(const Operand& kv) const {
    return p_.view<Real>(kv, sequence_, (op_.kv_heads + kv_) * op_.head_dim);
  }

  // Rank by rank on one side, by position on the other.
  void move(Rows<Real> by_rank, Rows<Real> by_position, bool ordering) const {
    const ContextShare& context = work_.place.context;
    for (std::int64_t r = 0; r < context.ranks; ++r) {
      const ContextShare share{context.positions, r, context.ranks};
      for (std::int64_t i = 0; i < op_.queries; ++i) {
        Real* here = by_rank.data + (r * op_.queries + i) * by_rank.stride;
        Real* there = by_position.data + share.position(i) * by_position.stride;
        if (ordering) {
          std::copy_n(here, op_.head_dim, there);
        } else {
          std::copy_n(there, op_.head_dim, here);
        }
      }
    }
  }

  const Attention& op_;
  const Work& work_;
  const Packed p_;
  std::vector<Real>& scratch_;
  std::int64_t sequence_ = 0, kv_ = 0;
};

}  // namespace stepcast::cpu

// Sight: which keys the queries of an Attention see, and where these keys lie (KeySource in op.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "execute/cpu/kernels.h"
#include "execute/cpu/packed.h"

namespace stepcast::cpu {

// Of one sequence. Keys are numbered such that a query sees the first few of them: the rank's own
// and those of another as they stand, those of all ranks by position.
class Sight {
 public:
  Sight(const Attention& op, const Place& place)
      : op_(op), own_(place.context), other_(place.context.before(op.step)) {}

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
    const bool own = op_.source == KeySource::kOwn;
    const bool passed = op_.source == KeySource::kPassed;
    const std::size_t last = work_.reads.size() - (forward ? 1 : passed ? 5 : 4);
    k = view(work_.reads[own ? 0 : last], key_column());
    v = view(work_.reads[last], value_column());
    if (!forward) {
      dk = view(work_.writes[own ? 0 : 1], key_column());
      dv = view(work_.writes[own ? 0 : 1], value_column());
    }
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
    move(view(work_.writes[1], key_column()), dk, false);
    move(view(work_.writes[1], value_column()), dv, false);
  }

 private:
  bool gathered() const { return op_.source == KeySource::kGathered; }
  std::int64_t key_column() const {
    return op_.source == KeySource::kOwn ? p_.key_column(kv_) : kv_ * op_.head_dim;
  }
  std::int64_t value_column() const {
    return op_.source == KeySource::kOwn ? p_.value_column(kv_)
                                         : (op_.kv_heads + kv_) * op_.head_dim;
  }
  Rows<Real> view(const Operand& operand, std::int64_t column) const {
    return p_.view<Real>(operand, sequence_, column);
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

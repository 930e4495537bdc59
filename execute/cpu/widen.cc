// Two passes over the narrow operands. What is written is widened too: a kernel may write but a
// part of it.
#include "execute/cpu/widen.h"

#include <algorithm>

#include "execute/convert.h"

namespace stepcast::cpu {

namespace {

bool narrow_one(const Operand& operand) { return operand.tensor->dtype == Dtype::kBf16; }

}  // namespace

bool Widener::any_narrow(const Work& work) {
  return std::any_of(work.reads.begin(), work.reads.end(), narrow_one) ||
         std::any_of(work.writes.begin(), work.writes.end(), narrow_one);
}

Operand Widener::wide(const Operand& operand, std::vector<const Operand*>& known) {
  if (!narrow_one(operand)) return operand;
  std::size_t i = 0;
  while (i < known.size() && known[i]->data != operand.data) ++i;
  if (i == known.size()) {
    known.push_back(&operand);
    if (buffers_.size() == i) buffers_.emplace_back();
    const std::int64_t elements = operand.tensor->shape.elements();
    if (buffers_[i].size() < static_cast<std::size_t>(elements)) {
      buffers_[i].resize(static_cast<std::size_t>(elements));
    }
    to_float(operand.data, Dtype::kBf16, elements, buffers_[i].data());
  }
  return {buffers_[i].data(), operand.tensor};
}

void Widener::widen(const Work& work) {
  std::vector<const Operand*> known;
  reads_.clear();
  writes_.clear();
  for (const Operand& operand : work.reads) reads_.push_back(wide(operand, known));
  for (const Operand& operand : work.writes) writes_.push_back(wide(operand, known));
}

void Widener::narrow(const Work& work) const {
  for (std::size_t i = 0; i < work.writes.size(); ++i) {
    if (!narrow_one(work.writes[i])) continue;
    from_float(static_cast<const float*>(writes_[i].data), work.writes[i].tensor->shape.elements(),
               work.writes[i].data, Dtype::kBf16);
  }
}

}  // namespace stepcast::cpu

// Segments: which stretches of a body are worth remembering, and on what their outcome depends.
//
// Within a segment a rank meets nobody, so the registers at its end are a function of those at its
// begin, built of max and of adding constants only. Such a function (max-plus linear) commutes with
// a shift of all registers; so it is enough to know them relative to `base`, the compute clock at
// the begin. Two facts, found here by one pass of abstract interpretation, make equal keys common:
//
// 1. Clamping. A value is *anchored* if it is provably >= base: the compute clock, what was
//    recorded from it, what has waited for such a thing. A live-in x that reaches anything only
//    through max(x, anchored) counts as max(x, base): for a >= base, max(x, a) =
//    max(max(x, base), a). So how far an idle stream lies behind does not enter its key. (The gap
//    that a Wait on the compute stream adds to the breakdown is max(x, clock) - clock: the same
//    argument.) For a value that is not anchored, `raw` is the set of live-ins that it is a plain
//    max of; once work is added to it, or it is left in a register at the end, these enter the key
//    as they are.
//
// 2. The host. It issues the i-th of the segment's instructions at host + issue(i), what it takes
//    for it and for those before, whatever else happens. A value's lower bound is (a live-in
//    register `root`) + `low`: adding work adds to low, max may take either side's. If host <= root
//    + low - issue(i) for every instruction, no max with the host ever takes the host's side, and
//    the outcome is that of a host at minus infinity: the host is left out of the key. One slack a
//    root sums this up. Else it enters as it is.
//
// 3. Busy streams slow what runs beside them (beside.h), which is no max-plus function. It still
//    commutes with a shift; it only lengthens work, so the lower bounds of 2 hold; and a kernel,
//    which begins at or after the base, sees of a busy stretch only what lies after the base: the
//    stretch's two ends enter the key clamped. So does what a `since` is left at: where it lies
//    before the base no kernel tells it from the base. A transfer that is not anchored sees more:
//    there the ends enter as they are.
//
// Cost: linear in the text, times the size of a set of registers.
#include <algorithm>
#include <bitset>
#include <map>
#include <utility>
#include <vector>

#include "sim/engine/compile.h"

namespace stepcast {
namespace {

constexpr std::size_t kShortest = 16;     // micro-instructions; less is not worth a look-up
constexpr std::size_t kRegistersMax = 256;  // Jobs with more are simulated without memory

using Registers = std::bitset<kRegistersMax>;

struct Value {
  bool anchored = false;
  std::size_t root = 0;
  Duration low;
  Registers raw;
};

class Analysis {
 public:
  explicit Analysis(const Code& code) : code_(code), values_(code.registers()) {
    for (std::size_t r = 0; r < values_.size(); ++r) {
      values_[r].root = r;
      values_[r].raw.set(r);
    }
    values_[kComputeRegister].anchored = true;
    values_[kComputeRegister].raw.reset();
  }

  void add(const Micro& micro) {
    const std::size_t stream = micro.stream;
    const auto other = static_cast<std::size_t>(micro.other);
    switch (micro.kind) {
      case MicroKind::kCompute:
        segment_.basis[static_cast<std::size_t>(micro.detail)] += micro.duration;
        work(stream, micro);
        see_busy(true, kComputeRegister);
        break;
      case MicroKind::kLocal:
        see_busy(values_[stream].anchored, stream);
        work(stream, micro);
        if (is_busy(stream)) written_[stream + 1] = -1;
        break;
      case MicroKind::kRecord:
        values_[other] = values_[stream];
        written_[other] = code_.first_causes[stream];
        break;
      case MicroKind::kWait: wait(stream, other); break;
      default: break;
    }
  }

  Segment finish() {
    for (const auto& [reg, cause] : written_) {
      (is_busy(reg - 1) ? clamped_ : raw_) |= values_[reg].raw;
      segment_.outs.push_back({static_cast<std::int32_t>(reg), cause});
    }
    for (std::size_t r = 0; r < values_.size(); ++r) {
      if (!raw_[r] && !clamped_[r]) continue;
      segment_.keys.push_back({static_cast<std::int32_t>(r), !raw_[r], explains_[r]});
    }
    for (const auto& [root, slack] : slacks_) {
      segment_.bounds.push_back({static_cast<std::int32_t>(root), slack});
    }
    return std::move(segment_);
  }

 private:
  // Whether anybody looks at when this stream is busy.
  bool is_busy(std::size_t stream) const {
    return std::any_of(code_.busy.begin(), code_.busy.end(),
                       [&](const Busy& busy) { return busy.reg == stream; });
  }

  // Work on `stream` looks at when the others are busy; where it is anchored, only beyond the base.
  void see_busy(bool anchored, std::size_t stream) {
    for (const Busy& busy : code_.busy) {
      if (busy.reg == stream) continue;
      Registers& keys = anchored ? clamped_ : raw_;
      keys |= values_[busy.reg].raw;
      if (stream == kComputeRegister) keys |= values_[busy.reg + 1].raw;
    }
  }

  void work(std::size_t stream, const Micro& micro) {
    segment_.issue += code_.host[micro.host];
    Value& value = values_[stream];
    const Duration slack = value.low - segment_.issue;
    const auto [known, fresh] = slacks_.try_emplace(value.root, slack);
    if (!fresh && slack < known->second) known->second = slack;
    raw_ |= value.raw;
    value.raw.reset();
    value.low += micro.duration;
    written_[stream] = -1;
  }

  void wait(std::size_t stream, std::size_t event) {
    Value& value = values_[stream];
    const Value& by = values_[event];
    if (stream == kComputeRegister && !written_.contains(event)) explains_.set(event);
    written_[stream] = -1;
    if (is_busy(stream)) {
      values_[stream + 1].raw |= value.raw | by.raw;
      written_[stream + 1] = -1;
    }
    if (!value.anchored && !by.anchored) {
      value.raw |= by.raw;
      return;
    }
    clamped_ |= value.raw | by.raw;
    value.raw.reset();
    if (!value.anchored || (by.anchored && value.low < by.low)) {
      value.root = by.root;
      value.low = by.low;
    }
    value.anchored = true;
  }

  const Code& code_;
  std::vector<Value> values_;
  std::map<std::size_t, std::int32_t> written_;  // register -> cause (events), -1 (streams)
  std::map<std::size_t, Duration> slacks_;       // by root
  Registers raw_, clamped_, explains_;
  Segment segment_;
};

// What meets no other rank and leaves the host to itself. Records from a stream that receives carry
// the cause of its last Receive, which is not known here; they stand next to it anyway.
bool stays(const Code& code, const Micro& micro) {
  switch (micro.kind) {
    case MicroKind::kCompute:
    case MicroKind::kLocal:
    case MicroKind::kWait: return true;
    case MicroKind::kRecord: return !code.receiving[micro.stream];
    default: return false;
  }
}

}  // namespace

// A segment begins with a kernel, so that what compute had to wait for before it (a message, which
// comes at a different time in every call) lies before the base.
void mark_segments(Code& code) {
  if (code.registers() > kRegistersMax) return;
  const std::vector<Micro> plain = std::move(code.micros);
  std::vector<Micro> marked;
  marked.reserve(plain.size() + plain.size() / 4);
  std::size_t body = 0;
  for (std::size_t i = 0; i < plain.size();) {
    if (body < code.entries.size() && static_cast<std::size_t>(code.entries[body]) == i) {
      code.entries[body++] = static_cast<std::int32_t>(marked.size());
    }
    if (plain[i].kind != MicroKind::kCompute) {
      marked.push_back(plain[i++]);
      continue;
    }
    std::size_t end = i;
    while (stays(code, plain[end])) ++end;
    const bool worth = end - i >= kShortest;
    Micro mark;
    mark.other = static_cast<std::int32_t>(code.segments.size());
    mark.kind = MicroKind::kSegment;
    if (worth) marked.push_back(mark);
    Analysis analysis(code);
    for (; i < end; ++i) {
      if (worth) analysis.add(plain[i]);
      marked.push_back(plain[i]);
    }
    if (!worth) continue;
    code.segments.push_back(analysis.finish());
    code.segments.back().end = static_cast<std::int32_t>(marked.size());
    mark.kind = MicroKind::kSegmentEnd;
    marked.push_back(mark);
  }
  code.micros = std::move(marked);
}

}  // namespace stepcast

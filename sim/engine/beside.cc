// Stretch by stretch, in floating point within a stretch and rounded at its ends. The sums run over
// the streams in their fixed order, so that equal registers give equal times.
#include "sim/engine/beside.h"

#include <array>
#include <cmath>

namespace stepcast {
namespace {

const double* costs(const Code& code, std::int32_t row) {
  return code.beside.data() + static_cast<std::size_t>(row) * code.busy.size();
}

double picoseconds(Duration duration) { return static_cast<double>(duration.picoseconds); }

// The earlier of two changes, of which Instant() is none.
Instant earlier_change(Instant a, Instant b) { return a == Instant() || b < a ? b : a; }

}  // namespace

Instant slowed_kernel_end(const Code& code, const Instant* clocks, std::int32_t row, Instant begin,
                          Duration duration, Breakdown& parts) {
  const double* const cost = costs(code, row);
  std::array<double, kStreams> lost = {};
  double all_lost = 0;
  Instant at = begin;
  double left = picoseconds(duration);
  for (bool done = false; !done;) {
    double more = 0;
    Instant next;
    for (std::size_t b = 0; b < code.busy.size(); ++b) {
      const Instant since = clocks[code.busy[b].reg + 1], until = clocks[code.busy[b].reg];
      if (until <= at) continue;
      if (since <= at) more += cost[b];
      next = earlier_change(next, since <= at ? until : since);
    }
    const double needed = left * (1 + more);
    done = next == Instant() || needed <= picoseconds(next - at);
    const Duration step = done ? Duration(std::llround(needed)) : next - at;
    const double progress = picoseconds(step) / (1 + more);
    for (std::size_t b = 0; b < code.busy.size() && more > 0; ++b) {
      const Instant since = clocks[code.busy[b].reg + 1], until = clocks[code.busy[b].reg];
      if (until > at && since <= at) lost[b] += progress * cost[b];
    }
    all_lost += progress * more;
    left -= progress;
    at += step;
  }
  Duration rest = (at - begin) - duration;  // whole picoseconds: the last stream takes what is over
  for (std::size_t b = 0; b < code.busy.size() && all_lost > 0; ++b) {
    const bool last = b + 1 == code.busy.size();
    const Duration share =
        last ? rest : std::min(rest, Duration(std::llround(lost[b])));
    parts[static_cast<std::size_t>(code.busy[b].part)] += share;
    rest = rest - share;
  }
  return at;
}

Instant slowed_transfer_end(const Code& code, const Instant* clocks, const Micro& micro,
                            Instant begin) {
  const double* const cost = costs(code, micro.detail);
  Instant at = begin;
  double left = picoseconds(micro.duration);
  for (;;) {
    double more = 0;
    Instant next;
    for (std::size_t b = 0; b < code.busy.size(); ++b) {
      const Instant until = clocks[code.busy[b].reg];
      if (code.busy[b].reg == micro.stream || until <= at || cost[b] == 0) continue;
      more += cost[b];
      next = earlier_change(next, until);
    }
    const double needed = left * (1 + more);
    if (more == 0 || needed <= picoseconds(next - at)) return at + Duration(std::llround(needed));
    left -= picoseconds(next - at) / (1 + more);
    at = next;
  }
}

}  // namespace stepcast

// Nodes are made rank by rank, edges along streams, events, messages and groups; then longest paths
// in topological order (Kahn 1962). Cost: O(nodes + edges), with maps.
#include "tests/support/longest_path.h"

#include <cmath>
#include <map>
#include <optional>
#include <tuple>

#include "sim/base/error.h"
#include "sim/engine/compile.h"

namespace stepcast {
namespace {

struct GraphNode {
  Instant release;   // not before
  Duration weight;
  std::vector<std::size_t> before;
  Instant end;
};

class Graph {
 public:
  Graph(const Job& job, const Prices& prices) : job_(job), prices_(prices) {}

  PathTimes run() {
    const int ranks = job_.mesh.ranks();
    work_.resize(static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) add_rank(rank);
    for (const auto& [key, receives] : receives_) {
      const std::vector<std::size_t>& sends = sends_[key];
      STEPCAST_CHECK(sends.size() == receives.size(), "every message is received");
      for (std::size_t i = 0; i < sends.size(); ++i) {
        nodes_[receives[i]].before.push_back(sends[i]);
      }
    }
    solve();
    PathTimes times;
    for (const std::vector<std::size_t>& work : work_) {
      times.ends.emplace_back();
      times.rank_end.emplace_back();
      for (const std::size_t n : work) {
        times.ends.back().push_back(nodes_[n].end);
        times.rank_end.back() = later(times.rank_end.back(), nodes_[n].end);
      }
      times.end = later(times.end, times.rank_end.back());
    }
    return times;
  }

 private:
  using Line = std::tuple<int, int, bool>;  // from, to, backward
  static constexpr std::size_t kNone = SIZE_MAX;

  std::size_t add(Instant release, Duration weight, std::size_t before) {
    nodes_.push_back({release, weight, {}, {}});
    if (before != kNone) nodes_.back().before.push_back(before);
    return nodes_.size() - 1;
  }

  // The least rank of the group.
  int leader(int rank, AxisSet axes) const {
    for (int other = 0; other < rank; ++other) {
      bool same = true;
      for (int a = 0; a < kAxes; ++a) {
        const Axis axis = static_cast<Axis>(a);
        if (axes.has(axis)) continue;
        same = same && job_.mesh.coordinate(other, axis) == job_.mesh.coordinate(rank, axis);
      }
      if (same) return other;
    }
    return rank;
  }

  void add_rank(int rank) {
    std::vector<std::size_t> stream(kStreams, kNone);
    std::vector<std::size_t> event(static_cast<std::size_t>(job_.events), kNone);
    std::map<std::tuple<int, bool>, int> met;  // collectives so far, by axes and ends
    std::vector<std::size_t>& work = work_[static_cast<std::size_t>(rank)];
    std::size_t host = add(Instant(), Duration(), kNone);  // ends when it has issued so much
    const auto at = [&](Stream s) -> std::size_t& { return stream[static_cast<std::size_t>(s)]; };
    const auto issue = [&](Stream s, Duration weight, std::optional<Duration> host_time = {}) {
      host = add(Instant(), host_time.value_or(prices_.issue), host);
      at(s) = add(Instant(), weight, at(s));
      nodes_[at(s)].before.push_back(host);
      work.push_back(at(s));
    };
    const auto price = [&](TransferId t) { return prices_.transfers[static_cast<std::size_t>(t)]; };
    const auto other = [&](int step) { return job_.mesh.neighbour(rank, Axis::kPipeline, step); };
    const auto& program = job_.programs[static_cast<std::size_t>(job_.mesh.stage(rank))];
    for (const Call& call : program.schedule) {
      const Body& body = job_.bodies[static_cast<std::size_t>(call.body)];
      if (is_pass(body)) host = add(Instant(), prices_.pass, host);
      for (const Instruction& i : body.code) {
        match(
            i,
            [&](const Compute& c) {
              std::int64_t t = prices_.ops[static_cast<std::size_t>(c.op)].picoseconds;
              if (!prices_.slow.empty()) {
                t = std::llround(static_cast<double>(t) *
                                 prices_.slow[static_cast<std::size_t>(rank)]);
              }
              const Op& what = job_.ops[static_cast<std::size_t>(c.op)];
              const auto* op = std::get_if<Pointwise>(&what);
              const auto* gemm = std::get_if<Gemm>(&what);
              const bool fill = op != nullptr && op->kind == PointwiseKind::kFill;
              std::optional<Duration> host_time;
              if (fill && c.phase != Phase::kOptimizer) host_time = prices_.fill;
              if (std::holds_alternative<Route>(what)) host_time = prices_.issue + prices_.route;
              if (gemm != nullptr && gemm->grouped) host_time = prices_.issue + prices_.groups;
              issue(Stream::kCompute, Duration(t), host_time);
            },
            [&](const Collective& c) {
              const Transfer& t = job_.transfers[static_cast<std::size_t>(c.transfer)];
              issue(c.stream, Duration());
              const int nth = met[{t.axes.bits, t.ends_only}]++;
              const std::tuple key{leader(rank, t.axes), int{t.axes.bits}, t.ends_only, nth};
              const auto [known, fresh] = joins_.try_emplace(key, 0);
              if (fresh) known->second = add(Instant(), price(c.transfer), kNone);
              nodes_[known->second].before.push_back(at(c.stream));
              at(c.stream) = work.back() = known->second;
            },
            [&](const Send& s) {
              issue(s.stream, price(s.transfer));
              sends_[Line{rank, other(s.step), s.stream == Stream::kSendBackward}].push_back(
                  at(s.stream));
            },
            [&](const Receive& r) {
              issue(r.stream, Duration());
              receives_[Line{other(r.step), rank, r.stream == Stream::kReceiveBackward}].push_back(
                  at(r.stream));
            },
            [&](const Record& r) { event[static_cast<std::size_t>(r.event)] = at(r.stream); },
            [&](const Wait& w) {
              const std::size_t by = event[static_cast<std::size_t>(w.event)];
              if (by == kNone) return;
              at(w.stream) = add(Instant(), Duration(), at(w.stream));
              nodes_[at(w.stream)].before.push_back(by);
            },
            [&](const HostWait& w) {
              host = add(Instant(), Duration(), host);
              const std::size_t by = event[static_cast<std::size_t>(w.event)];
              if (by != kNone) nodes_[host].before.push_back(by);
            },
            [&](const Synchronize&) {
              host = add(Instant(), Duration(), host);
              for (const std::size_t last : stream) {
                if (last != kNone) nodes_[host].before.push_back(last);
              }
            },
            [](const auto&) {});
      }
    }
  }

  void solve() {
    std::vector<std::vector<std::size_t>> after(nodes_.size());
    std::vector<std::size_t> open(nodes_.size());
    std::vector<std::size_t> ready;
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      open[n] = nodes_[n].before.size();
      for (const std::size_t b : nodes_[n].before) after[b].push_back(n);
      if (open[n] == 0) ready.push_back(n);
    }
    std::size_t done = 0;
    while (!ready.empty()) {
      GraphNode& node = nodes_[ready.back()];
      const std::vector<std::size_t>& next = after[ready.back()];
      ready.pop_back();
      ++done;
      Instant begin = node.release;
      for (const std::size_t b : node.before) begin = later(begin, nodes_[b].end);
      node.end = begin + node.weight;
      for (const std::size_t n : next) {
        if (--open[n] == 0) ready.push_back(n);
      }
    }
    STEPCAST_CHECK(done == nodes_.size(), "the graph of a job that verifies has no cycle");
  }

  const Job& job_;
  const Prices& prices_;
  std::vector<GraphNode> nodes_;
  std::vector<std::vector<std::size_t>> work_;
  std::map<Line, std::vector<std::size_t>> sends_, receives_;
  std::map<std::tuple<int, int, bool, int>, std::size_t> joins_;
};

}  // namespace

PathTimes longest_path(const Job& job, const Prices& prices) { return Graph(job, prices).run(); }

}  // namespace stepcast

// A virtual stage k = chunk * stages + stage runs forward and backward bodies of random content.
// All stages take their (chunk, micro-batch) pairs in one common order, which keeps messages in
// order; each runs some forwards ahead of its first backward, later stages no more than earlier
// ones (or, with several chunks, all of them), which keeps out deadlock. So do waits of the host
// where the rank has nothing on its way to others, or right behind a receive of the one chunk.
#include "tests/support/random_job.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <tuple>

namespace stepcast {
namespace {

constexpr EventId kReady = 0, kLanded = 1, kReceived = 5, kSendReady = 6, kSentForward = 7;
constexpr EventId kReduced = 8, kNormed = 9, kSentBackward = 10, kReduceReady = 11, kLoose = 12;
constexpr int kEvents = 13, kLandings = 4;

// Tensors: what moves between stages, what stays for backward, scratch, and three residents.
enum : TensorId { kX, kY, kDx, kDy, kSaved, kScratch, kGradient = kScratch + 8, kNorm, kTable };
enum : TransferId { kTensorWise, kDataWise, kBoth, kMessage, kStages, kAll, kEnds };
constexpr OpId kFills = 8, kScales = 8;  // ops 0 .. 7 fill, 8 .. 15 scale

class Writer {
 public:
  // `waits`: the host may, anywhere.
  Writer(std::mt19937_64& random, std::string name, Phase phase, bool waits)
      : random_(random), waits_(waits) {
    body_.name = std::move(name);
    body_.phase = phase;
  }

  int below(int n) { return static_cast<int>(random_() % static_cast<std::uint64_t>(n)); }
  Body take() { return std::move(body_); }
  void add(Instruction instruction) { body_.code.push_back(instruction); }

  Operands operands(TensorId tensor, int reads) {
    const Operands o{static_cast<std::int32_t>(body_.operands.size()),
                     static_cast<std::int16_t>(reads), 1};
    body_.operands.insert(body_.operands.end(), static_cast<std::size_t>(reads) + 1, tensor);
    return o;
  }
  Phase phase() {
    return body_.phase == Phase::kBackward && below(3) == 0 ? Phase::kRecompute : body_.phase;
  }
  void fill(TensorId t) { add(Compute{below(kFills), operands(t, 0), {}, phase()}); }
  void scale(TensorId t) { add(Compute{kFills + below(kScales), operands(t, 1), {}, phase()}); }
  void exchange(TransferId transfer, Stream stream, TensorId t, EventId ready, EventId done) {
    add(Record{Stream::kCompute, ready});
    add(Wait{stream, ready});
    add(Collective{transfer, operands(t, 1), {}, stream, phase()});
    add(Record{stream, done});
  }

  // Kernels, collectives in flight, loose events; leaves nothing allocated.
  void middle(bool reduces) {
    struct Piece {
      TensorId tensor;
      EventId landing;  // -1: not in flight
    };
    std::vector<Piece> live;
    std::vector<TensorId> spare;
    for (TensorId t = kScratch; t < kGradient; ++t) spare.push_back(t);
    std::vector<EventId> landings;
    for (EventId e = 0; e < kLandings; ++e) landings.push_back(static_cast<EventId>(kLanded + e));
    const auto land = [&](Piece& piece) {
      if (piece.landing < 0) return;
      add(Wait{Stream::kCompute, piece.landing});
      landings.push_back(piece.landing);
      piece.landing = -1;
    };
    constexpr Stream kSome[] = {Stream::kCompute, Stream::kTensor, Stream::kData, Stream::kGlobal};
    for (int left = 5 + below(40); left > 0; --left) {
      const int choice = below(16);
      if (choice < 4 && !spare.empty()) {
        live.push_back({spare.back(), -1});
        spare.pop_back();
        add(Alloc{live.back().tensor});
        fill(live.back().tensor);
      } else if (choice == 4) {
        add(below(2) == 0 ? Instruction(HostWait{kLoose})
            : waits_     ? Instruction(Synchronize{})
                         : Instruction(Mark{}));
      } else if (choice == 5) {
        add(Record{kSome[below(4)], kLoose});
      } else if (choice == 6) {
        add(Wait{kSome[below(4)], below(2) == 0 ? kLoose : kReduced});
      } else if (choice == 7 && reduces) {
        exchange(kDataWise, Stream::kData, kGradient, kReduceReady, kReduced);
      } else if (!live.empty()) {
        const auto which = static_cast<std::size_t>(below(static_cast<int>(live.size())));
        Piece& piece = live[which];
        if (choice < 11 && piece.landing < 0 && !landings.empty()) {
          constexpr Stream kOn[] = {Stream::kTensor, Stream::kContext, Stream::kExpert,
                                    Stream::kReplica, Stream::kCompute};
          piece.landing = landings.back();
          landings.pop_back();
          exchange(below(3), kOn[below(5)], piece.tensor, kReady, piece.landing);
        } else {
          land(piece);
          scale(piece.tensor);
          if (choice < 13) continue;
          add(Free{piece.tensor});
          spare.push_back(piece.tensor);
          live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
        }
      }
    }
    for (Piece& piece : live) {
      land(piece);
      add(Free{piece.tensor});
    }
  }

 private:
  std::mt19937_64& random_;
  bool waits_;
  Body body_;
};

// Where the host may wait in a body.
struct Waits {
  bool anywhere = false;
  bool for_messages = false;
};

Body forward(std::mt19937_64& random, bool receives, bool sends, Waits waits) {
  Writer w(random, "forward", Phase::kForward, waits.anywhere);
  if (receives) {
    w.add(Alloc{kX});
    w.add(Receive{kMessage, kX, {}, Stream::kReceiveForward, -1});
    w.add(Record{Stream::kReceiveForward, kReceived});
    w.add(Wait{Stream::kCompute, kReceived});
    if (waits.for_messages) w.add(Synchronize{});
    w.scale(kX);
  }
  w.add(Alloc{kSaved});
  w.fill(kSaved);
  w.middle(false);
  if (sends) {
    w.add(Alloc{kY});
    w.fill(kY);
    w.add(Record{Stream::kCompute, kSendReady});
    w.add(Wait{Stream::kSendForward, kSendReady});
    w.add(Send{kMessage, kY, {}, Stream::kSendForward, 1});
    w.add(Record{Stream::kSendForward, kSentForward});
  }
  if (w.below(3) == 0) w.middle(false);
  return w.take();
}

Body backward(std::mt19937_64& random, bool had_received, bool had_sent, bool reduces,
              Waits waits) {
  Writer w(random, reduces ? "backward last" : "backward", Phase::kBackward, waits.anywhere);
  if (had_sent) {
    w.add(Alloc{kDy});
    w.add(Receive{kMessage, kDy, {}, Stream::kReceiveBackward, 1});
    w.add(Record{Stream::kReceiveBackward, kReceived});
    w.add(Wait{Stream::kCompute, kReceived});
    if (waits.for_messages) w.add(Synchronize{});
    w.scale(kDy);
  }
  w.scale(kSaved);
  w.middle(reduces);
  if (had_received) {
    w.add(Alloc{kDx});
    w.fill(kDx);
    w.add(Record{Stream::kCompute, kSendReady});
    w.add(Wait{Stream::kSendBackward, kSendReady});
    w.add(Send{kMessage, kDx, {}, Stream::kSendBackward, -1});
    w.add(Record{Stream::kSendBackward, kSentBackward});
  }
  if (w.below(2) == 0) w.middle(reduces);
  if (had_sent) {
    w.add(Wait{Stream::kCompute, kSentForward});
    w.add(Free{kY});
    w.add(Free{kDy});
  }
  w.add(Free{kSaved});
  if (had_received) {
    w.add(Wait{Stream::kCompute, kSentBackward});
    w.add(Free{kX});
    w.add(Free{kDx});
  }
  return w.take();
}

// Sets the events that bodies wait for before they record them.
Body begin(std::mt19937_64& random) {
  Writer w(random, "begin", Phase::kForward, true);
  w.scale(kNorm);
  w.exchange(kAll, Stream::kGlobal, kNorm, kReady, kNormed);
  w.add(Record{Stream::kGlobal, kReduced});
  w.add(Record{Stream::kCompute, kLoose});
  return w.take();
}

Body optimizer(std::mt19937_64& random, bool is_end) {
  Writer w(random, is_end ? "optimizer of an end" : "optimizer", Phase::kOptimizer, true);
  w.add(Wait{Stream::kCompute, kReduced});
  w.scale(kGradient);
  if (is_end) w.exchange(kEnds, Stream::kReplica, kTable, kReady, kLanded);
  w.middle(false);
  w.add(Wait{Stream::kCompute, kNormed});
  w.scale(kNorm);
  w.exchange(kStages, Stream::kGlobal, kNorm, kReady, kNormed);
  if (w.below(2) == 0) w.add(Wait{Stream::kCompute, kNormed});
  w.scale(kGradient);
  return w.take();
}

void write_tables(Job& job, std::mt19937_64& random) {
  const auto size = [&] { return static_cast<std::int64_t>(1 + random() % 64); };
  job.events = kEvents;
  job.names = {"thing"};
  for (TensorId t = 0; t <= kTable; ++t) {
    Tensor tensor{{0, -1}, {size(), size()}, Dtype::kBf16, Category::kActivations,
                  Scope::kMicroBatch};
    if (t >= kScratch && random() % 3 == 0) tensor.category = Category::kBuffers;
    if (t <= kDy) tensor.shape = {32, 32};
    if (t >= kGradient) tensor.scope = Scope::kRank;
    if (t >= kGradient) tensor.category = Category::kWeights;
    if (t == kGradient) tensor.category = Category::kGradients;
    job.tensors.push_back(tensor);
  }
  job.resident_sets = {{kGradient, kNorm, kTable}};
  for (OpId op = 0; op < kFills + kScales; ++op) {
    Pointwise work;
    work.kind = op < kFills ? PointwiseKind::kFill : PointwiseKind::kScale;
    work.rows = op + 1;
    work.columns = 1;
    job.ops.push_back(work);
  }
  const AxisSet stages = Axis::kPipeline, everything = stages | Axis::kTensor | Axis::kData;
  job.transfers = {{TransferKind::kAllReduce, Axis::kTensor, false, Bytes(1000)},
                   {TransferKind::kAllReduce, Axis::kData, false, Bytes(2000)},
                   {TransferKind::kAllReduce, Axis::kTensor | Axis::kData, false, Bytes(3000)},
                   {TransferKind::kSendReceive, stages, false, job.tensors[kX].bytes()},
                   {TransferKind::kAllReduce, stages, false, Bytes(4)},
                   {TransferKind::kAllReduce, everything, false, Bytes(8)},
                   {TransferKind::kAllReduce, stages, true, Bytes(16)}};
}

// Chunk and micro-batch, in groups of micro-batches that pass through all chunks in turn.
std::vector<std::pair<int, int>> common_order(int chunks, int micro_batches, int group) {
  std::vector<std::pair<int, int>> order;
  for (int first = 0; first < micro_batches; first += group) {
    for (int c = 0; c < chunks; ++c) {
      for (int m = first; m < std::min(first + group, micro_batches); ++m) order.push_back({c, m});
    }
  }
  return order;
}

}  // namespace

Job random_job(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&](int least, int most) {
    return least + static_cast<int>(random() % static_cast<std::uint64_t>(most - least + 1));
  };
  Job job;
  write_tables(job, random);
  const int stages = pick(1, 4), chunks = pick(1, 3), micro_batches = pick(1, 6);
  job.mesh.degree(Axis::kTensor) = pick(1, 3);
  job.mesh.degree(Axis::kData) = pick(1, 2);
  job.mesh.degree(Axis::kPipeline) = stages;
  if (pick(0, 3) == 0) std::reverse(job.mesh.order.begin(), job.mesh.order.end());

  const Waits waits = {stages == 1 && pick(0, 1) == 0, chunks == 1 && pick(0, 1) == 0};

  // One body for all virtual stages of a kind, or each its own.
  const bool shared = pick(0, 3) > 0;
  std::map<std::tuple<int, bool, bool, int>, BodyId> known;
  const auto body = [&](int kind, int k) {
    const bool receives = k > 0, sends = k + 1 < stages * chunks;
    const auto [it, fresh] = known.try_emplace({kind, receives, sends, shared ? 0 : k},
                                               static_cast<BodyId>(job.bodies.size()));
    if (!fresh) return it->second;
    job.bodies.push_back(kind == 0 ? forward(random, receives, sends, waits)
                                   : backward(random, receives, sends, kind == 2, waits));
    return it->second;
  };
  job.bodies = {begin(random), optimizer(random, false), optimizer(random, true)};

  const auto order = common_order(chunks, micro_batches, pick(1, micro_batches));
  const auto total = static_cast<int>(order.size());
  const int ahead = chunks > 1 ? total : pick(0, 3);
  for (int s = 0; s < stages; ++s) {
    Program program;
    program.residents = {{0, 0}};
    program.schedule = {{0, 0, 0}};
    const auto run_forward = [&](int i) {
      const auto [c, m] = order[static_cast<std::size_t>(i)];
      program.schedule.push_back({body(0, c * stages + s), c, m});
    };
    const auto run_backward = [&](int i) {
      const int c = chunks - 1 - order[static_cast<std::size_t>(i)].first;
      const int m = order[static_cast<std::size_t>(i)].second;
      const int kind = m + 1 == micro_batches ? 2 : 1;
      program.schedule.push_back({body(kind, c * stages + s), c, m});
    };
    const int warm_up = std::min(total, ahead + stages - 1 - s);
    for (int i = 0; i < warm_up; ++i) run_forward(i);
    for (int i = warm_up; i < total; ++i) {
      run_forward(i);
      run_backward(i - warm_up);
    }
    for (int i = total - warm_up; i < total; ++i) run_backward(i);
    program.schedule.push_back({s == 0 || s + 1 == stages ? 2 : 1, 0, 0});
    job.programs.push_back(std::move(program));
  }
  return job;
}

Prices random_prices(const Job& job, std::uint64_t seed) {
  std::mt19937_64 random(seed ^ 0x9e3779b97f4a7c15u);
  const auto duration = [&] {
    return random() % 5 == 0 ? Duration() : Duration(static_cast<std::int64_t>(random() % 1000000));
  };
  Prices prices;
  for (std::size_t i = 0; i < job.ops.size(); ++i) {
    prices.ops.push_back(duration());
    prices.basis.push_back(static_cast<Basis>(random() % kBases));
  }
  for (std::size_t i = 0; i < job.transfers.size(); ++i) prices.transfers.push_back(duration());
  constexpr std::int64_t kIssue[] = {0, 1000, 50000, 700000};
  prices.issue = Duration(kIssue[random() % 4]);
  prices.pass = Duration(kIssue[random() % 4]);
  if (random() % 2 == 0) prices.fill = Duration(kIssue[random() % 4]);
  return prices;
}

}  // namespace stepcast

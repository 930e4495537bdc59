// One pass over the bodies. Distinct groups and channels are few (a handful a Job), so they are
// found by linear search.
#include "sim/engine/compile.h"

#include <algorithm>

#include <utility>

#include "sim/base/error.h"
#include "sim/program/charged.h"
#include "sim/program/pieces.h"

namespace stepcast {
namespace {

Part part_of(Axis axis) {
  switch (axis) {
    case Axis::kTensor: return Part::kTensor;
    case Axis::kContext: return Part::kContext;
    case Axis::kExpert: return Part::kExpert;
    case Axis::kData:
    case Axis::kReplica: return Part::kData;
    case Axis::kPipeline: return Part::kPipeline;
  }
  return Part::kOther;
}

// Of a wait for what is on the stream. A receive's wire time is added by the Receive itself.
Part part_of(Stream stream) {
  switch (stream) {
    case Stream::kCompute: return Part::kOther;
    case Stream::kTensor: return Part::kTensor;
    case Stream::kContext: return Part::kContext;
    case Stream::kExpert: return Part::kExpert;
    case Stream::kData:
    case Stream::kReplica: return Part::kData;
    case Stream::kGlobal: return Part::kBubble;  // stages wait for the last one's cool-down
    case Stream::kSendForward:
    case Stream::kSendBackward: return Part::kPipeline;
    case Stream::kReceiveForward:
    case Stream::kReceiveBackward: return Part::kBubble;
    case Stream::kHostCopy: return Part::kOther;
  }
  return Part::kOther;
}

Part part_of(Phase phase) {
  switch (phase) {
    case Phase::kForward:
    case Phase::kBackward: return Part::kCompute;
    case Phase::kRecompute: return Part::kRecompute;
    case Phase::kOptimizer: return Part::kOptimizer;
  }
  return Part::kOther;
}

// The sender's stream whose messages a receive on this stream takes.
Stream lane_of(Stream stream) {
  if (stream == Stream::kReceiveForward) return Stream::kSendForward;
  if (stream == Stream::kReceiveBackward) return Stream::kSendBackward;
  return stream;
}

class Compiler {
 public:
  Compiler(const Job& job, const Prices& prices, const Mesh& mesh)
      : job_(job), prices_(prices), mesh_(mesh), receive_causes_(job.transfers.size(), -1) {
    STEPCAST_CHECK(prices.ops.size() == job.ops.size() && prices.basis.size() == job.ops.size() &&
                       prices.transfers.size() == job.transfers.size(),
                   "prices belong to the job");
    STEPCAST_CHECK(!prices.one_stream || prices.receives.size() == job.transfers.size(),
                   "prices belong to the job");
    STEPCAST_CHECK(prices.placed.empty() ||
                       prices.placed.size() == job.ops.size() * 2 * kPhases,
                   "prices belong to the job");
    code_.host[kIssued] = prices.issue;
    code_.host[kFilled] = prices.fill.value_or(prices.issue);
    code_.host[kGrouped] = prices.issue + prices.groups;
    code_.host[kRouted] = prices.issue + prices.route;
    code_.graph = prices.graph;
    code_.one_stream = prices.one_stream;
    for (int s = 0; s < kStreams; ++s) {
      code_.causes.push_back({part_of(static_cast<Stream>(s)), {}});
    }
    // Where there is one stage, nobody's cool-down is waited for.
    if (mesh.stages() == 1) {
      code_.causes[static_cast<std::size_t>(Stream::kGlobal)].part = Part::kOther;
    }
    // One event more for collectives in pieces.
    const auto registers = kFirstEventRegister + static_cast<std::size_t>(job.events) +
                           (prices.pieces.empty() ? 0 : 1);
    code_.first_causes.assign(registers, 0);
    code_.receiving.assign(registers, false);
    code_.streams = {Stream::kCompute};
    code_.stream_registers = {static_cast<std::int32_t>(kComputeRegister)};
    registers_.fill(-1);
    registers_[static_cast<std::size_t>(Stream::kCompute)] = kComputeRegister;
  }

  Code run() {
    std::size_t total = 0;
    for (const Body& body : job_.bodies) total += body.code.size() + 1;
    code_.micros.reserve(prices_.placed.empty() ? total : 2 * total);
    add_bodies();
    if (!prices_.placed.empty()) {
      first_ = false;
      code_.later = job_.bodies.size();
      add_bodies();
    }
    add_beside();
    return std::move(code_);
  }

 private:
  void add_bodies() {
    for (const Body& body : job_.bodies) {
      code_.entries.push_back(static_cast<std::int32_t>(code_.micros.size()));
      instruction_ = 0;
      if (prices_.pass > Duration() && is_pass(body)) {
        emit(MicroKind::kPass, Stream::kCompute).duration = prices_.pass;
      }
      const std::size_t entry = code_.micros.size();
      find_pairs(body);
      for (const Instruction& instruction : body.code) {
        const Pair* pair = pair_here();
        if (pair == nullptr) {
          match(instruction, [&](const auto& i) { add(i); });
        } else if (instruction_ == pair->first()) {
          add_pieces(body, *pair);
        }
        ++instruction_;
      }
      if (first_) code_.timed.push_back(static_cast<std::int64_t>(code_.micros.size() - entry));
      code_.micros.push_back({});
    }
  }
  // A collective in pieces and the product beside it. Both are issued where the first one stands.
  struct Pair {
    std::int32_t collective = 0, product = 0;  // instructions of the body
    std::int32_t first() const { return std::min(collective, product); }
    std::int32_t last() const { return std::max(collective, product); }
  };

  void find_pairs(const Body& body) {
    pairs_.clear();
    next_pair_ = 0;
    if (prices_.pieces.empty()) return;
    for (std::size_t i = 0; i < body.code.size(); ++i) {
      const auto* collective = std::get_if<Collective>(&body.code[i]);
      if (collective == nullptr || collective->pieces == 1) continue;
      pairs_.push_back({static_cast<std::int32_t>(i), product_beside(job_, body, i)});
    }
  }

  // The pair of the instruction at hand. Pairs follow each other: verify() allows no product two.
  const Pair* pair_here() {
    while (next_pair_ < pairs_.size() && pairs_[next_pair_].last() < instruction_) ++next_pair_;
    if (next_pair_ == pairs_.size()) return nullptr;
    const Pair& pair = pairs_[next_pair_];
    return instruction_ == pair.collective || instruction_ == pair.product ? &pair : nullptr;
  }

  const PiecePrice& piece_price(TransferId transfer, OpId op, std::int16_t pieces) const {
    const auto found =
        std::find_if(prices_.pieces.begin(), prices_.pieces.end(),
                     [&](const PiecePrice& p) { return p.is_of(transfer, op, pieces); });
    STEPCAST_CHECK(found != prices_.pieces.end(), "prices belong to the job");
    return *found;
  }

  // Parts and pieces in turn; what comes second waits for its own counterpart alone.
  void add_pieces(const Body& body, const Pair& pair) {
    const auto& collective =
        std::get<Collective>(body.code[static_cast<std::size_t>(pair.collective)]);
    const auto& compute = std::get<Compute>(body.code[static_cast<std::size_t>(pair.product)]);
    const PiecePrice& price = piece_price(collective.transfer, compute.op, collective.pieces);
    const std::int32_t here = instruction_;
    const auto put = [&](const auto& instruction, std::int32_t number, Duration time, bool first) {
      instruction_ = number;
      add(instruction);
      code_.micros.back().duration = time;
      if (!first) code_.micros.back().host = kWithAnother;
    };
    const auto part = [&](bool first) { put(compute, pair.product, price.part, first); };
    const auto piece = [&](bool first) { put(collective, pair.collective, price.piece, first); };
    const auto wait = [&](Stream behind, Stream waits) {
      const auto event = static_cast<std::int32_t>(kFirstEventRegister) + job_.events;
      emit(MicroKind::kRecord, behind).other = event;
      emit(MicroKind::kWait, waits).other = event;
    };
    const bool gathers = pair.collective < pair.product;
    if (gathers) part(true);  // of its own rows
    const int moved = pieces_moved(transfer(collective.transfer), collective.pieces);
    for (int i = 0; i < moved; ++i) {
      const bool first = i == 0;
      if (gathers) {
        piece(first);
        wait(collective.stream, Stream::kCompute);
        part(false);
      } else {
        part(first);
        wait(Stream::kCompute, collective.stream);
        piece(first);
      }
    }
    instruction_ = here;
  }

  // Only streams that the Job uses.
  void add_beside() {
    std::vector<const Beside*> used;
    for (const Beside& beside : prices_.beside) {
      const std::int32_t reg = registers_[static_cast<std::size_t>(beside.stream)];
      if (reg < 0) continue;
      STEPCAST_CHECK(beside.ops.size() == job_.ops.size() &&
                         beside.transfers.size() == job_.transfers.size(),
                     "prices belong to the job");
      code_.busy.push_back({static_cast<std::size_t>(reg), part_of(beside.stream)});
      used.push_back(&beside);
    }
    for (std::size_t op = 0; op < job_.ops.size(); ++op) {
      for (const Beside* beside : used) code_.beside.push_back(beside->ops[op] - 1);
    }
    for (std::size_t t = 0; t < job_.transfers.size(); ++t) {
      for (const Beside* beside : used) code_.beside.push_back(beside->transfers[t] - 1);
    }
  }
  std::int32_t row_of(TransferId id) const {
    return static_cast<std::int32_t>(job_.ops.size()) + id;
  }

  std::uint16_t stream_register(Stream stream) {
    if (code_.one_stream) return static_cast<std::uint16_t>(kComputeRegister);
    std::int32_t& known = registers_[static_cast<std::size_t>(stream)];
    if (known < 0) {
      known = static_cast<std::int32_t>(code_.registers());
      code_.streams.push_back(stream);
      code_.stream_registers.push_back(known);
      for (int of_two = 0; of_two < 2; ++of_two) {  // its clock, and since when it is busy
        code_.first_causes.push_back(static_cast<std::int32_t>(stream));
        code_.receiving.push_back(false);
      }
    }
    return static_cast<std::uint16_t>(known);
  }

  static std::int32_t event_register(EventId event) {
    return static_cast<std::int32_t>(kFirstEventRegister) + event;
  }

  const Transfer& transfer(TransferId id) const {
    return job_.transfers[static_cast<std::size_t>(id)];
  }
  Duration duration(TransferId id) const {
    return prices_.transfers[static_cast<std::size_t>(id)];
  }

  Micro& emit(MicroKind kind, Stream stream) {
    Micro& micro = code_.micros.emplace_back();
    micro.kind = kind;
    micro.stream = stream_register(stream);
    micro.instruction = static_cast<std::uint32_t>(instruction_) & 0x1fffffffu;
    return micro;
  }

  std::int32_t meeting(const Transfer& transfer) {
    const int members = transfer.ends_only ? (mesh_.stages() > 1 ? 2 : 1)
                                           : mesh_.group_size(transfer.axes);
    if (members == 1) return -1;
    for (std::size_t i = 0; i < code_.meetings.size(); ++i) {
      const MeetingKind& known = code_.meetings[i];
      if (known.axes == transfer.axes && known.ends_only == transfer.ends_only) {
        return static_cast<std::int32_t>(i);
      }
    }
    code_.meetings.push_back({transfer.axes, transfer.ends_only, members});
    return static_cast<std::int32_t>(code_.meetings.size() - 1);
  }

  std::int32_t channel(int step, Stream lane) {
    const int stages = mesh_.stages();
    step = (step % stages + stages) % stages;
    for (std::size_t i = 0; i < code_.channels.size(); ++i) {
      const ChannelKind& known = code_.channels[i];
      if (known.step == step && known.lane == lane) return static_cast<std::int32_t>(i);
    }
    code_.channels.push_back({step, lane});
    return static_cast<std::int32_t>(code_.channels.size() - 1);
  }

  std::int32_t receive_cause(TransferId id) {
    std::int32_t& known = receive_causes_[static_cast<std::size_t>(id)];
    if (known < 0) {
      known = static_cast<std::int32_t>(code_.causes.size());
      code_.causes.push_back({Part::kBubble, duration(id)});
    }
    return known;
  }

  // Of a tensor that an op of the pass makes; what the optimizer fills it asks for by itself.
  bool fills(const Compute& compute) const {
    const auto* op = std::get_if<Pointwise>(&job_.ops[static_cast<std::size_t>(compute.op)]);
    return op != nullptr && op->kind == PointwiseKind::kFill && compute.phase != Phase::kOptimizer;
  }

  HostTime host_time(const Compute& compute) const {
    if (fills(compute)) return kFilled;
    const Op& op = job_.ops[static_cast<std::size_t>(compute.op)];
    if (std::holds_alternative<Route>(op)) return kRouted;
    const auto* gemm = std::get_if<Gemm>(&op);
    return gemm != nullptr && gemm->grouped ? kGrouped : kIssued;
  }

  void add(const Compute& compute) {
    Micro& micro = emit(MicroKind::kCompute, Stream::kCompute);
    micro.host = host_time(compute) & 7u;
    micro.part = part_of(compute.phase);
    micro.other = compute.op;
    const auto op = static_cast<std::size_t>(compute.op);
    PlacedPrice price;
    if (prices_.placed.empty()) {
      price = {prices_.ops[op], prices_.basis[op]};
    } else {
      price = prices_.placed[placed_row(compute.op, compute.phase, first_)];
    }
    micro.detail = static_cast<std::int32_t>(price.basis);
    micro.duration = price.time;
  }

  void add(const Collective& collective) {
    const Transfer& what = transfer(collective.transfer);
    const std::int32_t with = meeting(what);
    Micro& micro = emit(with < 0 ? MicroKind::kLocal : MicroKind::kMeet, collective.stream);
    micro.part = what.axes.empty() ? Part::kOther : part_of(charged_axis(collective.stream, what));
    // What all stages meet for is waiting for the last one's cool-down.
    if (code_.one_stream && micro.part == Part::kPipeline) micro.part = Part::kBubble;
    micro.other = with;
    micro.detail = row_of(collective.transfer);
    micro.duration = duration(collective.transfer);
  }

  void add(const Send& send) {
    const std::int32_t through = channel(send.step, lane_of(send.stream));
    Micro& micro = emit(MicroKind::kSend, send.stream);
    micro.part = Part::kPipeline;
    micro.other = through;
    micro.detail = row_of(send.transfer);
    micro.duration = duration(send.transfer);
  }

  // The channel is named from its sender's side, `step` back from here.
  void add(const Receive& receive) {
    const std::int32_t through = channel(-receive.step, lane_of(receive.stream));
    const std::int32_t cause = receive_cause(receive.transfer);
    Micro& micro = emit(MicroKind::kReceive, receive.stream);
    micro.part = Part::kPipeline;
    micro.other = through;
    micro.detail = cause;
    micro.duration = code_.one_stream ? prices_.receives[static_cast<std::size_t>(receive.transfer)]
                                      : duration(receive.transfer);
    code_.receiving[micro.stream] = !code_.one_stream;  // there its wait is told at once
  }

  void add(const Record& record) {
    emit(MicroKind::kRecord, record.stream).other = event_register(record.event);
  }
  void add(const Wait& wait) {
    emit(MicroKind::kWait, wait.stream).other = event_register(wait.event);
  }
  void add(const Synchronize&) { emit(MicroKind::kSynchronize, Stream::kCompute); }
  void add(const HostWait& wait) {
    emit(MicroKind::kHostWait, Stream::kCompute).other = event_register(wait.event);
  }
  void add(const Alloc&) {}
  void add(const Free&) {}
  void add(const Mark&) {}

  const Job& job_;
  const Prices& prices_;
  const Mesh& mesh_;
  Code code_;
  std::array<std::int32_t, kStreams> registers_;
  std::vector<std::int32_t> receive_causes_;  // by TransferId; -1: none yet
  std::vector<Pair> pairs_;                   // of the body at hand, in its order
  std::size_t next_pair_ = 0;
  std::int32_t instruction_ = 0;
  bool first_ = true;  // bodies of the first micro-batch are being written
};

}  // namespace

bool is_pass(const Body& body) {
  if (body.later) return false;
  if (body.phase != Phase::kForward && body.phase != Phase::kBackward) return false;
  return std::any_of(body.code.begin(), body.code.end(),
                     [](const Instruction& i) { return std::holds_alternative<Compute>(i); });
}

Code compile(const Job& job, const Prices& prices, const Mesh& mesh, bool memoise) {
  Code code = Compiler(job, prices, mesh).run();
  if (memoise) mark_segments(code);
  return code;
}

}  // namespace stepcast

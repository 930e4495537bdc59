// A list scheduler with liveness, over a straight list: one pass finds each value's last use, one
// emits. What an exchange still in flight touches is freed when compute has waited for it.
#include "models/fragment.h"

#include <algorithm>

#include "sim/program/pieces.h"

namespace stepcast {

OpId Tables::op(const Op& op) {
  const auto [it, fresh] = ops_.try_emplace(op, static_cast<OpId>(job_.ops.size()));
  if (fresh) job_.ops.push_back(op);
  return it->second;
}

TransferId Tables::transfer(const Transfer& transfer) {
  // A handful per Job: a search beats a hash.
  const auto it = std::find(job_.transfers.begin(), job_.transfers.end(), transfer);
  if (it != job_.transfers.end()) return static_cast<TransferId>(it - job_.transfers.begin());
  job_.transfers.push_back(transfer);
  return static_cast<TransferId>(job_.transfers.size()) - 1;
}

Label Tables::label(std::string_view name, std::int32_t layer) {
  const auto [it, fresh] = names_.try_emplace(std::string(name),
                                              static_cast<std::int16_t>(job_.names.size()));
  if (fresh) job_.names.emplace_back(name);
  return {it->second, static_cast<std::int16_t>(layer)};
}

namespace {

class FragmentWriter {
 public:
  FragmentWriter(Tables& tables, const Block& block, const std::vector<Node>& nodes,
                 const std::vector<TensorId>& slots, const FragmentOptions& options)
      : tables_(tables), block_(block), nodes_(nodes), slots_(slots), options_(options),
        live_(options.live), last_use_(block.values.size(), -1) {}

  Fragment run();

 private:
  struct Flight {
    Stream stream = Stream::kTensor;
    EventId event = 0;
    Values operands;
    Values written;
  };

  static bool silent(const Node& node) {
    const auto* exchange = std::get_if<Exchange>(&node.work);
    return exchange != nullptr && exchange->kind == ExchangeKind::kEnter;
  }
  static bool has(const Values& values, ValueId id) {
    return std::find(values.begin(), values.end(), id) != values.end();
  }
  TensorId slot(ValueId id) const { return slots_[static_cast<std::size_t>(id)]; }
  bool managed(ValueId id) const {
    return block_.values[static_cast<std::size_t>(id)].kind == ValueKind::kActivation;
  }
  Phase phase(const Node& node) const {
    return options_.recompute ? Phase::kRecompute : node.phase;
  }
  Operands operands(const Node& node);
  void allocate(const Node& node);
  void fill(const Node& node, ValueId v, const Value& value);
  void free_if_done(ValueId id, std::int32_t now);
  void settle(std::size_t flight, std::int32_t now);
  void settle_what_touches(const Node& node, Stream stream, std::int32_t now);
  void compute(const Node& node, const Op& op);
  EventId free_event();
  void exchange(std::int32_t at, const Exchange& exchange);
  void read_by_host(const Node& node);
  bool is_product_on(std::int32_t at, ValueId taken, ValueId made) const;
  std::int16_t pieces(std::int32_t at, const Exchange& exchange) const;

  Tables& tables_;
  const Block& block_;
  const std::vector<Node>& nodes_;
  const std::vector<TensorId>& slots_;
  const FragmentOptions& options_;
  Fragment out_;
  std::vector<bool> live_;
  std::vector<std::int32_t> last_use_;
  std::vector<Flight> flights_;
  EventId next_event_ = 0;
  bool unread_ = false;  // the event at kComputeReady is that of what the host needs
};

Operands FragmentWriter::operands(const Node& node) {
  Operands o{static_cast<std::int32_t>(out_.operands.size()),
             static_cast<std::int32_t>(node.in.size()), static_cast<std::int32_t>(node.out.size())};
  for (ValueId v : node.in) out_.operands.push_back(slot(v));
  for (ValueId v : node.out) out_.operands.push_back(slot(v));
  return o;
}

void FragmentWriter::allocate(const Node& node) {
  for (ValueId v : node.out) {
    if (!managed(v) || live_[static_cast<std::size_t>(v)]) continue;
    live_[static_cast<std::size_t>(v)] = true;
    out_.code.emplace_back(Alloc{slot(v)});
    const Value& value = block_.values[static_cast<std::size_t>(v)];
    if ((options_.filled & filled_as(block_, node, value)) != 0) fill(node, v, value);
  }
}

void FragmentWriter::fill(const Node& node, ValueId v, const Value& value) {
  const Operands written{static_cast<std::int32_t>(out_.operands.size()), 0, 1};
  out_.operands.push_back(slot(v));
  out_.code.emplace_back(Compute{tables_.op(fill_of(value.shape, value.dtype)), written,
                                 tables_.label(node.name + ".fill"), phase(node)});
}

void FragmentWriter::free_if_done(ValueId id, std::int32_t now) {
  const auto v = static_cast<std::size_t>(id);
  if (!managed(id) || !live_[v] || options_.keep[v] || last_use_[v] > now) return;
  for (const Flight& flight : flights_) {
    if (has(flight.operands, id)) return;  // settle() comes back to it
  }
  live_[v] = false;
  out_.code.emplace_back(Free{slot(id)});
}

void FragmentWriter::settle(std::size_t flight, std::int32_t now) {
  const Flight landed = flights_[flight];
  flights_.erase(flights_.begin() + static_cast<std::ptrdiff_t>(flight));
  out_.code.emplace_back(Wait{Stream::kCompute, landed.event});
  for (ValueId v : landed.operands) free_if_done(v, now);
}

Stream stream_of(AxisSet axes) {
  if (axes.has(Axis::kExpert)) return Stream::kExpert;
  const bool tensor = axes == AxisSet(Axis::kTensor);
  STEPCAST_CHECK(tensor || axes == AxisSet(Axis::kContext), "an exchange within a layer");
  return tensor ? Stream::kTensor : Stream::kContext;
}

// Compute, or what follows it, must wait for an exchange whose result it touches, or whose operand
// it overwrites. What is next on the exchange's own stream comes behind it anyway.
void FragmentWriter::settle_what_touches(const Node& node, Stream stream, std::int32_t now) {
  for (std::size_t f = 0; f < flights_.size();) {
    if (flights_[f].stream == stream) {
      ++f;
      continue;
    }
    bool touches = false;
    for (ValueId v : node.in) touches = touches || has(flights_[f].written, v);
    for (ValueId v : node.out) touches = touches || has(flights_[f].operands, v);
    if (touches) {
      settle(f, now);
    } else {
      ++f;
    }
  }
}

void FragmentWriter::compute(const Node& node, const Op& op) {
  allocate(node);
  out_.code.emplace_back(
      Compute{tables_.op(op), operands(node), tables_.label(node.name), phase(node)});
}

// Whether node `at` is a product of rows of activations that reads `taken` first, or writes `made`.
bool FragmentWriter::is_product_on(std::int32_t at, ValueId taken, ValueId made) const {
  if (at < 0 || at >= static_cast<std::int32_t>(nodes_.size())) return false;
  const Node& node = nodes_[static_cast<std::size_t>(at)];
  const auto* op = std::get_if<Op>(&node.work);
  const auto* gemm = op == nullptr ? nullptr : std::get_if<Gemm>(op);
  if (gemm == nullptr || !is_product_of_rows(*gemm)) return false;
  return (taken != kNoValue && node.in[0] == taken) || (made != kNoValue && node.out[0] == made);
}

// A gather goes with the product behind it. A reduce-scatter goes with the one before it in
// forward; in backward it has the weight gradient to run beside, whole.
std::int16_t FragmentWriter::pieces(std::int32_t at, const Exchange& exchange) const {
  const Node& node = nodes_[static_cast<std::size_t>(at)];
  const bool goes = exchange.kind == ExchangeKind::kAllGather
                        ? is_product_on(at + 1, node.out[0], kNoValue)
                        : exchange.kind == ExchangeKind::kReduceScatter &&
                              node.phase == Phase::kForward &&
                              is_product_on(at - 1, kNoValue, node.in[0]);
  return goes ? options_.pieces : std::int16_t{1};
}

// Exchanges do not land in the order in which they leave: an event that is next in turn may still
// stand for one.
EventId FragmentWriter::free_event() {
  const auto taken = [&](EventId event) {
    return std::any_of(flights_.begin(), flights_.end(),
                       [&](const Flight& flight) { return flight.event == event; });
  };
  EventId event;
  do {
    event = static_cast<EventId>(options_.done + next_event_);
    next_event_ = static_cast<EventId>((next_event_ + 1) % kTensorDones);
  } while (taken(event));
  return event;
}

void FragmentWriter::exchange(std::int32_t at, const Exchange& exchange) {
  const Node& node = nodes_[static_cast<std::size_t>(at)];
  allocate(node);
  const auto bytes = [&](ValueId v) { return block_.values[static_cast<std::size_t>(v)].bytes(); };
  const Stream stream = stream_of(exchange.axes);
  Transfer transfer{TransferKind::kAllReduce, exchange.axes, false, bytes(node.in[0])};
  transfer.reduction = exchange.reduction;
  if (exchange.kind == ExchangeKind::kAllGather) {
    transfer.kind = TransferKind::kAllGather;
    transfer.bytes = bytes(node.out[0]);
  } else if (exchange.kind == ExchangeKind::kReduceScatter) {
    transfer.kind = TransferKind::kReduceScatter;
  } else if (exchange.kind == ExchangeKind::kShift) {
    transfer.kind = TransferKind::kSendReceive;
  } else if (exchange.kind == ExchangeKind::kAllToAll) {
    transfer.kind = TransferKind::kAllToAll;
  }
  const EventId done = free_event();
  out_.code.emplace_back(Record{Stream::kCompute, kComputeReady});
  out_.code.emplace_back(Wait{stream, kComputeReady});
  out_.code.emplace_back(Collective{tables_.transfer(transfer), operands(node),
                                    tables_.label(node.name), stream, phase(node),
                                    pieces(at, exchange)});
  out_.code.emplace_back(Record{stream, done});
  Flight flight{stream, done, node.in, node.out};
  for (ValueId v : node.out) {
    if (!has(flight.operands, v)) flight.operands.add(v);
  }
  flights_.push_back(flight);
}

void FragmentWriter::read_by_host(const Node& node) {
  if (node.read != HostRead::kNeeded || !unread_) return;
  out_.code.emplace_back(HostWait{kComputeReady});
  unread_ = false;
}

Fragment FragmentWriter::run() {
  const auto count = static_cast<std::int32_t>(nodes_.size());
  for (std::int32_t n = 0; n < count; ++n) {
    const Node& node = nodes_[static_cast<std::size_t>(n)];
    if (silent(node)) continue;
    for (ValueId v : node.in) last_use_[static_cast<std::size_t>(v)] = n;
    for (ValueId v : node.out) last_use_[static_cast<std::size_t>(v)] = n;
  }
  for (std::int32_t n = 0; n < count; ++n) {
    const Node& node = nodes_[static_cast<std::size_t>(n)];
    if (silent(node)) continue;
    read_by_host(node);
    if (const auto* op = std::get_if<Op>(&node.work)) {
      settle_what_touches(node, Stream::kCompute, n - 1);
      compute(node, *op);
    } else {
      // An event must not be recorded again before its Wait stands; one is free for this exchange.
      if (flights_.size() + 1 >= static_cast<std::size_t>(kTensorDones)) settle(0, n - 1);
      const auto& what = std::get<Exchange>(node.work);
      settle_what_touches(node, stream_of(what.axes), n - 1);
      exchange(n, what);
      if (!options_.overlap && what.axes == AxisSet(Axis::kTensor)) settle(flights_.size() - 1, n);
    }
    if (options_.host_reads && node.read == HostRead::kMade) {
      out_.code.emplace_back(Record{Stream::kCompute, kComputeReady});
      unread_ = true;
    }
    for (ValueId v : node.in) free_if_done(v, n);
    for (ValueId v : node.out) free_if_done(v, n);
  }
  while (!flights_.empty()) settle(0, count);
  return std::move(out_);
}

}  // namespace

Fragment write_fragment(Tables& tables, const Block& block, const std::vector<Node>& nodes,
                        const std::vector<TensorId>& slots, const FragmentOptions& options) {
  return FragmentWriter(tables, block, nodes, slots, options).run();
}

}  // namespace stepcast

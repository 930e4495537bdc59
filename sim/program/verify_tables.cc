// Numbers, operands and streams, each by itself. One pass over the tables, the bodies and the
// schedules: linear in the text.

#include <algorithm>
#include <unordered_set>

#include "sim/program/pieces.h"
#include "sim/program/text.h"
#include "sim/program/verify_parts.h"

namespace stepcast {

namespace {

bool in_table(std::int64_t index, std::size_t size) {
  return index >= 0 && static_cast<std::uint64_t>(index) < size;
}

template <class... Parts>
std::string text_of(const Parts&... parts) {
  std::string text;
  (append(text, parts), ...);
  return text;
}

std::int64_t number(std::size_t index) { return static_cast<std::int64_t>(index); }

std::string mesh_fault(const Mesh& mesh) {
  std::int64_t ranks = 1;
  AxisSet seen;
  for (const int degree : mesh.degrees) {
    if (degree < 1) return "mesh: every degree is at least 1";
    ranks *= degree;
    if (ranks > kRanksMax) return text_of("mesh: more than ", kRanksMax, " ranks");
  }
  for (const Axis axis : mesh.order) seen = seen | axis;
  return seen.bits == (1u << kAxes) - 1 ? "" : "mesh: its order must name every axis once";
}

bool label_holds(const Job& job, Label label) {
  return in_table(label.name, job.names.size()) && label.layer >= -1;
}

std::string tensor_fault(const Job& job, const Tensor& tensor) {
  if (!label_holds(job, tensor.label)) return "its label is not in the table of names";
  if (tensor.shape.rank < 0 || tensor.shape.rank > 4) return "a shape has at most 4 sizes";
  std::int64_t room = kBytesMax / 8;
  for (std::size_t i = 0; i < 4; ++i) {
    const std::int64_t size = tensor.shape.sizes[i];
    if (size < 1 || size > room) return "its sizes are too small or too large";
    const bool beyond = number(i) >= tensor.shape.rank;
    if (beyond && size != 1) return "a size beyond the shape's rank is not 1";
    room /= size;
  }
  return "";
}

// An op is good if its text is: the parser knows the limits.
std::string op_fault(const Op& op) {
  try {
    return parse_op(to_text(op), "") == op ? "" : "its text reads back as another op";
  } catch (const Error& error) {
    return error.message();
  }
}

// A weight's parts are its rows, those of one of its experts.
std::string cut_fault(const Tensor& tensor) {
  const std::int64_t matrices = std::max<std::int64_t>(tensor.experts, 1);
  if (tensor.experts < 0 || tensor.shape.sizes[0] % matrices != 0) {
    return "its rows are not those of so many experts";
  }
  std::int64_t rows = 0;
  for (const std::int64_t part : tensor.parts) {
    if (part < 0 || part > tensor.shape.sizes[0]) return "its packed parts are out of range";
    rows += part;
  }
  if (rows > 0 && (tensor.cut != Cut::kRows || rows * matrices != tensor.shape.sizes[0])) {
    return "its packed parts are not its rows";
  }
  if (tensor.parts[0] == 0 && rows > 0) return "its packed parts have a gap";
  if (tensor.parts[1] == 0 && tensor.parts[2] > 0) return "its packed parts have a gap";
  return tensor.cut == Cut::kColumns && tensor.shape.rank != 2 ? "only a matrix has columns" : "";
}

std::string batch_fault(const Batch& b) {
  if (b == Batch{}) return "";
  for (const std::int64_t size :
       {b.sequence_length, b.micro_batch, b.micro_batches, b.vocabulary}) {
    if (size < 1 || size > kSizeMax) return "batch: a size is out of range";
  }
  return b.micro_batches > INT32_MAX ? "batch: too many micro-batches" : "";
}

std::string dropout_fault(double rate) {
  const bool fits = rate == 0 || (rate >= kDropoutLeast && rate <= kDropoutMost);
  return fits ? "" : "dropout: the rate is out of range";
}

// The whole tensors' elements, shared out over the state's axes, are what each share holds.
std::string flat_fault(const Job& job, const Flat& flat, std::vector<bool>& taken) {
  std::int64_t elements = 0;
  const auto take = [&](TensorId id) {
    if (!in_table(id, job.tensors.size())) return text_of('%', id, " is not a tensor");
    if (taken[static_cast<std::size_t>(id)]) return text_of('%', id, " stands in two");
    taken[static_cast<std::size_t>(id)] = true;
    return std::string();
  };
  for (const TensorId id : flat.whole) {
    if (std::string fault = take(id); !fault.empty()) return fault;
    elements += job.tensors[static_cast<std::size_t>(id)].shape.elements();
    if (elements > kBytesMax) return "it has too many elements";
  }
  if (elements < 1) return "it has no elements";
  const std::int64_t ranks = job.mesh.group_size(flat.axes);
  for (const TensorId id : flat.shares) {
    if (std::string fault = take(id); !fault.empty()) return fault;
    const std::int64_t share = job.tensors[static_cast<std::size_t>(id)].shape.elements();
    if (share != (elements + ranks - 1) / ranks) {
      return text_of('%', id, ": ", share, " elements are no share of ", elements, " over ", ranks);
    }
  }
  return "";
}

std::string transfer_fault(const Transfer& transfer) {
  if (transfer.axes.bits >= 1u << kAxes) return "unknown axes";
  if (transfer.bytes.count < 0 || transfer.bytes.count > kBytesMax) return "bytes out of range";
  if (transfer.reduction != Reduction::kSum && transfer.kind != TransferKind::kAllReduce &&
      transfer.kind != TransferKind::kReduceScatter) {
    return "only a reduction takes the maximum";
  }
  if (transfer.ends_only && !(transfer.axes == AxisSet(Axis::kPipeline))) {
    return "ends_only is for the pipeline axis alone";
  }
  return "";
}

std::string transfer_text(const Transfer& t) {
  return text_of(transfer_name(t.kind), ' ', axis_set_name(t.axes), ' ', t.bytes.count,
                 t.ends_only ? " ends" : "", t.reduction == Reduction::kMaximum ? " maximum" : "");
}

// The first entry whose text stood in the table before: tables that are said to be of distinct
// entries must be.
template <class Entry, class Text>
std::string duplicate_fault(const char* what, const std::vector<Entry>& table, Text to_string) {
  std::unordered_set<std::string> seen;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (!seen.insert(to_string(table[i])).second) {
      return text_of(what, number(i), ": the same stands in the table before");
    }
  }
  return "";
}

std::string entries_fault(const Job& job) {
  if (job.events < 0 || job.events > INT16_MAX) return "events: out of range";
  if (job.names.size() > static_cast<std::size_t>(INT16_MAX) + 1) return "names: too many";
  for (std::size_t i = 0; i < job.tensors.size(); ++i) {
    std::string fault = tensor_fault(job, job.tensors[i]);
    if (fault.empty()) fault = cut_fault(job.tensors[i]);
    if (!fault.empty()) return text_of("tensor %", number(i), ": ", fault);
  }
  for (std::size_t i = 0; i < job.ops.size(); ++i) {
    const std::string fault = op_fault(job.ops[i]);
    if (!fault.empty()) return text_of("op #", number(i), ": ", fault);
  }
  for (std::size_t i = 0; i < job.transfers.size(); ++i) {
    const std::string fault = transfer_fault(job.transfers[i]);
    if (!fault.empty()) return text_of("transfer @", number(i), ": ", fault);
  }
  for (std::size_t i = 0; i < job.resident_sets.size(); ++i) {
    for (const TensorId tensor : job.resident_sets[i]) {
      if (!in_table(tensor, job.tensors.size())) {
        return text_of("residents $", number(i), ": %", tensor, " is not a tensor");
      }
    }
  }
  std::vector<bool> taken(job.tensors.size(), false);
  for (std::size_t i = 0; i < job.flats.size(); ++i) {
    const std::string trouble = flat_fault(job, job.flats[i], taken);
    if (!trouble.empty()) return text_of("flat ~", number(i), ": ", trouble);
  }
  std::string fault = duplicate_fault("name ", job.names, [](const auto& n) { return n; });
  if (fault.empty()) fault = duplicate_fault("op #", job.ops, to_text);
  if (fault.empty()) fault = duplicate_fault("transfer @", job.transfers, transfer_text);
  return fault;
}

// ---- instructions ----------------------------------------------------------------------------

bool sends_or_receives(Stream stream) {
  return stream == Stream::kSendForward || stream == Stream::kReceiveForward ||
         stream == Stream::kSendBackward || stream == Stream::kReceiveBackward;
}

class BodyChecker {
 public:
  BodyChecker(const Job& job, const Body& body) : job_(job), body_(body) {}

  // "" or the fault of one instruction; instructions are given in order.
  std::string check(const Instruction& instruction) {
    return match(
        instruction, [&](const Compute& c) { return check_compute(c); },
        [&](const Collective& c) { return check_collective(c); },
        [&](const Send& s) {
          return check_message(s, s.stream == Stream::kSendForward    ? 1
                                  : s.stream == Stream::kSendBackward ? -1
                                                                      : 0);
        },
        [&](const Receive& r) {
          return check_message(r, r.stream == Stream::kReceiveForward    ? -1
                                  : r.stream == Stream::kReceiveBackward ? 1
                                                                         : 0);
        },
        [&](const Alloc& a) { return check_tensor(a.tensor); },
        [&](const Free& f) { return check_tensor(f.tensor); },
        [&](const Record& r) { return check_event(r.event); },
        [&](const Wait& w) { return check_event(w.event); },
        [](const Synchronize&) { return std::string(); },
        [&](const HostWait& w) { return check_event(w.event); },
        [&](const Mark& m) { return check_label(m.label); });
  }

  // After the last instruction.
  std::string check_end() const {
    return used_ == body_.operands.size() ? "" : "operands stand in the pool that nobody uses";
  }

 private:
  std::string check_label(Label label) const {
    return label_holds(job_, label) ? "" : "its label is not in the table of names";
  }
  std::string check_tensor(TensorId tensor) const {
    return in_table(tensor, job_.tensors.size()) ? "" : text_of('%', tensor, " is not a tensor");
  }
  std::string check_event(EventId event) const {
    return event >= 0 && event < job_.events ? "" : text_of("event ", event, " is out of range");
  }

  std::string check_operands(Operands operands) {
    if (operands.reads < 0 || operands.writes < 0 || operands.first != number(used_)) {
      return "its operands must follow those of the instruction before";
    }
    const auto count = static_cast<std::size_t>(operands.reads + operands.writes);
    if (count > body_.operands.size() - used_) return "its operands reach beyond the pool";
    for (std::size_t i = used_; i < used_ + count; ++i) {
      const std::string fault = check_tensor(body_.operands[i]);
      if (!fault.empty()) return fault;
    }
    used_ += count;
    return "";
  }

  // An operand that is added to is read: it must stand in both lists. `from` is the first write
  // that accumulates.
  std::string check_accumulates(Operands operands, int from) const {
    const auto reads = body_.operands.begin() + operands.first;
    const auto writes = reads + operands.reads;
    for (auto it = writes + from; it < writes + operands.writes; ++it) {
      if (std::find(reads, writes, *it) == writes) {
        return text_of("accumulates into ", tensor_text(job_, *it), " without reading it");
      }
    }
    return "";
  }

  std::string check_compute(const Compute& compute) {
    if (!in_table(compute.op, job_.ops.size())) return text_of('#', compute.op, " is not an op");
    std::string fault = check_label(compute.label);
    if (fault.empty()) fault = check_operands(compute.operands);
    if (!fault.empty()) return fault;
    const Op& op = job_.ops[static_cast<std::size_t>(compute.op)];
    fault = operand_fault(op, compute.operands.reads, compute.operands.writes);
    if (!fault.empty()) return fault;
    if (const Gemm* gemm = std::get_if<Gemm>(&op); gemm && gemm->accumulate) {
      Operands product = compute.operands;
      product.writes = 1;
      return check_accumulates(product, 0);
    }
    return "";
  }

  std::string check_collective(const Collective& collective) {
    if (!in_table(collective.transfer, job_.transfers.size())) {
      return text_of('@', collective.transfer, " is not a transfer");
    }
    std::string fault = check_label(collective.label);
    if (fault.empty()) fault = check_operands(collective.operands);
    if (!fault.empty()) return fault;
    const Transfer& transfer = job_.transfers[static_cast<std::size_t>(collective.transfer)];
    if (transfer.kind == TransferKind::kSendReceive) {
      if (transfer.axes.has(Axis::kPipeline)) return "a message between stages is no collective";
      fault = check_passed_on(collective.operands);
      if (!fault.empty()) return fault;
    } else if (transfer.kind == TransferKind::kAllToAll) {
      fault = check_parts(collective.operands, transfer);
      if (!fault.empty()) return fault;
    }
    if (sends_or_receives(collective.stream)) return "a collective on a stream of messages";
    if (collective.pieces < 1 || collective.pieces > kPiecesMax) {
      return text_of(collective.pieces, " pieces are not 1 to ", kPiecesMax);
    }
    return "";
  }

  // Of an all-to-all each member gives each other an equal part of every tensor; what comes goes
  // into another one, at its place among the writes.
  std::string check_parts(Operands operands, const Transfer& transfer) const {
    if (operands.reads != operands.writes) {
      return text_of(operands.reads, " tensors of an all-to-all become ", operands.writes);
    }
    const std::int64_t ranks = job_.mesh.group_size(transfer.axes);
    const auto first = body_.operands.begin() + operands.first;
    const auto writes = first + operands.reads;
    for (std::int32_t i = 0; i < operands.reads; ++i) {
      const TensorId in = first[i], out = writes[i];
      const Tensor& from = job_.tensors[static_cast<std::size_t>(in)];
      const Tensor& to = job_.tensors[static_cast<std::size_t>(out)];
      if (from.dtype != to.dtype || from.bytes() != to.bytes()) {
        return text_of('%', in, " of an all-to-all and %", out,
                       ", which it becomes, differ in size");
      }
      if (from.shape.elements() % ranks != 0) {
        return text_of('%', in, " has no equal parts for ", ranks, " ranks");
      }
      if (std::find(first, writes, out) != writes) {
        return text_of("an all-to-all both sends %", out, " and writes it");
      }
    }
    return "";
  }

  // Members that pass tensors on hold what they send and what comes, of one size.
  std::string check_passed_on(Operands operands) const {
    const auto bytes = [&](std::int32_t at, std::int32_t count) {
      Bytes sum;
      for (std::int32_t i = 0; i < count; ++i) {
        const TensorId id = body_.operands[static_cast<std::size_t>(operands.first + at + i)];
        sum += job_.tensors[static_cast<std::size_t>(id)].bytes();
      }
      return sum;
    };
    return bytes(0, operands.reads) == bytes(operands.reads, operands.writes)
               ? ""
               : "what is passed on and what comes differ in size";
  }

  // `step` is what the message's stream asks for; 0: it is no stream of such messages.
  template <class Message>
  std::string check_message(const Message& message, int step) const {
    if (!in_table(message.transfer, job_.transfers.size())) {
      return text_of('@', message.transfer, " is not a transfer");
    }
    std::string fault = check_label(message.label);
    if (fault.empty()) fault = check_tensor(message.tensor);
    if (!fault.empty()) return fault;
    if (step == 0) return text_of("a message on stream ", stream_name(message.stream));
    if (message.step != step) {
      return text_of("a message on stream ", stream_name(message.stream), " has step ", step);
    }
    const Transfer& transfer = job_.transfers[static_cast<std::size_t>(message.transfer)];
    if (transfer.kind != TransferKind::kSendReceive || transfer.ends_only ||
        !(transfer.axes == AxisSet(Axis::kPipeline))) {
      return "a message needs a send_receive along the pipeline";
    }
    const Bytes bytes = job_.tensors[static_cast<std::size_t>(message.tensor)].bytes();
    if (transfer.bytes != bytes) {
      return text_of("a message of ", transfer.bytes.count, " bytes for a tensor of ",
                     bytes.count);
    }
    return "";
  }

  const Job& job_;
  const Body& body_;
  std::size_t used_ = 0;  // operands of the instructions so far
};

// Of collectives in pieces and the products beside them. REQUIRES: each instruction is whole.
std::string all_pieces_fault(const Job& job, const Body& body) {
  std::int32_t last = -1;
  for (std::size_t i = 0; i < body.code.size(); ++i) {
    const auto* collective = std::get_if<Collective>(&body.code[i]);
    if (collective == nullptr || collective->pieces == 1) continue;
    std::string fault = pieces_fault(job, body, i);
    const std::int32_t product = fault.empty() ? product_beside(job, body, i) : -1;
    if (fault.empty() && product == last) fault = "beside a product that another one is beside";
    if (!fault.empty()) return text_of("instruction ", number(i), ": ", fault);
    last = product;
  }
  return "";
}

std::string bodies_fault(const Job& job) {
  std::int64_t instructions = 0;
  for (std::size_t b = 0; b < job.bodies.size(); ++b) {
    const Body& body = job.bodies[b];
    instructions += number(body.code.size());
    if (instructions > kInstructionsMax) return "bodies: too many instructions";
    BodyChecker checker(job, body);
    for (std::size_t i = 0; i < body.code.size(); ++i) {
      const std::string fault = checker.check(body.code[i]);
      if (fault.empty()) continue;
      return text_of("body &", number(b), " (", body.name, "), instruction ", number(i), ": ",
                     fault);
    }
    std::string fault = checker.check_end();
    if (fault.empty()) fault = all_pieces_fault(job, body);
    if (!fault.empty()) return text_of("body &", number(b), " (", body.name, "): ", fault);
  }
  return "";
}

std::string programs_fault(const Job& job) {
  if (number(job.programs.size()) != job.mesh.stages()) {
    return text_of("programs: ", job.mesh.stages(), " stages need as many programs, not ",
                   number(job.programs.size()));
  }
  std::int64_t calls = 0;
  for (std::size_t stage = 0; stage < job.programs.size(); ++stage) {
    const Program& program = job.programs[stage];
    if (program.schedule.empty()) return text_of("stage ", number(stage), ": an empty schedule");
    for (const Resident& r : program.residents) {
      if (!in_table(r.set, job.resident_sets.size()) || r.chunk < 0) {
        return text_of("stage ", number(stage), ": residents $", r.set, " chunk=", r.chunk,
                       " is out of range");
      }
    }
    calls += number(program.schedule.size());
    if (calls > kCallsMax) return "programs: too many calls";
    for (std::size_t i = 0; i < program.schedule.size(); ++i) {
      const Call& call = program.schedule[i];
      if (!in_table(call.body, job.bodies.size()) || call.chunk < 0 || call.micro_batch < 0) {
        return text_of("stage ", number(stage), ", call ", number(i), ": a number is out of range");
      }
    }
  }
  return "";
}

}  // namespace

std::string verify_tables(const Job& job) {
  std::string fault = mesh_fault(job.mesh);
  if (fault.empty()) fault = batch_fault(job.batch);
  if (fault.empty()) fault = dropout_fault(job.dropout);
  if (fault.empty()) fault = entries_fault(job);
  if (fault.empty()) fault = bodies_fault(job);
  if (fault.empty()) fault = programs_fault(job);
  return fault;
}

}  // namespace stepcast

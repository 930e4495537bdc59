// A Job as text. The tables come first, in the order of their numbers, then bodies, then stages, so
// that a reader meets nothing before its definition and interns everything under the same number:
//
//   job 1
//   mesh tensor=8 context=1 expert=1 data=4 replica=1 pipeline=2 order=tensor,context,...,pipeline
//   batch sequence_length=4096 micro_batch=1 micro_batches=8 vocabulary=50257     where it is known
//   dropout 0.1                                                   its rate, where there is dropout
//   experts tensor+expert                                         where experts are spread
//   events 4
//   name qkv
//   tensor %3 layer2.qkv bf16 [4096,1,8192] activations micro_batch
//   op #4 gemm forward 4096x1024x8192 bf16
//   tensor %4 layer2.qkv.weight bf16 [96,64] weights chunk rows=64+16+16         or rows, columns
//   tensor %5 layer2.fc2.weight bf16 [256,64] weights chunk experts=4
//   transfer @2 all_reduce tensor 67108864 [ends_only] [maximum]
//   residents $0 %0 %1
//   flat ~0 %3 %4 -> %9                          whole -> shares
//   flat ~1 over=data %5 -> %10                  where not over all axes of the state
//   body &0 forward forward                        number, name, phase; a later part of a pass
//                                                  ends with "later"
//     alloc %3
//     compute #4 layer2.qkv forward %1 %2 -> %3    op, label, phase, reads -> writes
//     collective @2 layer2.o tensor forward %3 -> %3
//     send @1 out send_forward 1 %3                transfer, label, stream, step, tensor
//     record compute 0
//     wait tensor 0
//     synchronize
//     host_wait 0
//   end
//   stage 0
//     residents $0 chunk=0
//     call &0 chunk=0 micro_batch=0
//   end
//
// The operands of a body are written in the order of its instructions; verify() asks that they lie
// in that order, which makes the text exact. Cost: linear in the Job.

#include "sim/program/program.h"

#include <utility>

#include "sim/program/text.h"

namespace stepcast {

namespace {

bool is_bare(std::string_view name) {
  for (const char c : name) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!letter && !(c >= '0' && c <= '9') && c != '_' && c != '-' && c != '+' && c != '/') {
      return false;
    }
  }
  return !name.empty();
}

// Letters, digits and _-+/ stand as they are; any other name is quoted, so that a dot in a label
// can only be the one between the layer and the name.
void append_name(std::string& out, std::string_view name) {
  if (is_bare(name)) return append(out, name);
  constexpr std::string_view kHex = "0123456789abcdef";
  out += '"';
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      append(out, "\\x", kHex[byte >> 4], kHex[byte & 15u]);
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
  }
  out += '"';
}

class Printer {
 public:
  explicit Printer(const Job& job) : job_(job) {}

  std::string print() {
    append(out_, "job 1\n");
    print_mesh();
    print_batch();
    if (job_.dropout > 0) append(out_, "dropout ", job_.dropout, '\n');
    if (!job_.experts.empty()) append(out_, "experts ", axis_set_name(job_.experts), '\n');
    append(out_, "events ", job_.events, '\n');
    print_tables();
    for (std::size_t i = 0; i < job_.bodies.size(); ++i) print_body(i);
    for (std::size_t i = 0; i < job_.programs.size(); ++i) print_program(i);
    return std::move(out_);
  }

 private:
  static std::int64_t number(std::size_t index) { return static_cast<std::int64_t>(index); }

  void print_mesh() {
    append(out_, "mesh");
    for (int i = 0; i < kAxes; ++i) {
      const Axis axis = static_cast<Axis>(i);
      append(out_, ' ', axis_name(axis), '=', job_.mesh.degree(axis));
    }
    append(out_, " order=");
    for (std::size_t i = 0; i < kAxes; ++i) {
      append(out_, i == 0 ? "" : ",", axis_name(job_.mesh.order[i]));
    }
    out_ += '\n';
  }

  void print_batch() {
    const Batch& b = job_.batch;
    if (b == Batch{}) return;
    append(out_, "batch sequence_length=", b.sequence_length, " micro_batch=", b.micro_batch);
    append(out_, " micro_batches=", b.micro_batches, " vocabulary=", b.vocabulary, '\n');
  }

  void print_label(Label label) {
    if (label.layer >= 0) append(out_, "layer", label.layer, '.');
    STEPCAST_CHECK(label.name >= 0 && static_cast<std::size_t>(label.name) < job_.names.size(),
                   "a label's name is an index into Job::names");
    append_name(out_, job_.names[static_cast<std::size_t>(label.name)]);
  }

  void print_tensor(const Tensor& tensor) {
    print_label(tensor.label);
    append(out_, ' ', dtype_name(tensor.dtype), " [");
    for (std::size_t i = 0; i < static_cast<std::size_t>(tensor.shape.rank); ++i) {
      append(out_, i == 0 ? "" : ",", tensor.shape.sizes[i]);
    }
    append(out_, "] ", category_name(tensor.category), ' ', scope_name(tensor.scope));
    if (tensor.cut != Cut::kWhole) append(out_, ' ', cut_name(tensor.cut));
    for (std::size_t i = 0; i < kPartsMax && tensor.parts[i] > 0; ++i) {
      append(out_, i == 0 ? "=" : "+", tensor.parts[i]);
    }
    if (tensor.experts > 0) append(out_, " experts=", tensor.experts);
  }

  void print_tables() {
    for (const std::string& name : job_.names) {
      append(out_, "name ");
      append_name(out_, name);
      out_ += '\n';
    }
    for (std::size_t i = 0; i < job_.tensors.size(); ++i) {
      append(out_, "tensor %", number(i), ' ');
      print_tensor(job_.tensors[i]);
      out_ += '\n';
    }
    for (std::size_t i = 0; i < job_.ops.size(); ++i) {
      append(out_, "op #", number(i), ' ', to_text(job_.ops[i]), '\n');
    }
    for (std::size_t i = 0; i < job_.transfers.size(); ++i) {
      const Transfer& t = job_.transfers[i];
      append(out_, "transfer @", number(i), ' ', transfer_name(t.kind), ' ', axis_set_name(t.axes),
             ' ', t.bytes.count, t.ends_only ? " ends_only" : "",
             t.reduction == Reduction::kMaximum ? " maximum\n" : "\n");
    }
    for (std::size_t i = 0; i < job_.resident_sets.size(); ++i) {
      append(out_, "residents $", number(i));
      for (const TensorId tensor : job_.resident_sets[i]) append(out_, " %", tensor);
      out_ += '\n';
    }
    for (std::size_t i = 0; i < job_.flats.size(); ++i) {
      append(out_, "flat ~", number(i));
      const AxisSet axes = job_.flats[i].axes;
      if (!(axes == kStateAxes)) append(out_, " over=", axis_set_name(axes));
      for (const TensorId tensor : job_.flats[i].whole) append(out_, " %", tensor);
      append(out_, " ->");
      for (const TensorId tensor : job_.flats[i].shares) append(out_, " %", tensor);
      out_ += '\n';
    }
  }

  void print_operands(const Body& body, Operands operands) {
    auto next = static_cast<std::size_t>(operands.first);
    for (int i = 0; i < operands.reads; ++i) append(out_, " %", body.operands[next++]);
    append(out_, " ->");
    for (int i = 0; i < operands.writes; ++i) append(out_, " %", body.operands[next++]);
  }

  void print_message(std::string_view word, TransferId transfer, Label label, Stream stream,
                     int step, TensorId tensor) {
    append(out_, word, " @", transfer, ' ');
    print_label(label);
    append(out_, ' ', stream_name(stream), ' ', step, " %", tensor);
  }

  void print_instruction(const Body& body, const Instruction& instruction) {
    append(out_, "  ");
    match(
        instruction,
        [&](const Compute& c) {
          append(out_, "compute #", c.op, ' ');
          print_label(c.label);
          append(out_, ' ', phase_name(c.phase));
          print_operands(body, c.operands);
        },
        [&](const Collective& c) {
          append(out_, "collective @", c.transfer, ' ');
          print_label(c.label);
          append(out_, ' ', stream_name(c.stream), ' ', phase_name(c.phase));
          if (c.pieces > 1) append(out_, " pieces=", c.pieces);
          print_operands(body, c.operands);
        },
        [&](const Send& s) {
          print_message("send", s.transfer, s.label, s.stream, s.step, s.tensor);
        },
        [&](const Receive& r) {
          print_message("receive", r.transfer, r.label, r.stream, r.step, r.tensor);
        },
        [&](const Alloc& a) { append(out_, "alloc %", a.tensor); },
        [&](const Free& f) { append(out_, "free %", f.tensor); },
        [&](const Record& r) { append(out_, "record ", stream_name(r.stream), ' ', r.event); },
        [&](const Wait& w) { append(out_, "wait ", stream_name(w.stream), ' ', w.event); },
        [&](const Synchronize&) { append(out_, "synchronize"); },
        [&](const HostWait& w) { append(out_, "host_wait ", w.event); },
        [&](const Mark& m) {
          append(out_, "mark ");
          print_label(m.label);
        });
    out_ += '\n';
  }

  void print_body(std::size_t index) {
    const Body& body = job_.bodies[index];
    append(out_, "body &", number(index), ' ');
    append_name(out_, body.name);
    append(out_, ' ', phase_name(body.phase), body.later ? " later\n" : "\n");
    for (const Instruction& instruction : body.code) print_instruction(body, instruction);
    append(out_, "end\n");
  }

  void print_program(std::size_t stage) {
    const Program& program = job_.programs[stage];
    append(out_, "stage ", number(stage), '\n');
    for (const Resident& r : program.residents) {
      append(out_, "  residents $", r.set, " chunk=", r.chunk, '\n');
    }
    for (const Call& call : program.schedule) {
      append(out_, "  call &", call.body, " chunk=", call.chunk, " micro_batch=",
             call.micro_batch, '\n');
    }
    append(out_, "end\n");
  }

  const Job& job_;
  std::string out_;
};

}  // namespace

std::string_view scope_name(Scope scope) {
  switch (scope) {
    case Scope::kRank: return "rank";
    case Scope::kChunk: return "chunk";
    case Scope::kMicroBatch: return "micro_batch";
  }
  return "?";
}

std::string print_job(const Job& job) { return Printer(job).print(); }

}  // namespace stepcast

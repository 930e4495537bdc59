// A Job from its text (the form stands in program_text.cc): recursive descent over lines, then
// words, with one line of look-ahead. Cost: linear in the text.
//
// What is refused here is what cannot be held: a word out of place, a number beyond its table or
// its type, a limit. Whether the Job means something is for verify() to say.

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "sim/program/pieces.h"
#include "sim/program/program.h"
#include "sim/program/text.h"

namespace stepcast {

namespace {

constexpr std::int64_t kSmallMax = INT16_MAX;
constexpr std::int64_t kIndexMax = INT32_MAX;
constexpr std::string_view kAxesText = "axes such as data+replica, or none";

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// The name that a word spells, quoted or bare; nothing if it is no name.
std::optional<std::string> unquote(std::string_view word) {
  if (!word.starts_with('"')) {
    if (word.empty() || word.find_first_of("\"\\.") != std::string_view::npos) return std::nullopt;
    return std::string(word);
  }
  std::string name;
  std::size_t i = 1;
  for (; i < word.size() && word[i] != '"'; ++i) {
    if (word[i] != '\\') {
      name += word[i];
    } else if (i + 1 < word.size() && (word[i + 1] == '"' || word[i + 1] == '\\')) {
      name += word[++i];
    } else if (i + 3 < word.size() && word[i + 1] == 'x' && hex_digit(word[i + 2]) >= 0 &&
               hex_digit(word[i + 3]) >= 0) {
      name += static_cast<char>(hex_digit(word[i + 2]) * 16 + hex_digit(word[i + 3]));
      i += 3;
    } else {
      return std::nullopt;
    }
  }
  if (i + 1 != word.size()) return std::nullopt;  // no closing quote, or something after it
  return name;
}

class Parser {
 public:
  Parser(std::string_view text, std::string_view file) : rest_(text), file_(file) {}

  Job parse() {
    Tokens head = next_line("job 1");
    head.expect("job");
    head.integer("", 1, 1);
    head.end();
    bool mesh = false;
    bool batch = false;
    bool dropout = false;
    bool experts = false;
    bool events = false;
    while (more_lines()) {
      Tokens line = next_line("");
      if (line.take("mesh")) {
        if (std::exchange(mesh, true)) line.refuse("a second mesh");
        read_mesh(line);
      } else if (line.take("batch")) {
        if (std::exchange(batch, true)) line.refuse("a second batch");
        read_batch(line);
      } else if (line.take("dropout")) {
        if (std::exchange(dropout, true)) line.refuse("a second rate of dropout");
        job_.dropout = line.real(kDropoutLeast, kDropoutMost);
        line.end();
      } else if (line.take("experts")) {
        if (std::exchange(experts, true)) line.refuse("a second set of the experts' axes");
        job_.experts = read_axes(line.next(kAxesText));
        line.end();
      } else if (line.take("events")) {
        if (std::exchange(events, true)) line.refuse("a second count of events");
        job_.events = static_cast<int>(line.integer("", 0, kSmallMax));
        line.end();
      } else if (!read_table_line(line)) {
        line.fail("name, tensor, op, transfer, residents, flat, body or stage");
      }
    }
    if (!mesh) end_line().refuse("the job has no mesh");
    if (!events) end_line().refuse("the job does not say how many events it has");
    return std::move(job_);
  }

 private:
  // ---- lines ---------------------------------------------------------------------------------

  bool more_lines() {  // skips blank lines
    while (!rest_.empty()) {
      const std::string_view line = rest_.substr(0, rest_.find('\n'));
      if (line.find_first_not_of(" \t\r") != std::string_view::npos) return true;
      rest_.remove_prefix(std::min(line.size() + 1, rest_.size()));
      ++line_;
    }
    return false;
  }

  Tokens end_line() const { return Tokens("", file_, line_ + 1); }

  Tokens next_line(std::string_view expected) {
    if (!more_lines()) {
      std::string what;
      append(what, "expected ", expected, ", found the end of the file");
      end_line().refuse(what);
    }
    const std::string_view line = rest_.substr(0, rest_.find('\n'));
    rest_.remove_prefix(std::min(line.size() + 1, rest_.size()));
    return Tokens(line, file_, ++line_);
  }

  // ---- words ---------------------------------------------------------------------------------

  // A reference to an entry of a table that stands above this line.
  std::int32_t reference(Tokens& line, std::string_view prefix, std::size_t count) const {
    if (count == 0) line.fail("something that is defined above; that table is empty");
    const auto last = static_cast<std::int64_t>(count) - 1;
    return static_cast<std::int32_t>(line.integer(prefix, 0, std::min(last, kIndexMax)));
  }
  TensorId tensor(Tokens& line) const { return reference(line, "%", job_.tensors.size()); }
  TransferId transfer(Tokens& line) const { return reference(line, "@", job_.transfers.size()); }
  EventId event(Tokens& line) const {
    return static_cast<EventId>(reference(line, "", static_cast<std::size_t>(job_.events)));
  }

  // The number of an entry that this line defines: the next of its table.
  static void define(Tokens& line, std::string_view prefix, std::size_t count) {
    const auto next = static_cast<std::int64_t>(count);
    if (next >= kIndexMax) line.refuse("too many entries in one table");
    line.integer(prefix, next, next);
  }

  static Stream stream(Tokens& line) { return line.word(stream_name, kStreams); }
  static Phase phase(Tokens& line) { return line.word(phase_name, kPhases); }

  std::string name(Tokens& line) const {
    std::optional<std::string> name = unquote(line.peek());
    if (!name) line.fail("a name");
    line.next("a name");
    return *std::move(name);
  }

  Label label(Tokens& line) {
    std::string_view word = line.peek();
    Label label;
    const std::size_t dot = word.starts_with('"') ? std::string_view::npos : word.find('.');
    if (dot != std::string_view::npos) {
      std::int64_t layer = 0;
      if (!word.starts_with("layer") || !read_integer(word.substr(5, dot - 5), layer) ||
          layer < 0 || layer > kSmallMax) {
        line.fail("a label such as layer3.qkv");
      }
      label.layer = static_cast<std::int16_t>(layer);
      word.remove_prefix(dot + 1);
    }
    const std::optional<std::string> name = unquote(word);
    const auto known = name ? names_.find(*name) : names_.end();
    if (known == names_.end()) line.fail("a label whose name is defined above");
    label.name = known->second;
    line.next("a label");
    return label;
  }

  // ---- tables --------------------------------------------------------------------------------

  bool read_table_line(Tokens& line) {
    if (line.take("name")) {
      read_name(line);
    } else if (line.take("tensor")) {
      read_tensor(line);
    } else if (line.take("op")) {
      read_op(line);
    } else if (line.take("transfer")) {
      read_transfer(line);
    } else if (line.take("residents")) {
      read_resident_set(line);
    } else if (line.take("flat")) {
      read_flat(line);
    } else if (line.take("body")) {
      read_body(line);
    } else if (line.take("stage")) {
      read_program(line);
    } else {
      return false;
    }
    return true;
  }

  void read_mesh(Tokens& line) {
    std::int64_t ranks = 1;
    for (int i = 0; i < kAxes; ++i) {
      std::string prefix;
      append(prefix, axis_name(static_cast<Axis>(i)), '=');
      const std::int64_t degree = line.integer(prefix, 1, kRanksMax / ranks);
      job_.mesh.degree(static_cast<Axis>(i)) = static_cast<int>(degree);
      ranks *= degree;
    }
    std::string_view order = line.next("order=AXIS,...");
    const Tokens whole(order, file_, line_);
    if (!order.starts_with("order=")) whole.fail("order=AXIS,...");
    order.remove_prefix(6);
    AxisSet seen;
    for (Axis& place : job_.mesh.order) {
      const std::string_view word = order.substr(0, order.find(','));
      order.remove_prefix(std::min(word.size() + 1, order.size()));
      Tokens axis(word, file_, line_);
      place = axis.word(axis_name, kAxes);
      if (seen.has(place)) whole.refuse("the order names an axis twice");
      seen = seen | place;
    }
    if (!order.empty()) whole.refuse("the order names more axes than there are");
    line.end();
  }

  void read_batch(Tokens& line) {
    Batch& b = job_.batch;
    b.sequence_length = line.integer("sequence_length=", 1, kSizeMax);
    b.micro_batch = line.integer("micro_batch=", 1, kSizeMax);
    b.micro_batches = line.integer("micro_batches=", 1, kIndexMax);
    b.vocabulary = line.integer("vocabulary=", 1, kSizeMax);
    line.end();
  }

  void read_name(Tokens& line) {
    if (job_.names.size() > static_cast<std::size_t>(kSmallMax)) line.refuse("too many names");
    std::string text = name(line);
    if (!names_.emplace(text, static_cast<std::int16_t>(job_.names.size())).second) {
      line.refuse("this name is defined above");
    }
    job_.names.push_back(std::move(text));
    line.end();
  }

  Shape read_shape(Tokens& line) const {
    const std::string_view word = line.peek();
    Shape shape;
    bool good = word.size() >= 2 && word.front() == '[' && word.back() == ']';
    std::int64_t room = kBytesMax / 8;  // the widest dtype has 8 bytes
    std::string_view rest = good ? word.substr(1, word.size() - 2) : "";
    while (good && !rest.empty()) {
      const std::string_view size = rest.substr(0, rest.find(','));
      std::int64_t number = 0;
      good = shape.rank < 4 && read_integer(size, number) && number >= 1 && number <= room &&
             (size.size() == rest.size() || size.size() + 1 < rest.size());
      if (!good) break;
      room /= number;
      shape.sizes[static_cast<std::size_t>(shape.rank++)] = number;
      rest.remove_prefix(std::min(size.size() + 1, rest.size()));
    }
    if (!good) line.fail("a shape of at most 4 sizes such as [4096,1,8192]");
    line.next("a shape");
    return shape;
  }

  // "columns", "rows", or "rows=64+16+16" for the matrices packed in it; nothing: whole.
  static void read_cut(Tokens& line, Tensor& tensor) {
    if (line.take("columns")) tensor.cut = Cut::kColumns;
    if (line.take("rows")) tensor.cut = Cut::kRows;
    if (!line.peek().starts_with("rows=")) return;
    std::string_view rest = line.peek().substr(5);
    for (std::int64_t& part : tensor.parts) {
      const std::string_view size = rest.substr(0, rest.find('+'));
      if (!read_integer(size, part) || part < 1 || part > kSizeMax) {
        line.fail("rows=N+N, of at most 3 packed matrices");
      }
      rest.remove_prefix(size.size());
      if (rest.empty()) break;
      rest.remove_prefix(1);
    }
    if (!rest.empty() || line.peek().ends_with('+')) {
      line.fail("rows=N+N, of at most 3 packed matrices");
    }
    tensor.cut = Cut::kRows;
    line.next("rows=N+N");
  }

  void read_tensor(Tokens& line) {
    define(line, "%", job_.tensors.size());
    Tensor tensor;
    tensor.label = label(line);
    tensor.dtype = line.word(dtype_name, kDtypes);
    tensor.shape = read_shape(line);
    tensor.category = line.word(category_name, kCategories);
    tensor.scope = line.word(scope_name, 3);
    read_cut(line, tensor);
    if (line.peek().starts_with("experts=")) {
      tensor.experts = line.integer("experts=", 1, tensor.shape.sizes[0]);
    }
    line.end();
    job_.tensors.push_back(tensor);
  }

  void read_op(Tokens& line) {
    define(line, "#", job_.ops.size());
    std::string place(file_);
    append(place, ':', line_);
    job_.ops.push_back(parse_op(line.rest(), place));
  }

  void read_transfer(Tokens& line) {
    define(line, "@", job_.transfers.size());
    Transfer transfer;
    transfer.kind = line.word(transfer_name, 6);
    transfer.axes = read_axes(line.next(kAxesText));
    transfer.bytes = Bytes(line.integer("", 0, kBytesMax));
    transfer.ends_only = line.take("ends_only");
    if (line.take("maximum")) transfer.reduction = Reduction::kMaximum;
    line.end();
    job_.transfers.push_back(transfer);
  }

  AxisSet read_axes(std::string_view word) const {
    AxisSet axes;
    if (word == "none") return axes;
    for (std::size_t begin = 0; begin <= word.size();) {
      const std::size_t end = std::min(word.find('+', begin), word.size());
      Tokens axis(word.substr(begin, end - begin), file_, line_);
      axes = axes | axis.word(axis_name, kAxes);
      begin = end + 1;
    }
    return axes;
  }

  void read_resident_set(Tokens& line) {
    define(line, "$", job_.resident_sets.size());
    std::vector<TensorId> set;
    while (!line.done()) set.push_back(tensor(line));
    job_.resident_sets.push_back(std::move(set));
  }

  void read_flat(Tokens& line) {
    define(line, "~", job_.flats.size());
    Flat flat;
    if (line.peek().starts_with("over=")) {
      flat.axes = read_axes(line.next(kAxesText).substr(5));
    }
    while (!line.done() && line.peek() != "->") flat.whole.push_back(tensor(line));
    line.expect("->");
    while (!line.done()) flat.shares.push_back(tensor(line));
    job_.flats.push_back(std::move(flat));
  }

  // ---- bodies --------------------------------------------------------------------------------

  void read_body(Tokens& head) {
    define(head, "&", job_.bodies.size());
    Body body;
    body.name = name(head);
    body.phase = phase(head);
    body.later = head.take("later");
    head.end();
    for (Tokens line = next_line("an instruction or end"); !line.take("end");
         line = next_line("an instruction or end")) {
      if (++instructions_ > kInstructionsMax) line.refuse("too many instructions");
      body.code.push_back(read_instruction(line, body));
      line.end();
    }
    job_.bodies.push_back(std::move(body));
  }

  Instruction read_instruction(Tokens& line, Body& body) {
    if (line.take("compute")) return read_compute(line, body);
    if (line.take("collective")) return read_collective(line, body);
    if (line.take("send")) return read_message<Send>(line);
    if (line.take("receive")) return read_message<Receive>(line);
    if (line.take("alloc")) return Alloc{tensor(line)};
    if (line.take("free")) return Free{tensor(line)};
    if (line.take("record")) {
      const Stream on = stream(line);
      return Record{on, event(line)};
    }
    if (line.take("wait")) {
      const Stream on = stream(line);
      return Wait{on, event(line)};
    }
    if (line.take("synchronize")) return Synchronize{};
    if (line.take("host_wait")) return HostWait{event(line)};
    if (line.take("mark")) return Mark{label(line)};
    line.fail(
        "compute, collective, send, receive, alloc, free, record, wait, synchronize, host_wait, "
        "mark or end");
  }

  Instruction read_compute(Tokens& line, Body& body) {
    Compute compute;
    compute.op = reference(line, "#", job_.ops.size());
    compute.label = label(line);
    compute.phase = phase(line);
    compute.operands = read_operands(line, body);
    return compute;
  }

  Instruction read_collective(Tokens& line, Body& body) {
    Collective collective;
    collective.transfer = transfer(line);
    collective.label = label(line);
    collective.stream = stream(line);
    collective.phase = phase(line);
    if (line.peek().starts_with("pieces=")) {
      collective.pieces = static_cast<std::int16_t>(line.integer("pieces=", 2, kPiecesMax));
    }
    collective.operands = read_operands(line, body);
    return collective;
  }

  template <class Message>
  Message read_message(Tokens& line) {
    Message message;
    message.transfer = transfer(line);
    message.label = label(line);
    message.stream = stream(line);
    message.step = static_cast<std::int8_t>(line.integer("", INT8_MIN, INT8_MAX));
    message.tensor = tensor(line);
    return message;
  }

  Operands read_operands(Tokens& line, Body& body) const {
    const std::size_t first = body.operands.size();
    while (!line.done() && line.peek() != "->") body.operands.push_back(tensor(line));
    line.expect("->");
    const std::size_t middle = body.operands.size();
    while (!line.done()) body.operands.push_back(tensor(line));
    const std::size_t reads = middle - first;
    const std::size_t writes = body.operands.size() - middle;
    if (body.operands.size() > static_cast<std::size_t>(kIndexMax)) {
      line.refuse("too many operands");
    }
    return {static_cast<std::int32_t>(first), static_cast<std::int32_t>(reads),
            static_cast<std::int32_t>(writes)};
  }

  // ---- stages --------------------------------------------------------------------------------

  void read_program(Tokens& head) {
    define(head, "", job_.programs.size());
    head.end();
    Program program;
    for (Tokens line = next_line("call, residents or end"); !line.take("end");
         line = next_line("call, residents or end")) {
      if (line.take("call")) {
        if (++calls_ > kCallsMax) line.refuse("too many calls");
        Call call;
        call.body = reference(line, "&", job_.bodies.size());
        call.chunk = static_cast<std::int32_t>(line.integer("chunk=", 0, kIndexMax));
        call.micro_batch = static_cast<std::int32_t>(line.integer("micro_batch=", 0, kIndexMax));
        program.schedule.push_back(call);
      } else if (line.take("residents")) {
        Resident resident;
        resident.set = reference(line, "$", job_.resident_sets.size());
        resident.chunk = static_cast<std::int32_t>(line.integer("chunk=", 0, kIndexMax));
        program.residents.push_back(resident);
      } else {
        line.fail("call, residents or end");
      }
      line.end();
    }
    job_.programs.push_back(std::move(program));
  }

  std::string_view rest_;
  std::string_view file_;
  int line_ = 0;
  std::int64_t instructions_ = 0;
  std::int64_t calls_ = 0;
  std::unordered_map<std::string, std::int16_t> names_;
  Job job_;
};

}  // namespace

Job parse_job(std::string_view text, std::string_view file) { return Parser(text, file).parse(); }

}  // namespace stepcast

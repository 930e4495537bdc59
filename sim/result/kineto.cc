// Chrome's trace-event JSON with Kineto's categories and argument names. Collectives and their
// arguments are called as PyTorch's ProcessGroupNCCL records them (RECORD_PARAM_COMMS), kernels as
// NCCL calls them since 2.19 ("ncclDevKernel_..."; NCCL builds one kernel a function, so every name
// ends in RING_LL whatever algorithm and protocol then run).
//
// A trace of a large step has millions of events, so text is appended, never built as a tree. All
// that an event says besides numbers depends on its instruction alone and is escaped once for each
// instruction that occurs. Cost: linear in the spans.
#include "sim/result/kineto.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <fmt/compile.h>
#include <fmt/format.h>

#include "sim/base/error.h"
#include "sim/base/json.h"

namespace stepcast {
namespace {

// PyTorch's default CUDA stream shows as 7, and tools take a stream > 0 for the device's.
constexpr int kFirstStream = 7;
int stream_number(Stream stream) { return kFirstStream + static_cast<int>(stream); }

// A JSON string with its quotes, in ASCII; bytes that are not UTF-8 become replacement characters.
std::string json_string(std::string_view text) {
  return Json(std::string(text)).dump(-1, ' ', true, Json::error_handler_t::replace);
}

// c10::toString(ScalarType)
std::string_view c10_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFp32: return "Float";
    case Dtype::kBf16: return "BFloat16";
    case Dtype::kFp16: return "Half";
    case Dtype::kFp8: return "Float8_e4m3fn";
    case Dtype::kInt64: return "Long";
    case Dtype::kInt32: return "Int";
    case Dtype::kUint8: return "Byte";
  }
  STEPCAST_CHECK(false, "unknown dtype");
}

std::string_view nccl_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFp32: return "f32";
    case Dtype::kBf16: return "bf16";
    case Dtype::kFp16: return "f16";
    case Dtype::kFp8: return "f8e4m3";
    case Dtype::kInt64: return "u64";  // a sum of signed integers runs in the unsigned kernel
    case Dtype::kInt32: return "u32";
    case Dtype::kUint8: return "u8";
  }
  STEPCAST_CHECK(false, "unknown dtype");
}

// A transfer as the two libraries call it, and how its two sides relate to Transfer::bytes.
struct Naming {
  std::string_view collective;  // PyTorch
  std::string_view function;    // NCCL
  bool reduces = false;
  bool splits_input = false;    // the input is a group's share of `bytes`
  bool splits_output = false;
};

Naming naming(TransferKind kind, bool receives) {
  switch (kind) {
    case TransferKind::kAllReduce: return {"allreduce", "AllReduce", true, false, false};
    case TransferKind::kAllGather: return {"_allgather_base", "AllGather", false, true, false};
    case TransferKind::kReduceScatter:
      return {"_reduce_scatter_base", "ReduceScatter", true, false, true};
    case TransferKind::kBroadcast: return {"broadcast", "Broadcast", false, false, false};
    case TransferKind::kAllToAll: return {"all_to_all", "SendRecv", false, false, false};
    case TransferKind::kSendReceive:
      return {receives ? "recv" : "send", "SendRecv", false, false, false};
  }
  STEPCAST_CHECK(false, "unknown kind of transfer");
}

std::string kernel_name(const Naming& names, Dtype dtype) {
  std::string name = fmt::format("ncclDevKernel_{}", names.function);
  if (names.reduces) name += fmt::format("_Sum_{}", nccl_name(dtype));
  if (names.function != "SendRecv") name += "_RING_LL";
  return name + "(ncclDevKernelArgsStorage<4096ul>)";
}

// What an event says besides its numbers: its quoted name and the last members of its "args".
struct Text {
  std::string name;
  std::string args;
};

int group_size(const Job& job, const Transfer& transfer) {
  const int size = transfer.kind == TransferKind::kSendReceive || transfer.ends_only
                       ? 2 : job.mesh.group_size(transfer.axes);
  return std::max(size, 1);
}

Text transfer_text(const Job& job, const Transfer& transfer, Dtype dtype, bool receives,
                   Label label, Phase phase) {
  const Naming names = naming(transfer.kind, receives);
  const int size = group_size(job, transfer);
  const std::int64_t elements = transfer.bytes.count / dtype_size(dtype);
  const std::string group = json_string(axis_set_name(transfer.axes));
  return {json_string(kernel_name(names, dtype)),
          fmt::format("\"label\":{},\"phase\":\"{}\",\"Collective name\":\"{}\","
                      "\"In msg nelems\":{},\"Out msg nelems\":{},\"Group size\":{},"
                      "\"dtype\":\"{}\",\"In split size\":\"[]\",\"Out split size\":\"[]\","
                      "\"Process Group Name\":{},\"Process Group Description\":{}",
                      json_string(label_text(job, label)), phase_name(phase), names.collective,
                      names.splits_input ? elements / size : elements,
                      names.splits_output ? elements / size : elements, size, c10_name(dtype),
                      group, group)};
}

const Transfer& transfer_at(const Job& job, TransferId id) {
  return job.transfers.at(static_cast<std::size_t>(id));
}

Dtype dtype_at(const Job& job, TensorId id) {
  return job.tensors.at(static_cast<std::size_t>(id)).dtype;
}

Text describe(const Job& job, const Body& body, const Instruction& instruction) {
  return match(
      instruction,
      [&](const Compute& c) {
        return Text{json_string(label_text(job, c.label)),
                    fmt::format("\"phase\":\"{}\",\"op\":{}", phase_name(c.phase),
                                json_string(to_text(job.ops.at(static_cast<std::size_t>(c.op)))))};
      },
      [&](const Collective& c) {
        const bool named = c.operands.reads + c.operands.writes > 0;
        const auto first = static_cast<std::size_t>(c.operands.first);
        const Dtype dtype = named ? dtype_at(job, body.operands.at(first)) : Dtype::kUint8;
        return transfer_text(job, transfer_at(job, c.transfer), dtype, false, c.label, c.phase);
      },
      [&](const Send& s) {
        return transfer_text(job, transfer_at(job, s.transfer), dtype_at(job, s.tensor), false,
                             s.label, body.phase);
      },
      [&](const Receive& r) {
        return transfer_text(job, transfer_at(job, r.transfer), dtype_at(job, r.tensor), true,
                             r.label, body.phase);
      },
      [](const auto&) -> Text {
        STEPCAST_CHECK(false, "a span of an instruction that takes no time");
      });
}

// The texts of a job's instructions, each made when first asked for.
class Texts {
 public:
  explicit Texts(const Job& job) : job_(job), texts_(job.bodies.size()) {}

  const Text& of(const Span& span) {
    const Body& body = job_.bodies.at(static_cast<std::size_t>(span.body));
    auto& texts = texts_[static_cast<std::size_t>(span.body)];
    const auto index = static_cast<std::size_t>(span.instruction);
    STEPCAST_CHECK(index < body.code.size(), "a span beyond its body");
    if (texts.empty()) texts.resize(body.code.size());
    if (texts[index].name.empty()) texts[index] = describe(job_, body, body.code[index]);
    return texts[index];
  }

 private:
  const Job& job_;
  std::vector<std::vector<Text>> texts_;  // by body and instruction
};

class Writer {
 public:
  Writer(const Job& job, std::string& out) : job_(job), out_(out) {}

  // A process for the device and one for its host, which carries the CPU's marks only.
  void rank(std::int32_t rank, Instant end) {
    const int host = host_process(rank);
    metadata(rank, 0, "process_name",
             fmt::format("\"name\":\"stage {} rank {}\"", job_.mesh.stage(rank), rank));
    metadata(rank, 0, "process_labels", fmt::format("\"labels\":\"GPU {}\"", rank));
    metadata(rank, 0, "process_sort_index", fmt::format("\"sort_index\":{}", rank));
    metadata(host, 0, "process_name", fmt::format("\"name\":\"host of rank {}\"", rank));
    metadata(host, 0, "process_labels", "\"labels\":\"CPU\"");
    metadata(host, 0, "process_sort_index", fmt::format("\"sort_index\":{}", host));
    const int compute = stream_number(Stream::kCompute);
    begin("user_annotation", "\"ProfilerStep#0\"", host, host, Instant{}, end);
    out_ += "\"External id\":1}}";
    begin("gpu_user_annotation", "\"ProfilerStep#0\"", rank, compute, Instant{}, end);
    out_ += "\"External id\":1}}";
  }

  void stream(std::int32_t rank, Stream stream) {
    const int number = stream_number(stream);
    metadata(rank, number, "thread_name",
             fmt::format("\"name\":\"stream {} {}\"", number, stream_name(stream)));
    metadata(rank, number, "thread_sort_index", fmt::format("\"sort_index\":{}", number));
  }

  void span(const Span& span, const Text& text) {
    const int number = stream_number(span.stream);
    begin("kernel", text.name, span.rank, number, span.begin, span.end);
    fmt::format_to(std::back_inserter(out_),
                   FMT_COMPILE("\"device\":{},\"stream\":{},\"micro_batch\":{},\"chunk\":{},"),
                   span.rank, number, span.micro_batch, span.chunk);
    out_ += text.args;
    out_ += "}}";
  }

 private:
  int host_process(std::int32_t rank) const { return job_.mesh.ranks() + rank; }

  void comma() {
    out_ += first_ ? "\n" : ",\n";
    first_ = false;
  }

  void metadata(int process, int thread, std::string_view name, std::string_view args) {
    comma();
    fmt::format_to(std::back_inserter(out_),
                   "{{\"ph\":\"M\",\"name\":\"{}\",\"ts\":0.000,\"pid\":{},\"tid\":{},"
                   "\"args\":{{{}}}}}",
                   name, process, thread, args);
  }

  // An event up to the opening brace of its arguments.
  void begin(std::string_view category, std::string_view name, int process, int thread,
             Instant begin, Instant end) {
    STEPCAST_CHECK(begin.picoseconds >= 0 && begin <= end, "a span that ends before it begins");
    const std::int64_t from = begin.picoseconds / 1000;
    const std::int64_t length = end.picoseconds / 1000 - from;
    comma();
    fmt::format_to(std::back_inserter(out_),
                   FMT_COMPILE("{{\"ph\":\"X\",\"cat\":\"{}\",\"name\":{},\"pid\":{},\"tid\":{},"
                               "\"ts\":{}.{:03},\"dur\":{}.{:03},\"args\":{{"),
                   category, name, process, thread, from / 1000, from % 1000, length / 1000,
                   length % 1000);
  }

  const Job& job_;
  std::string& out_;
  bool first_ = true;
};

// The groups that the job's collectives run in, each as `rank` sees it.
std::string process_groups(const Job& job, int rank) {
  std::map<std::string, AxisSet> sets;
  for (const Transfer& transfer : job.transfers) {
    if (!transfer.axes.empty()) sets.emplace(axis_set_name(transfer.axes), transfer.axes);
  }
  std::string out;
  for (const auto& [name, axes] : sets) {
    std::vector<int> members;
    const int group = job.mesh.group_index(rank, axes);
    for (int other = 0; other < job.mesh.ranks(); ++other) {
      if (job.mesh.group_index(other, axes) == group) members.push_back(other);
    }
    fmt::format_to(std::back_inserter(out),
                   "{}{{\"pg_name\":{},\"pg_desc\":{},\"backend_config\":\"cuda:nccl\","
                   "\"pg_size\":{},\"ranks\":[{}]}}",
                   out.empty() ? "" : ",", json_string(name), json_string(name), members.size(),
                   fmt::join(members, ","));
  }
  return fmt::format("\"pg_count\":{},\"pg_config\":[{}]", sets.size(), out);
}

}  // namespace

std::string write_kineto(const Job& job, const Trace& trace, int rank, std::string_view device) {
  const bool all = rank == kAllTracedRanks;
  STEPCAST_CHECK(all || (rank >= 0 && rank < job.mesh.ranks()), "no such rank");
  std::set<std::pair<std::int32_t, Stream>> tracks;
  Instant end;  // of the step: of the last span of any rank
  std::size_t count = 0;
  for (const Span& span : trace.spans) {
    end = later(end, span.end);
    if (!all && span.rank != rank) continue;
    ++count;
    tracks.emplace(span.rank, span.stream);
  }
  std::set<std::int32_t> ranks;
  if (!all) ranks.insert(rank);
  for (const auto& track : tracks) ranks.insert(track.first);

  std::string out;
  out.reserve(count * 256 + 4096);
  out += "{\"schemaVersion\":1,\n\"deviceProperties\":[";
  for (const std::int32_t id : ranks) {
    out += fmt::format("{}{{\"id\":{},\"name\":{}}}", id == *ranks.begin() ? "" : ",", id,
                       json_string(device));
  }
  const int seen_by = all ? 0 : rank;
  out += fmt::format("],\n\"distributedInfo\":{{\"backend\":\"nccl\",\"rank\":{},"
                     "\"world_size\":{},{}}},\n\"displayTimeUnit\":\"ms\","
                     "\"baseTimeNanoseconds\":0,\"record_shapes\":0,\n\"traceEvents\":[",
                     seen_by, job.mesh.ranks(), process_groups(job, seen_by));
  Writer writer(job, out);
  for (const std::int32_t id : ranks) writer.rank(id, end);
  for (const auto& [id, stream] : tracks) writer.stream(id, stream);
  Texts texts(job);
  for (const Span& span : trace.spans) {
    if (all || span.rank == rank) writer.span(span, texts.of(span));
  }
  out += "\n],\n\"traceName\":\"stepcast\"}\n";
  return out;
}

}  // namespace stepcast

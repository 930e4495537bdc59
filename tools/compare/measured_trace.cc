// Chrome's trace events through simdjson's on-demand parser, which walks the text once and makes no
// tree: a step of a large model has a gigabyte of them. Only what is needed of an event is looked
// at. Linear but for sorting.
#include "tools/compare/measured_trace.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <simdjson.h>

#include "sim/base/error.h"
#include "sim/base/json_text.h"
#include "sim/program/mesh.h"

namespace stepcast {
namespace {

namespace od = simdjson::ondemand;

constexpr double kMicro = 1e-6;
constexpr double kMicrosecondsMost = 1e16;  // 300 years; the clock may count from 1970
constexpr std::string_view kStepMark = "ProfilerStep#";

// One event, as far as it matters. Text points into the parser's memory, until the next document.
struct Event {
  std::string_view phase, category, name;
  std::int64_t process = -1;
  double begin = std::nan(""), seconds = std::nan("");
  std::int64_t correlation = -1, external = -1, device_type = -1;
  double allocated = std::nan(""), reserved = std::nan("");
  std::string_view op, step_phase, collective;
  std::string_view group_name, group_description, group_ranks;
  std::int64_t group_size = 0, first_rank = -1, stride = -1;
};

// Control characters are legal between tokens only, where a space is as good.
void make_readable(std::string& text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20) c = c == '\n' ? '\n' : ' ';
  }
  text.reserve(text.size() + simdjson::SIMDJSON_PADDING);
}

// A line feed within a string is as wrong as the others, but outside it counts the lines of errors.
void drop_line_feeds(std::string& text) { std::replace(text.begin(), text.end(), '\n', ' '); }

simdjson::padded_string_view padded(const std::string& text) {
  return simdjson::padded_string_view(text.data(), text.size(), text.capacity());
}

[[noreturn]] void fail_at(const std::string& text, const char* at, const std::string& name,
                          std::string_view what) {
  const char* const end = text.data() + text.size();
  const bool inside = at >= text.data() && at <= end;
  const std::size_t offset = inside ? static_cast<std::size_t>(at - text.data()) : text.size();
  const auto line =
      std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(offset), '\n') + 1;
  throw Error(fmt::format("{}:{}", name, line),
              fmt::format("is no valid JSON (byte {}): {}", offset, what));
}

// Calls `read` with the document; simdjson's errors become ours, with their place.
template <class Read>
void with_document(std::string& text, const std::string& name, Read read) {
  make_readable(text);
  od::parser parser;
  od::document document;
  try {
    simdjson::error_code trouble = parser.iterate(padded(text)).get(document);
    if (trouble == simdjson::UNESCAPED_CHARS) {
      drop_line_feeds(text);
      trouble = parser.iterate(padded(text)).get(document);
    }
    if (trouble == simdjson::CAPACITY) throw Error(name, "is too large for one trace");
    if (trouble != simdjson::SUCCESS) {
      fail_at(text, text.data() + text.size(), name, simdjson::error_message(trouble));
    }
    read(document);
  } catch (const simdjson::simdjson_error& error) {
    const char* at = nullptr;
    if (document.current_location().get(at) != simdjson::SUCCESS) at = text.data() + text.size();
    fail_at(text, at, name, error.what());
  }
}

double number_or_nan(od::value value) {
  double number = 0;
  if (value.get_double().get(number) == simdjson::SUCCESS) return number;
  if (value.get_double_in_string().get(number) == simdjson::SUCCESS) return number;
  return std::nan("");
}

std::int64_t count_or(od::value value, std::int64_t otherwise) {
  const double number = number_or_nan(value);
  return std::abs(number) < 9e15 ? static_cast<std::int64_t>(number) : otherwise;
}

std::string_view text_or_empty(od::value value) {
  std::string_view text;
  return value.get_string().get(text) == simdjson::SUCCESS ? text : std::string_view();
}

void read_arguments(od::value value, Event& event) {
  od::object object;
  if (value.get_object().get(object) != simdjson::SUCCESS) return;
  for (auto field : object) {
    const std::string_view key = field.unescaped_key();
    od::value member = field.value();
    if (key == "correlation")
      event.correlation = count_or(member, -1);
    else if (key == "External id")
      event.external = count_or(member, -1);
    else if (key == "op")
      event.op = text_or_empty(member);
    else if (key == "phase")
      event.step_phase = text_or_empty(member);
    else if (key == "Collective name")
      event.collective = text_or_empty(member);
    else if (key == "Process Group Name")
      event.group_name = text_or_empty(member);
    else if (key == "Process Group Description")
      event.group_description = text_or_empty(member);
    else if (key == "Process Group Ranks")
      event.group_ranks = text_or_empty(member);
    else if (key == "Group size")
      event.group_size = count_or(member, 0);
    else if (key == "Global rank start")
      event.first_rank = count_or(member, -1);
    else if (key == "Global rank stride")
      event.stride = count_or(member, -1);
    else if (key == "Device Type")
      event.device_type = count_or(member, -1);
    else if (key == "Total Allocated")
      event.allocated = number_or_nan(member);
    else if (key == "Total Reserved")
      event.reserved = number_or_nan(member);
  }
}

bool of_device(std::string_view category) {
  return category == "kernel" || category == "Kernel" || category == "gpu_memcpy" ||
         category == "gpu_memset" || category == "Memcpy" || category == "Memset";
}

bool of_launch(std::string_view category) {
  return category == "cuda_runtime" || category == "cuda_driver" || category == "Runtime" ||
         category == "hip_runtime";
}

// Whether the arguments matter; they come last in what Kineto writes.
bool has_arguments_of_use(const Event& event) {
  return event.category.empty() || of_device(event.category) || of_launch(event.category) ||
         event.name == "record_param_comms" || event.name == "[memory]";
}

Event read_event(od::object object) {
  Event event;
  for (auto field : object) {
    const std::string_view key = field.unescaped_key();
    od::value member = field.value();
    if (key == "ph")
      event.phase = text_or_empty(member);
    else if (key == "cat")
      event.category = text_or_empty(member);
    else if (key == "name")
      event.name = text_or_empty(member);
    else if (key == "pid")
      event.process = count_or(member, -1);
    else if (key == "ts")
      event.begin = number_or_nan(member) * kMicro;
    else if (key == "dur")
      event.seconds = number_or_nan(member) * kMicro;
    else if (key == "args" && has_arguments_of_use(event))
      read_arguments(member, event);
  }
  return event;
}

// "[0, 1, 2, ...]": as far as it is told.
std::vector<int> listed_ranks(std::string_view text) {
  std::vector<int> ranks;
  while (true) {
    const std::size_t at = text.find_first_of("0123456789");
    if (at == std::string_view::npos) return ranks;
    std::int64_t rank = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, trouble] = std::from_chars(text.data() + at, end, rank);
    if (trouble != std::errc() || rank >= kRanksMax) return {};
    ranks.push_back(static_cast<int>(rank));
    text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
  }
}

struct Launched {
  TraceKernel kernel;
  std::int64_t process = 0;
  std::int64_t correlation = -1, external = -1;
};

class TraceReader {
 public:
  explicit TraceReader(std::string name) { file_.name = std::move(name); }

  void event(const Event& event);
  void distributed(od::object object);
  TraceFile result();

 private:
  void kernel(const Event& event);
  void memory(const Event& event);
  int group_of(const Event& event);
  KernelKind kind_of(const Event& event);
  int step_of(const Launched& launched) const;

  TraceFile file_;
  std::map<std::int64_t, TraceStep> steps_;  // by number
  std::vector<Launched> kernels_;
  std::unordered_map<std::int64_t, double> launches_;  // correlation -> host's time
  std::unordered_map<std::int64_t, int> group_of_external_;
  std::unordered_map<std::string, KernelKind> kinds_;  // by name, or op and phase
  std::optional<int> rank_;
  std::optional<double> allocated_, reserved_;
};

void TraceReader::distributed(od::object object) {
  for (auto field : object) {
    const std::string_view key = field.unescaped_key();
    od::value member = field.value();
    if (key != "rank" && key != "world_size") continue;
    const std::int64_t value = count_or(member, -1);
    if (value < 0 || value >= kRanksMax) continue;
    (key == "rank" ? rank_ : file_.world_size) = static_cast<int>(value);
  }
}

int TraceReader::group_of(const Event& event) {
  if (event.group_size <= 0 && event.group_description.empty() && event.group_ranks.empty()) {
    return -1;
  }
  TraceGroup group;
  group.description = event.group_description.empty() ? event.group_name : event.group_description;
  group.ranks = listed_ranks(event.group_ranks);
  group.size = static_cast<int>(std::clamp<std::int64_t>(event.group_size, 0, kRanksMax));
  const bool whole = static_cast<int>(group.ranks.size()) == group.size;
  if (!whole && event.first_rank >= 0 && event.stride > 0 &&
      event.first_rank + event.stride * group.size <= kRanksMax) {
    group.ranks.clear();
    for (int i = 0; i < group.size; ++i) {
      group.ranks.push_back(static_cast<int>(event.first_rank + i * event.stride));
    }
  }
  const auto found = std::find(file_.groups.begin(), file_.groups.end(), group);
  if (found != file_.groups.end()) return static_cast<int>(found - file_.groups.begin());
  file_.groups.push_back(std::move(group));
  return static_cast<int>(file_.groups.size()) - 1;
}

KernelKind TraceReader::kind_of(const Event& event) {
  if (!event.collective.empty()) return KernelKind::kCommunication;
  const bool ours = !event.op.empty();
  const std::string key =
      ours ? fmt::format("{}\n{}", event.op, event.step_phase) : std::string(event.name);
  const auto [found, fresh] = kinds_.try_emplace(key, KernelKind::kOther);
  if (!fresh) return found->second;
  const bool kernel = event.category == "kernel" || event.category == "Kernel";
  found->second = kernel ? kind_of_name(event.name) : KernelKind::kCopy;
  if (!ours) return found->second;
  const Phase phase = event.step_phase == "optimizer" ? Phase::kOptimizer : Phase::kForward;
  try {
    found->second = kind_of_op(parse_op(event.op, file_.name), phase);
  } catch (const Error&) {  // another tool's "op": the name has to do
  }
  return found->second;
}

void TraceReader::kernel(const Event& event) {
  if (event.process < 0 || event.process >= kRanksMax) return;
  Launched launched;
  launched.process = event.process;
  launched.correlation = event.correlation;
  launched.external = event.external;
  launched.kernel.begin = event.begin;
  launched.kernel.end = event.begin + event.seconds;
  launched.kernel.kind = kind_of(event);
  if (launched.kernel.kind == KernelKind::kCommunication) {
    launched.kernel.group = group_of(event);
    launched.kernel.point_to_point = event.collective == "send" || event.collective == "recv" ||
                                     event.name.find("SendRecv") != std::string_view::npos;
  }
  kernels_.push_back(launched);
}

void TraceReader::memory(const Event& event) {
  constexpr std::int64_t kCuda = 1;  // c10::DeviceType
  if (event.device_type != kCuda) return;
  if (event.allocated > 0) allocated_ = std::max(allocated_.value_or(0), event.allocated);
  if (event.reserved > 0) reserved_ = std::max(reserved_.value_or(0), event.reserved);
}

void TraceReader::event(const Event& event) {
  if (event.name == "[memory]") return memory(event);
  if (event.phase != "X") return;
  const double most = kMicrosecondsMost * kMicro;
  if (!(std::abs(event.begin) < most && event.seconds >= 0 && event.seconds < most)) return;
  if (of_device(event.category)) {
    kernel(event);
  } else if (of_launch(event.category)) {
    if (event.correlation >= 0) launches_.emplace(event.correlation, event.begin);
  } else if (event.name == "record_param_comms") {
    if (event.external >= 0) group_of_external_[event.external] = group_of(event);
  } else if (event.name.starts_with(kStepMark) && event.category != "gpu_user_annotation") {
    const std::string_view digits = event.name.substr(kStepMark.size());
    TraceStep step{0, event.begin, event.seconds};
    const char* const end = digits.data() + digits.size();
    if (std::from_chars(digits.data(), end, step.number).ec == std::errc()) {
      steps_.emplace(step.number, step);
    }
  }
}

// The step that was under way on the host when the kernel was launched; where launches are not in
// the trace, the last one that had begun when the kernel did.
int TraceReader::step_of(const Launched& launched) const {
  const std::vector<TraceStep>& steps = file_.ranks.front().steps;
  const auto launch = launches_.find(launched.correlation);
  const bool known = launched.correlation >= 0 && launch != launches_.end();
  const double at = known ? launch->second : launched.kernel.begin;
  const auto after = std::upper_bound(steps.begin(), steps.end(), at,
                                      [](double t, const TraceStep& s) { return t < s.begin; });
  if (after == steps.begin()) return -1;
  const auto index = static_cast<int>(after - steps.begin()) - 1;
  const TraceStep& step = steps[static_cast<std::size_t>(index)];
  return known && at > step.begin + step.seconds ? -1 : index;
}

TraceFile TraceReader::result() {
  if (steps_.empty()) {
    throw Error(file_.name,
                "marks no step (\"ProfilerStep#N\"); call the profiler's step() after "
                "each one");
  }
  if (kernels_.empty()) {
    throw Error(file_.name, "has no kernel of a device; profile with ProfilerActivity.CUDA");
  }
  std::set<std::int64_t> devices;
  for (const Launched& launched : kernels_) devices.insert(launched.process);
  for (const std::int64_t device : devices) {
    TraceRank rank;
    // One device is one process's, whichever number it has in its box.
    rank.rank = devices.size() == 1 ? rank_.value_or(0) : static_cast<int>(device);
    for (const auto& [number, step] : steps_) rank.steps.push_back(step);
    std::sort(rank.steps.begin(), rank.steps.end(),
              [](const TraceStep& a, const TraceStep& b) { return a.begin < b.begin; });
    if (devices.size() == 1) {
      rank.allocated_peak = allocated_;
      rank.reserved_peak = reserved_;
    }
    file_.ranks.push_back(std::move(rank));
  }
  for (Launched& launched : kernels_) {
    TraceKernel& kernel = launched.kernel;
    kernel.step = step_of(launched);
    if (kernel.kind == KernelKind::kCommunication && kernel.group < 0) {
      const auto known = group_of_external_.find(launched.external);
      if (known != group_of_external_.end()) kernel.group = known->second;
    }
    const auto at = std::distance(devices.begin(), devices.find(launched.process));
    file_.ranks[static_cast<std::size_t>(at)].kernels.push_back(kernel);
  }
  for (TraceRank& rank : file_.ranks) {
    std::stable_sort(rank.kernels.begin(), rank.kernels.end(),
                     [](const TraceKernel& a, const TraceKernel& b) { return a.begin < b.begin; });
  }
  return std::move(file_);
}

void read_events(od::array events, TraceReader& reader) {
  for (auto element : events) {
    od::object object;
    if (element.get_object().get(object) != simdjson::SUCCESS) continue;
    reader.event(read_event(object));
  }
}

}  // namespace

TraceFile read_trace(std::string& text, const std::string& name) {
  TraceReader reader(name);
  with_document(text, name, [&](od::document& document) {
    if (document.type().value() == od::json_type::array) {
      read_events(document.get_array().value(), reader);
      return;
    }
    od::object root = document.get_object();  // outlives the loop over it
    for (auto field : root) {
      const std::string_view key = field.unescaped_key();
      if (key == "traceEvents") {
        read_events(field.value().get_array(), reader);
      } else if (key == "distributedInfo") {
        reader.distributed(field.value().get_object());
      }
    }
  });
  return reader.result();
}

JsonForm json_form(std::string& text, const std::string& name) {
  JsonForm form = JsonForm::kOther;
  with_document(text, name, [&](od::document& document) {
    if (document.type().value() == od::json_type::array) {
      od::array root = document.get_array();  // outlives the loop over it
      for (auto element : root) {
        od::object object;
        if (element.get_object().get(object) != simdjson::SUCCESS) return;
        for (auto field : object) {
          if (field.unescaped_key().value() == "ph") form = JsonForm::kTrace;
          if (form != JsonForm::kOther) return;
        }
        return;  // the first event tells
      }
      return;
    }
    od::object root = document.get_object();  // outlives the loop over it
    for (auto field : root) {
      const std::string_view key = field.unescaped_key();
      if (key == "traceEvents") form = JsonForm::kTrace;
      if (key == "iteration-time" || key == "mem-max-allocated-bytes") form = JsonForm::kGolden;
      if (key == "format" && text_or_empty(field.value()).starts_with("stepcast.")) {
        form = JsonForm::kReport;
      }
      if (form != JsonForm::kOther) return;
    }
  });
  return form;
}

}  // namespace stepcast

// The report as text. One function a section; a section is a heading, rows and at most a sentence
// that says what to make of them. Linear in the stages.
#include "tools/forecast/table.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/base/text.h"
#include "tools/forecast/layers.h"

namespace stepcast {
namespace {

using Rows = std::vector<std::vector<std::string>>;

constexpr std::size_t kTableColumns = 100;
constexpr std::size_t kStagesShown = 8;  // of more, only the ones that matter

double number(const Json& json, const char* key) { return json.at(key).get<double>(); }
std::int64_t whole(const Json& json, const char* key) { return json.at(key).get<std::int64_t>(); }
std::string time_text(double seconds) { return format_seconds(Seconds(seconds)); }
std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }
std::string gigabytes(std::int64_t bytes) {
  return fmt::format("{:.2f}", static_cast<double>(bytes) * 1e-9);
}

std::string indented(const std::string& lines) {
  std::string out;
  for (std::size_t start = 0; start < lines.size();) {
    const std::size_t end = std::min(lines.find('\n', start), lines.size());
    out += "  " + lines.substr(start, end - start) + "\n";
    start = end + 1;
  }
  return out;
}

// Where the word that begins at `start` ends; a number and its unit ("2.74 s") are one word, and so
// are a flag and its value ("--set recompute=full").
std::size_t word_end(const std::string& text, std::size_t start) {
  const auto is = [&](std::size_t at, const char* set) {
    return at < text.size() && std::string_view(set).find(text[at]) != std::string_view::npos;
  };
  std::size_t end = std::min(text.find(' ', start), text.size());
  if (text.compare(start, 6, "--set ") == 0) return std::min(text.find(' ', end + 1), text.size());
  if (end > start && is(end - 1, "0123456789") && is(end + 1, "smunkMGTPB%")) {
    const std::size_t unit = std::min(text.find(' ', end + 1), text.size());
    if (unit - end <= 4) end = unit;
  }
  return end;
}

// ----------------------------------------------------------------------------------- the heading

std::string plan_text(const WhatIf& what_if) {
  const Plan& plan = what_if.plan;
  const Json& config = what_if.resolved;
  std::vector<std::string> words;
  words.push_back(fmt::format("tensor {}{}", plan.tensor,
                              plan.sequence_parallel ? " (sequence parallel)" : ""));
  if (plan.context > 1) {
    words.push_back(fmt::format("context {} ({})", plan.context,
                                config.at("parallel").at("context_exchange").get<std::string>()));
  }
  words.push_back(fmt::format("pipeline {}", plan.pipeline));
  if (plan.pipeline > 1) {
    words.push_back(config.at("parallel").at("schedule").get<std::string>());
    if (plan.virtual_stages > 1) words.push_back(fmt::format("virtual {}", plan.virtual_stages));
  }
  words.push_back(fmt::format("data {}", plan.data));
  if (plan.expert * plan.expert_tensor > 1) {
    const char* how = plan.expert_exchange == ExpertExchange::kAllGather ? " (all_gather)" : "";
    words.push_back(fmt::format("experts over {} ranks{}{}", plan.expert, how,
                                plan.expert_overlap ? " (overlapped)" : ""));
  }
  words.push_back(fmt::format("zero {}", plan.zero));
  words.push_back(fmt::format("global batch {} = micro {} x {} x data {}", plan.global_batch,
                              plan.micro_batch, plan.micro_batches(), plan.data));
  const bool packed = plan.attended() < plan.sequence_length;
  words.push_back(packed ? fmt::format("sequence {} in documents of {}", plan.sequence_length,
                                       plan.attended())
                         : fmt::format("sequence {}", plan.sequence_length));
  const Json& recompute = config.at("recompute");
  words.push_back("recompute " + (recompute.is_string() ? recompute.get<std::string>()
                                                        : recompute.dump()));
  const std::string product(dtype_name(plan.product()));
  words.push_back(plan.eight_bit.on()
                      ? fmt::format("{} ({})", product,
                                    config.at("precision").at("scaling").get<std::string>())
                      : product);
  if (!plan.fused_attention) words.push_back("unfused attention");
  if (plan.dropout) words.push_back("dropout");
  return fmt::format("{}", fmt::join(words, ", "));
}

std::string heading(const WhatIf& what_if, const Json& report) {
  const Cluster& cluster = what_if.cluster;
  std::string out = wrapped(what_if.name, "  ");
  out += wrapped(fmt::format("  {} ({} parameters) on {} ({} {})", what_if.model.name,
                             format_count(number(report.at("model"), "parameters")), cluster.name,
                             cluster.devices(), cluster.devices() == 1 ? "device" : "devices"),
                 "    ");
  out += wrapped("  " + plan_text(what_if), "  ");
  for (const std::string& note : notes_on(what_if)) out += wrapped("  note: " + note, "        ");
  return out;
}

// "8,8,7,7"; of many chunks "8 x 14, 7 x 2".
std::string counts_text(const std::vector<std::int64_t>& counts) {
  constexpr std::size_t kListed = 16;
  if (counts.size() <= kListed) return fmt::format("{}", fmt::join(counts, ","));
  std::vector<std::string> runs;
  for (std::size_t i = 0; i < counts.size();) {
    std::size_t end = i;
    while (end < counts.size() && counts[end] == counts[i]) ++end;
    runs.push_back(fmt::format("{} x {}", counts[i], end - i));
    i = end;
  }
  return fmt::format("{}", fmt::join(runs, ", "));
}

// ------------------------------------------------------------------------------------- the time

std::string step_section(const Json& report) {
  const Json& step = report.at("step");
  Rows rows = {
      {"step time", time_text(number(step, "seconds")),
       fmt::format("range {} to {}", time_text(number(step, "seconds_low")),
                   time_text(number(step, "seconds_high")))},
      {"", "", "from " + step.at("range_from").get<std::string>()},
      {"tokens/s/device", fmt::format("{:.1f}", number(step, "tokens_per_second_per_device")), ""},
      {"MFU", percent(number(step, "mfu")), "model FLOPs, causal attention counted half"},
      {"HFU", percent(number(step, "hfu")), "all matrix products that run, recomputed ones too"},
      {"pipeline bubble", percent(number(step, "bubble_fraction")),
       "idle share of the pipeline, mean of the stages"}};
  return "\n" + align(rows, "lrl");
}

// "tensor_exposed" -> "tensor exposed".
// A part of the breakdown as the object of a sentence.
std::string cause_of(const std::string& key) {
  constexpr std::string_view kExposed = "_exposed";
  if (key.ends_with(kExposed)) {
    return fmt::format("waiting for {} communication", key.substr(0, key.size() - kExposed.size()));
  }
  if (key == "bubble") return "the pipeline bubble";
  if (key == "recompute") return "recomputation";
  if (key == "other") return "other waits (the host, global collectives, slower ranks)";
  return "the " + key;
}

std::string limit_sentence(const Json& breakdown, double step) {
  const double compute = number(breakdown, "compute");
  std::string worst;
  double most = 0;
  for (const auto& [key, value] : breakdown.items()) {
    if (key == "compute" || value.get<double>() <= most) continue;
    worst = key;
    most = value.get<double>();
  }
  if (worst.empty()) return "The step is limited by compute alone.";
  const std::string lost =
      fmt::format("{}: {} of {} ({})", cause_of(worst), time_text(most), time_text(step),
                  percent(most / step));
  if (compute < most) return "The step is limited by " + lost + ".";
  return fmt::format("The step is limited by compute ({}); most of the rest is {}.",
                     percent(compute / step), lost);
}

std::string breakdown_section(const Json& report) {
  const Json& breakdown = report.at("breakdown_seconds");
  const double step = number(report.at("step"), "seconds");
  Rows rows;
  for (const auto& [key, value] : breakdown.items()) {
    if (value.get<double>() == 0) continue;
    rows.push_back(
        {key_words(key), time_text(value.get<double>()), percent(value.get<double>() / step)});
  }
  return "\nwhere the time of the slowest rank goes\n" + indented(align(rows, "lrr")) +
         wrapped(limit_sentence(breakdown, step), "");
}

// ----------------------------------------------------------------------------------- the memory

struct CategoryColumn {
  const char* key;   // in the report
  const char* head;  // short: six of them stand in a row
  const char* word;
};
constexpr std::array<CategoryColumn, kCategories> kCategoryColumns = {
    {{"weights_bytes", "weights", "weights"},
     {"gradients_bytes", "grads", "gradients"},
     {"master_weights_bytes", "master", "master weights"},
     {"optimizer_bytes", "optim.", "optimizer state"},
     {"activations_bytes", "activ.", "activations"},
     {"buffers_bytes", "buffers", "buffers"}}};

std::size_t fullest_stage(const Json& stages) {
  std::size_t worst = 0;
  for (std::size_t i = 1; i < stages.size(); ++i) {
    const auto total = whole(stages[i], "device_total_bytes");
    if (total > whole(stages[worst], "device_total_bytes")) worst = i;
  }
  return worst;
}

std::string fit_sentence(const Json& memory, std::size_t worst) {
  const Json& stage = memory.at("stages").at(worst);
  const std::int64_t total = whole(memory, "device_total_bytes");
  const std::int64_t capacity = whole(memory, "capacity_bytes");
  const std::string of = format_bytes(Bytes(capacity));
  if (memory.at("fits").get<bool>()) {
    return fmt::format("Fits: the fullest stage, {}, leaves {} of {} free.", worst,
                       format_bytes(Bytes(capacity - total)), of);
  }
  const auto* largest = std::max_element(
      kCategoryColumns.begin(), kCategoryColumns.end(),
      [&](const auto& a, const auto& b) { return whole(stage, a.key) < whole(stage, b.key); });
  return fmt::format("DOES NOT FIT: stage {} needs {} more than the device's {}{}; most of its "
                     "peak: {}, {}.", worst, format_bytes(Bytes(total - capacity)), of,
                     whole(memory, "allocated_peak_bytes") <= capacity
                         ? ", though its tensors alone would fit" : "",
                     largest->word, format_bytes(Bytes(whole(stage, largest->key))));
}

// Of many stages the first, the last and the fullest.
std::vector<std::size_t> shown_stages(const Json& stages, std::size_t worst) {
  std::vector<std::size_t> shown;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const bool matters = i == 0 || i == worst || i + 1 == stages.size();
    if (matters || stages.size() <= kStagesShown) shown.push_back(i);
  }
  return shown;
}

// What the three numbers are made of: allocated + workspace + cached = reserved;
// reserved + communicators + context = total.
std::string device_rows(const Json& stages, const std::vector<std::size_t>& shown) {
  Rows rows = {{"stage", "allocated", "workspace", "cached", "reserved", "communicators", "context",
                "total"}};
  for (const std::size_t i : shown) {
    const Json& stage = stages[i];
    const std::int64_t allocated = whole(stage, "allocated_peak_bytes");
    const std::int64_t workspace = whole(stage, "workspace_bytes");
    const std::int64_t reserved = whole(stage, "reserved_peak_bytes");
    rows.push_back({std::to_string(i), gigabytes(allocated), gigabytes(workspace),
                    gigabytes(reserved - allocated - workspace), gigabytes(reserved),
                    gigabytes(whole(stage, "communicators_bytes")),
                    gigabytes(whole(stage, "context_bytes")),
                    gigabytes(whole(stage, "device_total_bytes"))});
  }
  return indented(align(rows, ""));
}

std::string device_notes(const WhatIf& what_if, const Json& memory) {
  std::string out;
  if (!memory.at("not_modelled").empty()) {
    out += wrapped(fmt::format("Counted as zero, for nothing is published of it on {}: {}.",
                               what_if.cluster.device.name,
                               fmt::join(memory.at("not_modelled")
                                             .get<std::vector<std::string>>(), ", ")),
                   "");
  }
  const Json& stages = memory.at("stages");
  const auto* most = &stages.at(0);
  for (const Json& stage : stages) {
    if (whole(stage, "allocation_retries") > whole(*most, "allocation_retries")) most = &stage;
  }
  const std::int64_t retries = whole(*most, "allocation_retries");
  if (retries > 0) {
    out += wrapped(fmt::format("On stage {} the allocator gives cached memory back {} in a step to "
                               "get on; each time the device stalls.", whole(*most, "stage"),
                               retries == 1 ? "once" : fmt::format("{} times", retries)),
                   "");
  }
  return out;
}

std::string memory_section(const WhatIf& what_if, const Json& report) {
  const Json& memory = report.at("memory");
  const Json& stages = memory.at("stages");
  const std::vector<std::int64_t> chunks = layers_of_chunks(what_if.model, what_if.plan);
  const std::size_t worst = fullest_stage(stages);
  const std::vector<std::size_t> shown = shown_stages(stages, worst);
  Rows rows = {{"stage", "layers", "allocated"}};
  for (const auto& column : kCategoryColumns) rows.front().emplace_back(column.head);
  rows.front().emplace_back("at");
  for (const std::size_t i : shown) {
    std::int64_t layers = 0;
    for (std::size_t c = i; c < chunks.size(); c += stages.size()) layers += chunks[c];
    std::vector<std::string> row = {std::to_string(i), std::to_string(layers),
                                    gigabytes(whole(stages[i], "allocated_peak_bytes"))};
    for (const auto& column : kCategoryColumns) {
      row.push_back(gigabytes(whole(stages[i], column.key)));
    }
    row.push_back(stages[i].at("peak_at").get<std::string>());
    rows.push_back(std::move(row));
  }
  std::string out = "\nmemory of a device of each stage at its peak, GB\n";
  out += indented(align(rows, "rrrrrrrrrl"));
  out += "and what the device holds for it\n";
  out += device_rows(stages, shown);
  if (shown.size() < stages.size()) {
    out += fmt::format("  ... {} more\n", stages.size() - shown.size());
  }
  return out + device_notes(what_if, memory) + wrapped(fit_sentence(memory, worst), "");
}

// --------------------------------------------------------------------------------------- the rest

std::string traffic_section(const Json& report) {
  std::vector<std::string> words;
  for (const auto& [axis, bytes] : report.at("traffic").at("sent_bytes_per_device").items()) {
    const auto count = bytes.get<std::int64_t>();
    if (count > 0) words.push_back(fmt::format("{} {}", axis, format_bytes(Bytes(count))));
  }
  if (words.empty()) words.emplace_back("nothing");
  return wrapped(fmt::format("\ntraffic, sent by a device in a step: {}", fmt::join(words, ", ")),
                 "  ");
}

std::string basis_section(const Json& report) {
  std::vector<std::string> words;
  for (const auto& [name, share] : report.at("basis").items()) {
    if (share.get<double>() > 0) words.push_back(fmt::format("{} {}", name, percent(share)));
  }
  return wrapped(fmt::format("basis, by kernel time: {}", fmt::join(words, ", ")), "  ");
}

std::string training_section(const Json& report) {
  if (!report.contains("time_to_train")) return "";
  const Json& training = report.at("time_to_train");
  return wrapped(fmt::format("time to train on {} tokens: {:.1f} days, {} device-hours, if nothing "
                             "fails", format_count(number(training, "tokens")),
                             number(training, "days"),
                             format_count(number(training, "device_hours"))),
                 "  ");
}

std::string expectation_section(const WhatIf& what_if, const Json& report) {
  std::string out;
  for (const Expectation& one : check_expectations(what_if, report)) {
    out += fmt::format("expect {} <= {}: {}, {}\n", one.key, one.limit,
                       one.met ? "met" : "NOT MET", one.actual);
  }
  return out;
}

// "--set a=1 --set b=2", in lines that a shell takes as one.
std::vector<std::string> sets_lines(const Suggestion& suggestion) {
  constexpr std::size_t kWidth = 74;
  std::vector<std::string> lines = {""};
  for (const std::string& set : suggestion.sets) {
    const std::string word = "--set " + set;
    if (!lines.back().empty() && lines.back().size() + word.size() > kWidth) {
      lines.back() += " \\";
      lines.emplace_back();
    }
    lines.back() += (lines.back().empty() ? "" : " ") + word;
  }
  return lines;
}

std::string advice_section(const Advice& advice) {
  const std::string tried = fmt::format("{} changes tried", advice.simulated);
  if (advice.suggestions.empty() && !advice.closest) {
    return advice.fits ? fmt::format("\nNo small change makes it 2 % faster ({}).\n", tried)
                       : fmt::format("\nNo small change makes it fit ({}).\n", tried);
  }
  Rows rows = {{"step", "peak", "change"}};
  const auto add = [&rows](const Suggestion& one) {
    std::string step = format_seconds(to_seconds(one.step)), peak = format_bytes(one.peak);
    for (std::string& line : sets_lines(one)) {
      rows.push_back({std::exchange(step, ""), std::exchange(peak, ""), std::move(line)});
    }
  };
  std::string title = fmt::format("\nwhat would {} (each one simulated; {})\n",
                                  advice.fits ? "make it faster" : "make it fit", tried);
  for (const Suggestion& one : advice.suggestions) add(one);
  if (advice.suggestions.empty()) {
    title = fmt::format("\nNo one or two changes make it fit ({}). The closest:\n", tried);
    add(*advice.closest);
  }
  return title + indented(align(rows, "rrl"));
}

}  // namespace

std::string wrapped(const std::string& text, std::string_view indent) {
  std::string out, line;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = word_end(text, start);
    const std::string word = text.substr(start, end - start);
    if (!line.empty() && line.size() + 1 + word.size() > kTableColumns) {
      out += line + "\n";
      line = std::string(indent) + word;
    } else {
      line += (start == 0 ? "" : " ") + word;
    }
    start = end + 1;
  }
  return out + line + "\n";
}

std::string align(const std::vector<std::vector<std::string>>& rows, std::string_view left) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    if (widths.size() < row.size()) widths.resize(row.size());
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i > 0) line += "  ";
      const bool is_left = i < left.size() && left[i] == 'l';
      line += is_left ? fmt::format("{:<{}}", row[i], widths[i])
                      : fmt::format("{:>{}}", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::vector<Expectation> check_expectations(const WhatIf& what_if, const Json& report) {
  std::vector<Expectation> found;
  if (what_if.expect_step_time) {
    const Seconds actual(number(report.at("step"), "seconds"));
    found.push_back({"step_time", format_seconds(*what_if.expect_step_time),
                     format_seconds(actual), actual <= *what_if.expect_step_time});
  }
  if (what_if.expect_peak_memory) {
    const Bytes actual(whole(report.at("memory"), "device_total_bytes"));
    found.push_back({"peak_memory", format_binary_bytes(*what_if.expect_peak_memory),
                     format_binary_bytes(actual), actual <= *what_if.expect_peak_memory});
  }
  return found;
}

std::vector<std::string> notes_on(const WhatIf& what_if) {
  const Plan& plan = what_if.plan;
  std::vector<std::string> notes;
  const std::vector<std::int64_t> chunks = layers_of_chunks(what_if.model, what_if.plan);
  const auto [least, most] = std::minmax_element(chunks.begin(), chunks.end());
  if (*least != *most && plan.layout != StageLayout::kGiven) {
    notes.push_back(fmt::format("{} layers are laid out unevenly: {}", what_if.model.layers,
                                counts_text(chunks)));
  }
  const std::int64_t padded = padded_vocabulary(what_if.model, plan);
  if (padded != what_if.model.vocabulary) {
    notes.push_back(fmt::format("the vocabulary is padded from {} to {}, a multiple of tensor {}",
                                what_if.model.vocabulary, padded, plan.tensor));
  }
  if (plan.zero > 0 && plan.effective_zero() == 0) {
    notes.push_back(fmt::format("zero {} shards nothing: there is one data-parallel rank",
                                plan.zero));
  }
  if (plan.recompute == Recompute::kSelective && plan.fused_attention) {
    notes.push_back("selective recomputation runs the fused attention again only to save its row "
                    "sums");
  }
  if (plan.sequence_parallel && plan.tensor == 1) {
    notes.push_back("sequence_parallel does nothing without tensor parallelism");
  }
  if (plan.micro_batches() < plan.pipeline) {
    notes.push_back(fmt::format("{} micro-batches never fill {} pipeline stages",
                                plan.micro_batches(), plan.pipeline));
  } else if (plan.virtual_stages > 1 && plan.micro_batches() % plan.pipeline != 0) {
    notes.push_back(fmt::format("{} micro-batches are no multiple of {} stages: some groups of "
                                "the interleaved schedule are larger", plan.micro_batches(),
                                plan.pipeline));
  }
  if (!what_if.cluster.slow_devices.empty()) {
    const std::size_t count = what_if.cluster.slow_devices.size();
    notes.push_back(fmt::format("{} slow {}: every rank is simulated by itself", count,
                                count == 1 ? "device" : "devices"));
  }
  return notes;
}

std::string write_table(const WhatIf& what_if, const Json& report,
                        const std::optional<Advice>& advice) {
  std::string out = heading(what_if, report);
  out += step_section(report);
  out += breakdown_section(report);
  out += memory_section(what_if, report);
  out += traffic_section(report);
  out += basis_section(report);
  out += training_section(report);
  out += expectation_section(what_if, report);
  if (advice) out += advice_section(*advice);
  return out;
}

}  // namespace stepcast

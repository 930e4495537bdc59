// The report as text: what was tried, the plans one a line, what the marks mean, and each plan
// again as the words that lead to it. Linear in the plans that are shown.
#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/model.h"
#include "tools/forecast/table.h"
#include "tools/search/report.h"
#include "tools/whatif/framework.h"

namespace stepcast {
namespace {

using Rows = std::vector<std::vector<std::string>>;

// Of the front, plans that are not ranked stand in the table where they spare a tenth of the memory
// of the one before.
constexpr double kWorthShowing = 0.9;
constexpr std::size_t kRefusalsShown = 3;

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }
std::string gigabytes(Bytes bytes) {
  return fmt::format("{:.1f}", static_cast<double>(bytes.count) * 1e-9);
}
std::string plans_text(std::int64_t count) {
  return fmt::format("{} {}", count, count == 1 ? "plan" : "plans");
}

// "t8 sp p4x5 d32 e16 m1 z1 full", and what else the command line varies.
std::string plan_text(const SearchReport& report, const RankedPlan& plan) {
  const Json& parallel = plan.config.at("parallel");
  const auto count = [](const Json& value) { return value.get<std::int64_t>(); };
  const Json& recompute = plan.config.at("recompute");
  std::vector<std::string> words = {fmt::format("t{}", count(parallel.at("tensor")))};
  if (parallel.at("sequence_parallel").get<bool>()) words.emplace_back("sp");
  const std::int64_t chunks = count(parallel.at("virtual_stages"));
  words.push_back(fmt::format("p{}", count(parallel.at("pipeline"))));
  if (chunks > 1) words.back() += fmt::format("x{}", chunks);
  words.push_back(fmt::format("d{}", count(parallel.at("data"))));
  const std::int64_t experts = count(parallel.at("expert"));
  if (experts > 1) words.push_back(fmt::format("e{}", experts));
  words.push_back(fmt::format("m{}", count(plan.config.at("batch").at("micro"))));
  words.push_back(fmt::format("z{}", count(plan.config.at("sharding").at("zero"))));
  words.push_back(recompute.is_string() ? recompute.get<std::string>() : recompute.dump());
  for (const Choice& choice : report.given) {
    if (is_walked(choice.key) || choice.values.size() < 2) continue;
    const Json* value = value_at(plan.config, choice.key);
    if (value == nullptr || choice.key == "parallel.data") continue;
    words.push_back(fmt::format("{}={}", choice.key.substr(choice.key.rfind('.') + 1),
                                value->is_string() ? value->get<std::string>() : value->dump()));
  }
  return fmt::format("{}", fmt::join(words, " "));
}

std::string sets_text(const std::vector<std::string>& sets) {
  std::vector<std::string> words;
  for (const std::string& set : sets) {
    const bool plain = set.find_first_of(" \"'{}[]$&|;<>*?\\") == std::string::npos;
    words.push_back("--set " + (plain ? set : "'" + set + "'"));
  }
  return words.empty() ? "as it is" : fmt::format("{}", fmt::join(words, " "));
}

std::string heading(const SearchReport& report) {
  const Cluster& cluster = report.common.cluster;
  std::string out = wrapped(report.common.name, "  ");
  out += wrapped(fmt::format("  {} ({} parameters), {} sequences of {} tokens a step, on {} ({} GB "
                             "a device)",
                             report.common.model.name,
                             format_count(static_cast<double>(parameters(report.common.model))),
                             report.global_batch, report.sequence_length, cluster.device.name,
                             gigabytes(report.findings.capacity)),
                 "  ");
  return out;
}

// What became of every candidate.
std::string counts_text(const SearchReport& report) {
  const Findings& found = report.findings;
  const bool expected = found.limit < found.capacity;
  std::vector<std::string> lines;
  if (found.refused > 0) {
    std::string refused = fmt::format("{} are not legal", found.refused);
    for (std::size_t i = 0; i < std::min(found.refusals.size(), kRefusalsShown); ++i) {
      refused += fmt::format("{}{} for {}", i == 0 ? ": " : ", ", found.refusals[i].count,
                             found.refusals[i].key);
    }
    lines.push_back(refused);
  }
  if (found.too_large > 0) {
    lines.push_back(fmt::format(
        "{} need more than {}{} for what is live alone: cut off, not "
        "simulated",
        found.too_large, format_bytes(found.limit), expected ? " (expect.peak_memory)" : ""));
  }
  std::string simulated = fmt::format("{} are simulated", found.simulated);
  if (found.too_fragmented > 0) {
    simulated +=
        fmt::format("; of these {} do not fit for what the allocator caches", found.too_fragmented);
  }
  if (found.not_needed > 0) {
    simulated += fmt::format(
        "; {} are no better in time, memory or cost than one that fits, and "
        "not looked at closer",
        found.not_needed);
  }
  if (found.simulated > 0) lines.push_back(simulated);
  std::string out = fmt::format("\n{} tried\n", plans_text(found.candidates));
  for (const std::string& line : lines) out += wrapped("  " + line, "    ");
  return out;
}

std::string cost_text(const SearchReport& report, const RankedPlan& plan) {
  const std::optional<Training> whole = training(report, plan);
  if (!whole) return fmt::format("{:.4g}", plan.device_seconds());
  return format_count(whole->device_hours * report.price.value_or(1));
}

std::string cost_head(const SearchReport& report) {
  if (report.common.tokens <= 0) return "device-s";
  return report.price ? "price" : "device-h";
}

// Several clusters: how many devices stands in a column.
bool has_sizes(const SearchReport& report) { return report.sizes > 1; }

std::vector<std::string> row_of(const SearchReport& report, const RankedPlan& plan,
                                std::string label) {
  std::vector<std::string> row = {
      std::move(label), fmt::format("{}{}", plan.pareto ? "*" : " ", plan.tie ? "~" : "")};
  if (has_sizes(report)) row.push_back(std::to_string(plan.devices));
  for (std::string cell : {format_seconds(to_seconds(plan.step)),
                           fmt::format("{:.1f}", plan.tokens_per_second_per_device),
                           percent(plan.mfu), gigabytes(plan.peak), percent(plan.bubble_fraction),
                           cost_text(report, plan), plan_text(report, plan)}) {
    row.push_back(std::move(cell));
  }
  return row;
}

// The ranked plans, and of the rest of the front as many again, if they are worth it.
std::vector<RankedPlan> shown_plans(const SearchReport& report) {
  struct Seen {
    double least = 0;  // of the peaks that are shown
    std::int64_t unranked = 0;
  };
  std::vector<RankedPlan> shown;
  std::map<std::int64_t, Seen> sizes;
  for (const RankedPlan& plan : report.findings.plans) {
    const auto peak = static_cast<double>(plan.peak.count);
    const auto [at, first] = sizes.try_emplace(plan.devices, Seen{peak, 0});
    Seen& seen = at->second;
    if (plan.rank == 0) {
      if (peak >= kWorthShowing * seen.least || seen.unranked == report.top) continue;
      ++seen.unranked;
    }
    shown.push_back(plan);
    seen.least = std::min(seen.least, peak);
  }
  return shown;
}

std::string table_of(const SearchReport& report, const std::vector<RankedPlan>& plans) {
  Rows rows = {{"", ""}};
  if (has_sizes(report)) rows.front().emplace_back("devices");
  for (const char* head : {"step", "tok/s/dev", "MFU", "peak GB", "bubble"}) {
    rows.front().emplace_back(head);
  }
  rows.front().push_back(cost_head(report));
  rows.front().emplace_back("plan");
  for (std::size_t i = 0; i < plans.size(); ++i) {
    rows.push_back(row_of(report, plans[i], std::to_string(i + 1)));
  }
  if (report.own) {
    rows.push_back(row_of(report, *report.own, "file"));
    const bool fits = report.own->peak <= report.findings.limit;
    if (!fits) rows.back().back() += ", does not fit";
  }
  return "\n" + align(rows, has_sizes(report) ? "rlrrrrrrrl" : "rlrrrrrrl");
}

// What the marks and letters mean; how far the order is to be trusted.
std::string legend(const SearchReport& report, const std::vector<RankedPlan>& shown) {
  std::string out = wrapped(
      fmt::format("t tensor (sp: sequence parallel), p pipeline (x virtual stages), d data, {}"
                  "m micro-batch, z ZeRO stage, then what is recomputed",
                  report.common.model.experts > 0 ? "e expert, " : ""),
      "  ");
  const auto unshown = std::ssize(report.findings.plans) - std::ssize(shown);
  out +=
      wrapped(fmt::format("* Pareto: none that fits is better in step time, peak memory or "
                          "device time and as good in the others{}",
                          unshown > 0 ? fmt::format("; {} more of them in --json", unshown) : ""),
              "  ");
  const RankedPlan& first = shown.front();
  out +=
      wrapped(fmt::format("~ a tie with the fastest on as many devices, though ordered here: "
                          "their ranges overlap (the first one's: {} to {}, from {}); how well "
                          "such orders held: configs/published/FIDELITY.md, \"Plans for the same "
                          "work\"",
                          format_seconds(first.low), format_seconds(first.high), first.range_from),
              "  ");
  return out;
}

std::string words_of(const SearchReport& report, const std::vector<RankedPlan>& plans) {
  std::string command = "stepcast simulate " + report.config;
  if (!report.sets.empty()) command += " " + sets_text(report.sets);
  std::string out = wrapped(fmt::format("\nto forecast one of them: {}, with", command), "    ");
  for (std::size_t i = 0; i < plans.size(); ++i) {
    out += wrapped(fmt::format("{:>3}  {}", i + 1, sets_text(plans[i].sets)), "     ");
  }
  return out;
}

std::string own_section(const SearchReport& report, const std::vector<RankedPlan>& shown) {
  if (!report.own) {
    return wrapped(fmt::format("The file's own plan is not legal: {}", report.own_trouble), "  ");
  }
  const auto best = std::find_if(shown.begin(), shown.end(), [&](const RankedPlan& plan) {
    return plan.devices == report.own->devices;
  });
  if (best == shown.end()) return "";
  const double gain = 1 - to_seconds(best->step) / to_seconds(report.own->step);
  if (gain <= 0) return "None is faster than the file's own plan.\n";
  return wrapped(fmt::format("The fastest plan on as many devices takes {} less than the file's "
                             "own.",
                             percent(gain)),
                 "  ");
}

std::string nearest_section(const SearchReport& report) {
  const Findings& found = report.findings;
  if (found.nearest.empty()) return "";
  const auto excess = [&](const RankedPlan& plan) { return format_bytes(plan.peak - found.limit); };
  if (!found.plans.empty()) {
    const RankedPlan& plan = found.nearest.front();
    return wrapped(fmt::format("{} do not fit; the nearest by {}: {}.",
                               plans_text(found.too_large + found.too_fragmented), excess(plan),
                               sets_text(plan.sets)),
                   "  ");
  }
  std::string out =
      wrapped(fmt::format("\nNo plan fits in {}. Nearest to it:", format_bytes(found.limit)), "  ");
  for (const RankedPlan& plan : found.nearest) {
    out += wrapped(
        fmt::format("  {} too much, {} on {} devices: {}", excess(plan),
                    format_seconds(to_seconds(plan.step)), plan.devices, sets_text(plan.sets)),
        "    ");
  }
  return out;
}

}  // namespace

std::string search_table(const SearchReport& report) {
  const Findings& found = report.findings;
  std::string out = heading(report) + counts_text(report);
  if (found.plans.empty()) {
    if (found.nearest.empty() && !found.refusals.empty()) {
      const Refusal& most = found.refusals.front();
      out += wrapped(fmt::format("\nNo plan is legal. Most often {}: {}", most.key, most.example),
                     "  ");
    }
    return out + nearest_section(report);
  }
  const std::vector<RankedPlan> shown = shown_plans(report);
  out += table_of(report, shown) + legend(report, shown);
  out += words_of(report, shown) + "\n" + own_section(report, shown) + nearest_section(report);
  if (report.common.expect_step_time) {
    out += wrapped(
        fmt::format("expect step_time <= {}: {}", format_seconds(*report.common.expect_step_time),
                    is_welcome(report) ? "met" : "NOT MET"),
        "  ");
  }
  return out;
}

}  // namespace stepcast

// The question as a whole: which clusters, which keys, which batch; then everything is explored.
#include "tools/search/search.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "sim/base/error.h"
#include "tools/base/files.h"
#include "tools/forecast/fidelity.h"
#include "tools/whatif/framework.h"

namespace stepcast {
namespace {

constexpr std::int64_t kTopMost = 10'000;
constexpr std::int64_t kTop = 10, kTopOfSeveral = 3;
constexpr double kPriceMost = 1e6;

// What the command line says of the space. A key that --set names is fixed.
std::vector<Choice> given_choices(const SearchArguments& arguments, const WhatIfFile& question) {
  std::vector<Choice> given;
  const auto add = [&](Choice choice, const std::string& place) {
    for (const Choice& other : given) {
      if (other.key == choice.key) throw Error(place, "is given twice; name each key once");
    }
    given.push_back(std::move(choice));
  };
  for (const std::string& text : arguments.vary) add(parse_choice(text), "--vary " + text);
  for (const std::string& key : arguments.fix) add(fixed_choice(key, question), "--fix " + key);
  for (const std::string& set : arguments.sets) {
    const std::string key = set.substr(0, set.find('='));
    const bool again = std::any_of(given.begin(), given.end(),
                                   [&](const Choice& choice) { return choice.key == key; });
    if (!again && is_walked(key)) given.push_back(fixed_choice(key, question));
  }
  return given;
}

// What the file says of the batch; else what its own plan makes of it.
std::int64_t batch_count(const WhatIfFile& question, const char* key, std::int64_t Plan::*count) {
  const Json filled = question.filled_in();
  const Json* stated = value_at(filled, key);
  if (stated != nullptr && stated->is_number_integer()) return stated->get<std::int64_t>();
  return question.with().plan.*count;
}

std::vector<ClusterPlans> clusters_of(const SearchArguments& arguments, const WhatIfFile& question,
                                      std::int64_t batch, const std::vector<Choice>& given) {
  std::vector<ClusterPlans> clusters;
  const Cluster& own = question.common().cluster;
  if (arguments.devices.empty()) {
    clusters.push_back({own.devices(), question, {}, candidates(question, batch, given)});
    return clusters;
  }
  const std::int64_t node = own.devices_per_node;
  std::size_t left = kCandidatesMost;
  for (const std::int64_t devices : parse_devices(arguments.devices, node)) {
    std::vector<std::string> nodes;
    if (devices != own.devices()) {
      nodes.push_back(fmt::format("cluster.nodes={}", devices / node));
    }
    WhatIfFile resized = question.changed(nodes);
    std::vector<std::vector<std::string>> plans = candidates(resized, batch, given, left);
    left -= plans.size();
    clusters.push_back({devices, std::move(resized), std::move(nodes), std::move(plans)});
  }
  return clusters;
}

void say_progress(std::size_t done, std::size_t of) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::fputs(fmt::format("\r{} of {} plans{}", done, of, done == of ? "\r\x1b[K" : "").c_str(),
             stderr);
}

// Why no plan with this change is legal; "" if one is, or none was tried.
std::string why_never_legal(const std::string& set, const std::vector<ClusterPlans>& clusters) {
  std::string trouble;
  for (const ClusterPlans& cluster : clusters) {
    for (const std::vector<std::string>& sets : cluster.candidates) {
      if (std::find(sets.begin(), sets.end(), set) == sets.end()) continue;
      try {
        cluster.question.with(sets);
        return "";
      } catch (const Error& error) {
        if (trouble.empty()) trouble = error.what();
      }
    }
  }
  return trouble;
}

// A value that the command line names has to be legal in some plan: else it is a slip.
void check_values(const std::vector<Choice>& given, const std::vector<ClusterPlans>& clusters,
                  const Findings& findings) {
  if (findings.refused == 0) return;
  for (const Choice& choice : given) {
    for (const std::string& value : choice.values) {
      const std::string set = choice.key + "=" + value;
      const std::string trouble = why_never_legal(set, clusters);
      if (!trouble.empty()) throw Error(set, "is legal in no plan: " + trouble);
    }
  }
}

// Where all plans break one rule, it is the question that is wrong.
void check_question(const Findings& findings) {
  if (findings.candidates == 0) {
    throw Error("search", "no tensor and pipeline degrees leave the data degree that is asked for");
  }
  const bool one = findings.refused == findings.candidates && findings.refusals.size() == 1;
  if (!one) return;
  const Refusal& refusal = findings.refusals.front();
  throw Error(refusal.key, "no plan is legal: " + refusal.example);
}

void check_arguments(const SearchArguments& arguments, const WhatIfFile& question) {
  if (arguments.top && (*arguments.top < 1 || *arguments.top > kTopMost)) {
    throw Error("--top", fmt::format("must be from 1 to {}, is {}", kTopMost, *arguments.top));
  }
  if (arguments.price && !(*arguments.price > 0 && *arguments.price <= kPriceMost)) {
    throw Error(
        "--price-per-device-hour",
        fmt::format("must be more than 0 and at most {:g}, is {:g}", kPriceMost, *arguments.price));
  }
  if (arguments.price && question.common().tokens <= 0) {
    throw Error("--price-per-device-hour",
                "is of a training: say of how many tokens, "
                "--set train.tokens=15T");
  }
  if (!arguments.json.empty() && arguments.json != kStdout) check_writable(arguments.json);
}

}  // namespace

SearchReport search(const SearchArguments& arguments) {
  const WhatIfFile question(arguments.config, arguments.sets);
  check_arguments(arguments, question);
  SearchReport report;
  report.config = arguments.config;
  report.sets = arguments.sets;
  report.given = given_choices(arguments, question);
  report.common = question.common();
  report.price = arguments.price;
  report.sequence_length = batch_count(question, "batch.sequence_length", &Plan::sequence_length);
  report.global_batch = batch_count(question, "batch.global", &Plan::global_batch);
  const std::vector<ClusterPlans> clusters =
      clusters_of(arguments, question, report.global_batch, report.given);

  report.sizes = std::ssize(clusters);
  report.top = arguments.top.value_or(report.sizes > 1 ? kTopOfSeveral : kTop);

  ExploreOptions options;
  options.top = static_cast<std::size_t>(report.top);
  options.threads = arguments.threads;
  options.errors = shipped_error_classes();
  options.progress = say_progress;
  report.findings = explore(clusters, options);
  check_question(report.findings);
  check_values(report.given, clusters, report.findings);
  try {
    report.own =
        ranked_plan({report.common.cluster.devices(), question, {}, {}}, {}, options.errors);
  } catch (const Error& error) {
    report.own_trouble = error.what();
  }
  return report;
}

int search_command(const SearchArguments& arguments) {
  const SearchReport report = search(arguments);
  if (!arguments.json.empty()) write_file(arguments.json, search_json(report).dump(2) + "\n");
  if (arguments.json != kStdout) write_file(kStdout, search_table(report));
  return is_welcome(report) ? 0 : 1;
}

}  // namespace stepcast

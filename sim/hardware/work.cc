// Timed work as JSON, both ways. Cost: linear in the list, times the logarithm of its length to
// find what is there twice.
#include "sim/hardware/work.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "sim/base/error.h"
#include "sim/hardware/size_text.h"

namespace stepcast {

namespace {

constexpr std::int64_t kThreadsMost = 1 << 16;
constexpr std::int64_t kSamplesMost = 1'000'000'000'000;

constexpr std::array<const char*, 4> kPhaseNames = {"forward", "backward", "recompute",
                                                    "optimizer"};

std::vector<std::pair<std::string, std::string>> same_words(const auto& names) {
  std::vector<std::pair<std::string, std::string>> words;
  for (const auto& name : names) words.emplace_back(name, name);
  return words;
}

TimedKernel read_kernel(const Object& object) {
  TimedKernel kernel;
  kernel.op = parse_op(object.string("op"), object.place("op"));
  object.at("phase");  // says that it is required
  kernel.phase = object.word<std::string>("phase", "", same_words(kPhaseNames));
  object.at("micro_batch");
  kernel.first = object.word("micro_batch", true, {{"first", true}, {"later", false}});
  kernel.time = read_timing(object);
  object.done();
  return kernel;
}

TimedTransfer read_transfer(const Object& object) {
  TimedTransfer transfer;
  object.at("transfer");
  transfer.transfer = object.word<std::string>("transfer", "", same_words(timed_transfer_names()));
  transfer.ranks = static_cast<int>(object.integer("ranks", {1, kMeasuredRanksMost}));
  transfer.bytes = read_size(object);
  transfer.time = read_timing(object);
  object.done();
  return transfer;
}

std::string key_of(const TimedKernel& kernel) {
  return fmt::format("{}, {}, {} micro-batch", to_text(kernel.op), kernel.phase,
                     kernel.first ? "first" : "later");
}
std::string key_of(const TimedTransfer& transfer) {
  return fmt::format("{} of {} over {} ranks", transfer.transfer, size_text(transfer.bytes),
                     transfer.ranks);
}

template <class Timed, class Read>
std::vector<Timed> read_list(const Object& element, std::string_view key, Read read) {
  std::vector<Timed> list;
  std::set<std::string> known;
  for (std::size_t i = 0; i < element.array_size(key); ++i) {
    const Object object = element.element(key, i);
    list.push_back(read(object));
    if (!known.insert(key_of(list.back())).second) {
      object.fail("", fmt::format("{} is there twice", key_of(list.back())));
    }
  }
  return list;
}

}  // namespace

const std::vector<std::string>& timed_transfer_names() {
  static const std::vector<std::string> names = {"all-reduce", "all-gather", "reduce-scatter",
                                                 "broadcast",  "all-to-all", "send",
                                                 "receive",    "shift"};
  return names;
}

Timing read_timing(const Object& object) {
  Timing timing;
  timing.mean = object.seconds("seconds");
  if (!(timing.mean > Seconds(0) && timing.mean <= kMeasuredTimeMost)) {
    object.fail("seconds",
                fmt::format("must be more than zero, at most {:g} s", kMeasuredTimeMost.value));
  }
  timing.spread = object.number("spread", 0, 0, 1e6);
  timing.samples = object.integer("samples", 1, {1, kSamplesMost});
  return timing;
}

void write_timing(const Timing& timing, Json& json) {
  json["seconds"] = exact_seconds(timing.mean);
  json["spread"] = timing.spread;
  json["samples"] = timing.samples;
}

TimedWork read_timed_work(const Object& element) {
  TimedWork work;
  work.ranks = static_cast<int>(element.integer("ranks", {1, kMeasuredRanksMost}));
  work.threads = static_cast<int>(element.integer("threads", {1, kThreadsMost}));
  work.kernels = read_list<TimedKernel>(element, "kernels", read_kernel);
  work.transfers = read_list<TimedTransfer>(element, "transfers", read_transfer);
  element.done();
  return work;
}

Json write_timed_work(const TimedWork& work) {
  Json json{{"ranks", work.ranks}, {"threads", work.threads}};
  json["kernels"] = Json::array();
  for (const TimedKernel& kernel : work.kernels) {
    Json one{{"op", to_text(kernel.op)},
             {"phase", kernel.phase},
             {"micro_batch", kernel.first ? "first" : "later"}};
    write_timing(kernel.time, one);
    json["kernels"].push_back(std::move(one));
  }
  json["transfers"] = Json::array();
  for (const TimedTransfer& transfer : work.transfers) {
    Json one{{"transfer", transfer.transfer},
             {"ranks", transfer.ranks},
             {"bytes", size_text(transfer.bytes)}};
    write_timing(transfer.time, one);
    json["transfers"].push_back(std::move(one));
  }
  return json;
}

}  // namespace stepcast

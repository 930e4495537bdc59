// Nested choices, walked depth first; a value that the command line gives is taken as it is, so
// that what is wrong with it is said by the reader of plans. Cost: linear in the candidates.
#include "tools/search/space.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/choices.h"
#include "models/plan.h"
#include "sim/base/error.h"
#include "tools/forecast/advice.h"
#include "tools/whatif/framework.h"

namespace stepcast {
namespace {

constexpr const char* kTensor = "parallel.tensor";
constexpr const char* kContext = "parallel.context";
constexpr const char* kExpert = "parallel.expert";
constexpr const char* kExpertTensor = "parallel.expert_tensor";
constexpr const char* kExpertOverlap = "parallel.expert_overlap";
constexpr const char* kPipeline = "parallel.pipeline";
constexpr const char* kVirtual = "parallel.virtual_stages";
constexpr const char* kSequence = "parallel.sequence_parallel";
constexpr const char* kMicro = "batch.micro";
constexpr const char* kZero = "sharding.zero";
constexpr const char* kRecompute = "recompute";
constexpr const char* kData = "parallel.data";
constexpr const char* kSchedule = "parallel.schedule";
constexpr const char* kStages = "parallel.stages";
constexpr const char* kGlobal = "batch.global";

// In the order in which they are chosen.
constexpr std::array<std::string_view, 9> kWalked = {
    kTensor, kContext, kPipeline, kVirtual, kExpert, kSequence, kMicro, kZero, kRecompute};

// Another value of these is another work.
const std::vector<std::string> kWork = {"batch.sequence_length", "batch.document_length",
                                        "batch.global",          "dropout",
                                        "dropout_rate",          "clip_gradients"};

// What a plan's keys are if nobody says so.
const Json& defaults() {
  static const Json json = write_plan(Plan());
  return json;
}

std::vector<std::string> plan_keys() {
  std::vector<std::string> keys;
  for (const auto& [section, value] : defaults().items()) {
    if (!value.is_object()) keys.push_back(section);
    for (const auto& [key, inner] : value.items()) {
      if (value.is_object()) keys.push_back(section + "." + key);
    }
  }
  return keys;
}

void check_key(const std::string& key, const std::string& place) {
  if (std::find(kWork.begin(), kWork.end(), key) != kWork.end()) {
    throw Error(place, "is the work itself, and plans are compared for the same work; use --set");
  }
  const std::vector<std::string> keys = plan_keys();
  if (std::find(keys.begin(), keys.end(), key) != keys.end()) return;
  throw Error(place, fmt::format("\"{}\" is no key of a plan{}; `stepcast explain parallel` lists "
                                 "some",
                                 key, did_you_mean(key, keys)));
}

// The value that --set would write.
Json value_of(const std::string& text) {
  Json value = Json::parse(text, nullptr, false);
  return value.is_discarded() ? Json(text) : value;
}

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// As short as it can be: no blank of a list may part the words of a command.
std::string shortest(const std::string& text) {
  const Json value = value_of(text);
  return value.is_structured() ? value.dump() : text;
}

// A degree or the like, if it may be one.
std::optional<std::int64_t> count_of(const std::string& text) {
  std::int64_t count = 0;
  const auto [end, trouble] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (trouble != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (count < 1 || count > kRanksMax) return std::nullopt;
  return count;
}

std::vector<std::string> texts(const std::vector<std::int64_t>& counts) {
  std::vector<std::string> texts;
  for (const std::int64_t count : counts) texts.push_back(std::to_string(count));
  return texts;
}

std::vector<std::int64_t> divisors_up_to(std::int64_t most, std::int64_t number) {
  std::vector<std::int64_t> found;
  for (std::int64_t d = 1; d <= std::min(most, number); ++d) {
    if (number % d == 0) found.push_back(d);
  }
  return found;
}

std::vector<std::int64_t> powers_up_to(std::int64_t most) {
  std::vector<std::int64_t> found;
  for (std::int64_t power = 1; power <= most; power *= 2) found.push_back(power);
  return found;
}

class Walk {
 public:
  Walk(const WhatIfFile& question, std::int64_t global_batch, const std::vector<Choice>& given,
       std::size_t most)
      : question_(question),
        filled_(question.filled_in()),
        devices_(question.common().cluster.devices()),
        global_batch_(global_batch),
        most_(most) {
    for (const std::string_view key : kWalked) choices_.push_back({std::string(key), {}});
    for (const Choice& choice : given) {
      const auto same = [&](const Choice& other) { return other.key == choice.key; };
      const auto at = std::find_if(choices_.begin(), choices_.end(), same);
      if (at == choices_.end()) {
        choices_.push_back(choice);
      } else {
        *at = choice;
      }
    }
  }

  std::vector<std::vector<std::string>> run() {
    descend(0);
    return std::move(found_);
  }

 private:
  // What the file (with its framework) says of a key; nullptr if nothing.
  const Json* stated(const char* key) const { return value_at(filled_, key); }
  std::int64_t stated_count(const char* key) const {
    const Json* value = stated(key);
    return value == nullptr ? 1 : count_of(text_of(*value)).value_or(1);
  }

  // 0 for what is no count: there is nothing to be worked out of it.
  std::int64_t count(const char* key) const {
    const auto at = chosen_.find(key);
    return at == chosen_.end() ? stated_count(key) : count_of(at->second).value_or(0);
  }
  // 0 where the degrees do not divide the devices.
  std::int64_t data() const {
    const std::int64_t inner = count(kTensor) * count(kContext) * count(kPipeline);
    return inner > 0 && devices_ % inner == 0 ? devices_ / inner : 0;
  }

  std::vector<std::int64_t> chunk_counts() const {
    const std::int64_t layers = question_.common().model.layers, pipeline = count(kPipeline);
    if (pipeline <= 1) return {1};
    std::vector<std::int64_t> counts = layers % pipeline == 0
                                           ? divisors_up_to(layers, layers / pipeline)
                                           : powers_up_to(layers / pipeline);
    const std::int64_t own = stated_count(kVirtual);
    const bool has = std::find(counts.begin(), counts.end(), own) != counts.end();
    if (!has && stated_count(kPipeline) == pipeline) counts.push_back(own);
    return counts;
  }

  std::vector<std::int64_t> micro_batches() const {
    if (data() == 0) return {};
    std::vector<std::int64_t> sizes;
    const std::int64_t each = global_batch_ / data(), own = stated_count(kMicro);
    for (const std::int64_t size : powers_up_to(each)) {
      if (each % size == 0) sizes.push_back(size);
    }
    const bool has = std::find(sizes.begin(), sizes.end(), own) != sizes.end();
    if (!has && each > 0 && each % own == 0) sizes.push_back(own);
    return sizes;
  }

  // 1 and the one that is stated; more where sequences are long.
  std::vector<std::string> context_degrees() const {
    const std::int64_t tensor = count(kTensor), own = stated_count(kContext);
    if (tensor == 0 || devices_ % tensor != 0) return {};
    const std::int64_t most = most_context(stated_count("batch.sequence_length"));
    std::vector<std::int64_t> degrees;
    for (const std::int64_t degree : powers_up_to(std::min(most, devices_ / tensor))) {
      if (devices_ / tensor % degree == 0) degrees.push_back(degree);
    }
    const bool has = std::find(degrees.begin(), degrees.end(), own) != degrees.end();
    if (!has) degrees.push_back(own);
    return texts(degrees);
  }

  // Whether the file cuts each expert over the tensor ranks.
  bool cuts_experts() const { return stated_count(kExpertTensor) > 1; }

  // Expert ranks are context ranks and tensor ranks, unless these share each expert, times a part
  // of the data ranks; or each has all experts, if tensor ranks have none to share.
  std::vector<std::string> expert_degrees() const {
    const std::int64_t tensor = cuts_experts() ? 1 : count(kTensor);
    const std::int64_t inner = count(kContext) * tensor;
    if (inner == 0 || data() == 0) return {};
    std::vector<std::int64_t> degrees;
    if (tensor == 1 && inner > 1) degrees.push_back(1);
    for (const std::int64_t part : divisors_up_to(data(), data())) {
      if (question_.common().model.experts % (inner * part) == 0) degrees.push_back(inner * part);
    }
    return texts(degrees);
  }

  std::vector<std::string> recomputations() const {
    std::vector<std::string> words = {"none", "full"};
    const Json* attention = stated("attention");
    if (attention != nullptr && *attention == "unfused") words.emplace_back("selective");
    const Json* own = stated(kRecompute);
    if (own != nullptr && std::find(words.begin(), words.end(), text_of(*own)) == words.end()) {
      words.push_back(text_of(*own));
    }
    return words;
  }

  // None: the key stays as it is.
  std::vector<std::string> usual(const std::string& key) const {
    const std::int64_t tensor = count(kTensor);
    if (key == kTensor)
      return texts(divisors_up_to(devices_, question_.common().cluster.devices_per_node));
    if (key == kPipeline) {
      const std::int64_t inner = tensor * count(kContext);
      if (inner == 0 || devices_ % inner != 0) return {};
      return texts(divisors_up_to(question_.common().model.layers, devices_ / inner));
    }
    if (key == kVirtual) return texts(chunk_counts());
    if (key == kSequence && tensor > 1) return {"true", "false"};
    if (key == kMicro) return texts(micro_batches());
    if (key == kContext) return context_degrees();
    if (key == kExpert && question_.common().model.experts > 0) return expert_degrees();
    if (key == kZero && count(kContext) * data() > 1) return {"0", "1", "2", "3"};
    if (key == kRecompute) return recomputations();
    return {};
  }

  void descend(std::size_t depth) {
    if (depth == choices_.size()) return emit();
    const Choice& choice = choices_[depth];
    const std::vector<std::string> values =
        choice.values.empty() ? usual(choice.key) : choice.values;
    if (values.empty()) descend(depth + 1);
    for (const std::string& value : values) {
      chosen_[choice.key] = value;
      descend(depth + 1);
      chosen_.erase(choice.key);
    }
  }

  // Whether a key is that already, without --set. What a framework's rules make of it, which ask
  // for other keys, is not known here, so a value that only the framework gives is said again.
  bool is_already(const char* key, const Json& wanted) const {
    const Json* written = value_at(question_.written(), key);
    if (written != nullptr) return *written == wanted;
    const Json* usual = value_at(defaults(), key);
    return stated(key) == nullptr && usual != nullptr && *usual == wanted;
  }

  void say(const char* key, const std::string& value, std::vector<std::string>& sets) const {
    if (!is_already(key, value_of(value))) sets.push_back(fmt::format("{}={}", key, value));
  }

  // How the stages follow from their number: the schedule, and how layers are laid out on them.
  void say_pipeline(std::vector<std::string>& sets) const {
    const bool interleaved = count(kVirtual) > 1;
    const Json* schedule = stated(kSchedule);
    const bool was = schedule != nullptr && *schedule == "interleaved";
    if (!chosen_.contains(kSchedule) && schedule != nullptr && was != interleaved) {
      sets.push_back(fmt::format("{}={}", kSchedule, interleaved ? "interleaved" : "1f1b"));
    }
    const Json* stages = stated(kStages);
    StageLayout layout = StageLayout::kEven;
    if (stages != nullptr && stages->is_array()) layout = StageLayout::kGiven;
    if (stages != nullptr && *stages == "balanced") layout = StageLayout::kBalanced;
    const bool same =
        layout == StageLayout::kGiven && std::ssize(*stages) == count(kPipeline) * count(kVirtual);
    if (chosen_.contains(kStages) || same || count(kPipeline) * count(kVirtual) == 0) return;
    if (has_to_balance(layout, question_.common().model, count(kPipeline), count(kVirtual))) {
      sets.push_back(fmt::format("{}=balanced", kStages));
    }
  }

  void emit() {
    const auto degree = chosen_.find(kData);
    if (degree != chosen_.end() && count_of(degree->second) != data()) return;
    std::vector<std::string> sets;
    for (const Choice& choice : choices_) {
      const auto at = chosen_.find(choice.key);
      if (at != chosen_.end() && choice.key != kData) say(choice.key.c_str(), at->second, sets);
    }
    say_pipeline(sets);
    // Who cuts experts cuts them over all tensor ranks.
    if (cuts_experts() && !chosen_.contains(kExpertTensor)) {
      say(kExpertTensor, std::to_string(count(kTensor)), sets);
    }
    const Json* overlap = stated(kExpertOverlap);
    const bool kept = can_overlap_experts(count(kExpert), count(kPipeline), count(kVirtual) > 1);
    if (overlap != nullptr && *overlap == true && !kept) say(kExpertOverlap, "false", sets);
    // Left out, the data degree follows from the others, and the batch from it.
    if (data() > 0 && stated(kData) != nullptr) say(kData, std::to_string(data()), sets);
    const bool follows = stated(kGlobal) == nullptr && global_batch_ == count(kMicro) * data();
    if (!follows) say(kGlobal, std::to_string(global_batch_), sets);
    if (found_.size() == most_) {
      throw Error("search", fmt::format("there are more than {} plans to look at; narrow them with "
                                        "--fix KEY or --vary KEY=value,value",
                                        most_));
    }
    found_.push_back(std::move(sets));
  }

  const WhatIfFile& question_;
  Json filled_;
  std::int64_t devices_, global_batch_;
  std::size_t most_;
  std::vector<Choice> choices_;
  std::map<std::string, std::string> chosen_;
  std::vector<std::vector<std::string>> found_;
};

}  // namespace

bool is_walked(std::string_view key) {
  return std::find(kWalked.begin(), kWalked.end(), key) != kWalked.end();
}

Choice parse_choice(const std::string& text) {
  const std::string place = "--vary " + text;
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals + 1 == text.size()) {
    throw Error(place, "write KEY=value,value: --vary parallel.tensor=4,8");
  }
  Choice choice{text.substr(0, equals), {""}};
  check_key(choice.key, place);
  int depth = 0;
  bool quoted = false;
  for (const char c : text.substr(equals + 1)) {
    if (c == '"') quoted = !quoted;
    if (!quoted) depth += (c == '[' || c == '{') - (c == ']' || c == '}');
    if (c == ',' && depth == 0 && !quoted) {
      choice.values.emplace_back();
    } else {
      choice.values.back() += c;
    }
  }
  for (auto value = choice.values.begin(); value != choice.values.end(); ++value) {
    if (value->empty()) throw Error(place, "has an empty value");
    *value = shortest(*value);
    if (std::find(choice.values.begin(), value, *value) != value) {
      throw Error(place, fmt::format("has \"{}\" twice", *value));
    }
  }
  return choice;
}

Choice fixed_choice(const std::string& key, const WhatIfFile& question) {
  const std::string place = "--fix " + key;
  check_key(key, place);
  const Json filled = question.filled_in();
  if (const Json* stated = value_at(filled, key)) return {key, {text_of(*stated)}};
  if (is_walked(key)) {
    return {key, {text_of(*value_at(defaults(), key))}};
  }
  throw Error(place, "is not in the file, and is not searched unless --vary names it");
}

std::vector<std::vector<std::string>> candidates(const WhatIfFile& question,
                                                 std::int64_t global_batch,
                                                 const std::vector<Choice>& given,
                                                 std::size_t most) {
  return Walk(question, global_batch, given, most).run();
}

std::vector<std::int64_t> parse_devices(const std::string& text, std::int64_t devices_per_node) {
  const std::string place = "--devices " + text;
  const auto count = [&](const std::string& word) {
    const std::optional<std::int64_t> found = count_of(word);
    if (!found || *found > kRanksMax) {
      throw Error(place,
                  fmt::format("write 64..1024 (doubling) or 64,96,128; from 1 to {}", kRanksMax));
    }
    if (*found % devices_per_node != 0) {
      throw Error(place, fmt::format("a node has {} devices, and {} are no whole number of nodes; "
                                     "use {}",
                                     devices_per_node, *found,
                                     nearest_multiples(*found, devices_per_node)));
    }
    return *found;
  };
  std::vector<std::int64_t> sizes;
  if (const std::size_t dots = text.find(".."); dots != std::string::npos) {
    const std::int64_t most = count(text.substr(dots + 2));
    for (std::int64_t size = count(text.substr(0, dots)); size <= most; size *= 2) {
      sizes.push_back(size);
    }
    if (sizes.empty()) throw Error(place, "the first is more than the last");
    return sizes;
  }
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t end = std::min(text.find(',', start), text.size());
    sizes.push_back(count(text.substr(start, end - start)));
    start = end + 1;
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

}  // namespace stepcast

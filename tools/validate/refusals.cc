// By the words of the row alone. Linear in it.
#include "tools/validate/refusals.h"

#include <string>
#include <string_view>

#include <fmt/format.h>

#include "sim/base/error.h"
#include "tools/validate/fields.h"
#include "tools/validate/question.h"

namespace stepcast {
namespace {

// Anything but no, none, 0 and nothing.
bool is_on(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number()) return value.get<double>() != 0;
  if (value.is_string()) return !value.get_ref<const std::string&>().empty();
  return !value.empty() && !value.is_null();
}

void refuse_lora(const Json& row) {
  const Json& source = section_of(row, "source");
  const Json& software = section_of(row, "software");
  const std::string words =
      lower(text_of(row, "id") + " " + text_of(row, "group") + " " + text_of(source, "table") +
            " " + text_of(software, "framework") + " " + text_of(section_of(row, "model"), "name"));
  const std::string notes = lower(text_of(row, "notes"));
  if (has(words, "lora") || has(words, "peft") || notes.starts_with("lora")) {
    throw Error("software", "low-rank adapters are not covered");
  }
}

void refuse_optimizer(const Json& row) {
  const std::string optimizer = text_of(flags_of(row), "optimizer");
  if (optimizer.empty() || optimizer == "adam") return;
  throw Error("software.extra.flags", fmt::format("the optimizer {} is not covered", optimizer));
}

void refuse_offload(const Json& row) {
  const auto refuse = [] { throw Error("offload", "offload to the host is not covered yet"); };
  const Json* offload = member(row, "offload");
  if (offload != nullptr && !offload->is_object() && is_on(*offload)) refuse();
  if (offload != nullptr && offload->is_object()) {
    for (const Json& value : *offload) {
      if (is_on(value)) refuse();
    }
  }
  const Json& recipe =
      section_of(section_of(section_of(row, "software"), "extra"), "recipe");
  if (count_of(recipe, "cpu_offloading_num_layers")) refuse();
}

// How context ranks exchange, in Transformer Engine's words; Megatron-LM's tests say so in their
// names alone. Heads are shared out by all-to-alls (a2a), by rings of such groups (a2a+p2p), or
// keys and values go round a ring.
std::string context_words(const Json& row) {
  std::string id = lower(text_of(row, "id"));
  constexpr std::string_view kOfExperts = "a2a_ovlp";  // all-to-alls beside another micro-batch
  if (const auto at = id.find(kOfExperts); at != std::string::npos) id.erase(at, kOfExperts.size());
  return lower(id + " " + text_of(flags_of(row), "cp-comm-type") + " " +
               text_of(section_of(section_of(row, "parallel"), "extra"), "cp_comm_type"));
}

void refuse_axes(const Json& row) {
  const std::string words = context_words(row);
  if (stated_count(row, "parallel", "cp").value_or(1) == 1 || !has(words, "a2a")) return;
  if (has(words, "a2a_p2p") || has(words, "a2a+p2p")) {
    throw Error("parallel.cp", "all-to-alls within a ring are not covered yet");
  }
}

}  // namespace

bool shares_heads(const Json& row) { return has(context_words(row), "a2a"); }

void refuse_software(const Json& row) {
  refuse_lora(row);
  refuse_optimizer(row);
}

void refuse_layout(const Json& row) {
  refuse_axes(row);
  refuse_offload(row);
}

}  // namespace stepcast

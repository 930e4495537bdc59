// Show: what would run, as text. Nothing is simulated here; `memory` replays one stage's calls up
// to the moment that account() found, and looks at what is alive then.
//
// Replay: a body changes the number of live instances of each tensor by a fixed amount, so whole
// calls are added up from a table of those changes, and only the last call is walked. Cost: linear
// in the bodies, plus calls times the tensors that a body leaves changed (few).
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/lower.h"
#include "models/transformer.h"
#include "sim/base/error.h"
#include "sim/engine/simulate.h"
#include "sim/network/communicators.h"
#include "tools/base/files.h"
#include "tools/commands/cluster_text.h"
#include "tools/commands/commands.h"
#include "tools/forecast/forecast.h"
#include "tools/forecast/table.h"
#include "tools/whatif/whatif.h"

namespace stepcast {
namespace {

using Rows = std::vector<std::vector<std::string>>;

std::string grouped(std::int64_t number) {
  const std::string digits = fmt::format("{}", number);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

Job make_job(const WhatIf& what_if) {
  Job job = lower(transformer(what_if.model, what_if.plan), what_if.plan);
  const std::string fault = verify(job);
  STEPCAST_CHECK(fault.empty(), fault);
  return job;
}

// The stages that were asked for.
std::vector<std::size_t> chosen_stages(const Job& job, int stage) {
  const int stages = static_cast<int>(job.programs.size());
  if (stage < -1 || stage >= stages) {
    throw Error("--stage", stages == 1 ? fmt::format("there is only stage 0, not {}", stage)
                                       : fmt::format("there are stages 0 to {}, not {}",
                                                     stages - 1, stage));
  }
  std::vector<std::size_t> chosen;
  for (int i = 0; i < stages; ++i) {
    if (stage == -1 || stage == i) chosen.push_back(static_cast<std::size_t>(i));
  }
  return chosen;
}

// ------------------------------------------------------------------------------------ the model

std::string switches_text(const Model& m) {
  std::vector<std::string_view> words;
  const std::string rotary =
      m.rotary_attention_factor == 1
          ? "rotary positions"
          : fmt::format("rotary positions with an attention factor of {:.4g}",
                        m.rotary_attention_factor);
  const std::pair<bool, std::string_view> all[] = {
      {m.learned_positions, "learned positions"},
      {m.rotary, rotary},
      {m.qkv_bias, "qkv biases"},
      {m.attention_output_bias, "attention output bias"},
      {m.mlp_bias, "MLP biases"},
      {m.attention_sinks, "attention sinks"},
      {m.qk_norm, "normalised queries and keys"},
      {m.post_norms, "norms after attention and MLP"},
      {m.tied_embeddings, "tied embeddings"},
      {m.dropout, "dropout"}};
  for (const auto& [is_on, word] : all) {
    if (is_on) words.push_back(word);
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

// "14,336"; or "256 experts of 2,048, 8 a token; one of 2,048 for all tokens; in the first 3 layers
// one of 18,432 alone".
std::string mlp_text(const Model& m) {
  if (m.experts == 0) return grouped(m.ffn);
  std::string text = fmt::format("{} experts of {}, {} a token", grouped(m.experts),
                                 grouped(m.expert_ffn), m.experts_per_token);
  if (m.shared_ffn > 0) text += fmt::format("; one of {} for all tokens", grouped(m.shared_ffn));
  if (m.dense_layers > 0) {
    text += fmt::format("; in the first {} layers one of {} alone", m.dense_layers, grouped(m.ffn));
  }
  return text;
}

// "32 of 128, 8 for keys and values"; "128 of 192, values of 128, made of 512 latents ...".
std::string heads_text(const Model& m) {
  std::string text = fmt::format("{} of {}", m.heads, m.head_dim);
  if (m.latent()) {
    text += fmt::format(", of which {} are shared; values of {}; made of {} latents", m.rotary_dim,
                        m.value_dim, grouped(m.kv_rank));
    if (m.q_rank > 0) text += fmt::format(", queries of {}", grouped(m.q_rank));
  } else if (m.heads != m.kv_heads) {
    text += fmt::format(", {} for keys and values", m.kv_heads);
  }
  if (m.window > 0) text += fmt::format("; a window of {}", grouped(m.window));
  if (m.full_every > 0) text += fmt::format(", but in one layer of {}", m.full_every);
  return text;
}

std::string show_model(const WhatIf& what_if) {
  const Model& m = what_if.model;
  const std::int64_t s = what_if.plan.sequence_length;
  const Json json = write_model(m);
  const auto word = [&](const char* key) { return json.at(key).get<std::string>(); };
  std::string text = fmt::format("{}\n\n", m.name);
  text += align({{"layers", grouped(m.layers)},
                 {"hidden", grouped(m.hidden)},
                 {"heads", heads_text(m)},
                 {"ffn", mlp_text(m)},
                 {"vocabulary", grouped(m.vocabulary)},
                 {"positions", grouped(m.positions)},
                 {"norm", word("norm")},
                 {"activation", word("activation")},
                 {"with", switches_text(m)}},
                "ll");

  // What a model of no layers has is the embedding, the last norm and the head.
  Model bare = m, dense = m;
  bare.layers = bare.dense_layers = 0;
  dense.layers = m.dense_layers;
  const std::int64_t all = parameters(m), outside = parameters(bare);
  const std::int64_t table = m.vocabulary * m.hidden;
  const std::int64_t positions = m.learned_positions ? m.positions * m.hidden : 0;
  const std::int64_t head = m.tied_embeddings ? 0 : table;
  const auto row = [&](std::string name, std::int64_t count) {
    return std::vector<std::string>{
        std::move(name), grouped(count),
        fmt::format("{:.1f} %", 100 * static_cast<double>(count) / static_cast<double>(all))};
  };
  text += "\nparameters\n";
  Rows rows = {row("embedding", table + positions)};
  const std::int64_t of_dense = parameters(dense) - outside;
  if (m.dense_layers > 0) rows.push_back(row("one dense layer", of_dense / m.dense_layers));
  const std::int64_t others = m.layers - m.dense_layers;
  rows.push_back(row(m.experts > 0 ? "one layer of experts" : "one layer",
                     (all - outside - of_dense) / others));
  rows.push_back(row(fmt::format("{} layers", m.layers), all - outside));
  rows.push_back(row("last norm", outside - table - positions - head));
  rows.push_back(row(m.tied_embeddings ? "head (the embedding's table)" : "head", head));
  rows.push_back(row("all", all));
  text += align(rows, "lrr");
  text += fmt::format("\nFLOPs a token, forward and backward, at sequence length {}\n", grouped(s));
  const double half = model_flops_per_token(m, s, true).value;
  const double full = model_flops_per_token(m, s, false).value;
  // A token passes the experts that it takes; the router scores all of them.
  const std::int64_t spared = m.experts - m.experts_per_token;
  Model of_token = m;
  of_token.experts -= spared;
  const std::int64_t passed = parameters(of_token) + spared * m.hidden * m.expert_layers();
  text += align({{"causal half of attention", format_count(half)},
                 {"full attention (Megatron-LM's figures)", format_count(full)},
                 {m.experts > 0 ? "6 x parameters that a token passes" : "6 x parameters",
                  format_count(6 * static_cast<double>(passed))}},
                "lr");
  return text;
}

// ---------------------------------------------------------------------------------- the program

// One stage of the text: lines of the tables stay, of the bodies those that it calls. The numbers
// stay what they are in the whole.
std::string one_stage(const Job& job, std::size_t stage) {
  std::set<BodyId> used;
  for (const Call& call : job.programs[stage].schedule) used.insert(call.body);
  const std::string all = print_job(job);
  std::string text;
  bool keep = true;
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t end = std::min(all.find('\n', at), all.size());
    const std::string_view line = std::string_view(all).substr(at, end - at);
    if (line.starts_with("body &")) {
      const std::string_view number = line.substr(6, line.find(' ', 6) - 6);
      keep = used.contains(static_cast<BodyId>(std::stoi(std::string(number))));
    } else if (line.starts_with("stage ")) {
      keep = line == fmt::format("stage {}", stage);
    }
    if (keep) text.append(line).append("\n");
    if (line == "end") keep = true;
    at = end + 1;
  }
  return text;
}

// ----------------------------------------------------------------------------------- the memory

using LiveCounts = std::vector<std::int64_t>;  // live instances, by TensorId

void apply(const Instruction& instruction, LiveCounts& live) {
  if (const auto* alloc = std::get_if<Alloc>(&instruction)) {
    ++live[static_cast<std::size_t>(alloc->tensor)];
  } else if (const auto* free = std::get_if<Free>(&instruction)) {
    --live[static_cast<std::size_t>(free->tensor)];
  }
}

using LiveChange = std::vector<std::pair<std::size_t, std::int64_t>>;

LiveChange change_of(const Job& job, const Body& body) {
  LiveCounts counts(job.tensors.size());
  for (const Instruction& instruction : body.code) apply(instruction, counts);
  LiveChange change;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] != 0) change.emplace_back(i, counts[i]);
  }
  return change;
}

LiveCounts live_at_peak(const Job& job, const Program& program, const StageMemory& memory) {
  LiveCounts live(job.tensors.size());
  for (const Resident& resident : program.residents) {
    for (const TensorId id : job.resident_sets[static_cast<std::size_t>(resident.set)]) {
      ++live[static_cast<std::size_t>(id)];
    }
  }
  if (memory.peak_instruction < 0) return live;
  std::map<BodyId, LiveChange> changes;
  for (std::int32_t i = 0; i < memory.peak_call; ++i) {
    const BodyId id = program.schedule[static_cast<std::size_t>(i)].body;
    auto found = changes.find(id);
    if (found == changes.end()) {
      const Body& body = job.bodies[static_cast<std::size_t>(id)];
      found = changes.emplace(id, change_of(job, body)).first;
    }
    for (const auto& [tensor, by] : found->second) live[tensor] += by;
  }
  const Call& call = program.schedule[static_cast<std::size_t>(memory.peak_call)];
  const Body& body = job.bodies[static_cast<std::size_t>(call.body)];
  for (std::int32_t i = 0; i <= memory.peak_instruction; ++i) {
    apply(body.code[static_cast<std::size_t>(i)], live);
  }
  return live;
}

// "backward 3, chunk 1, before layer7.gelu": the kernel or message that the memory is for.
std::string moment(const Job& job, const Program& program, const StageMemory& memory) {
  if (memory.peak_instruction < 0) return "at rest, before and after the step";
  const Call& call = program.schedule[static_cast<std::size_t>(memory.peak_call)];
  const Body& body = job.bodies[static_cast<std::size_t>(call.body)];
  std::string text = fmt::format("{} {}", body.name, call.micro_batch);
  if (body.phase == Phase::kOptimizer) text = body.name;
  if (call.chunk > 0) text += fmt::format(", chunk {}", call.chunk);
  for (auto i = static_cast<std::size_t>(memory.peak_instruction); i < body.code.size(); ++i) {
    const Label* label = match(
        body.code[i], [](const Compute& c) { return &c.label; },
        [](const Collective& c) { return &c.label; }, [](const Send& s) { return &s.label; },
        [](const Receive& r) { return &r.label; },
        [](const auto&) { return static_cast<const Label*>(nullptr); });
    if (label != nullptr) return text + fmt::format(", for {}", label_text(job, *label));
  }
  return text;
}

std::string shape_text(const Shape& shape) {
  if (shape.rank == 0) return "scalar";
  return fmt::format("{}", fmt::join(shape.sizes.begin(), shape.sizes.begin() + shape.rank, "x"));
}

// Tensors that differ only in their layer, taken together.
struct TensorGroup {
  Bytes bytes;
  std::int64_t count = 0;
  TensorId tensor = 0;
  std::set<std::int16_t> layers;
};

std::vector<TensorGroup> largest_groups(const Job& job, const LiveCounts& live) {
  using Key = std::tuple<std::int16_t, std::array<std::int64_t, 4>, Dtype, Category>;
  std::map<Key, TensorGroup> groups;
  for (std::size_t i = 0; i < live.size(); ++i) {
    if (live[i] == 0) continue;
    const Tensor& tensor = job.tensors[i];
    TensorGroup& group =
        groups[{tensor.label.name, tensor.shape.sizes, tensor.dtype, tensor.category}];
    group.bytes += tensor.bytes() * live[i];
    group.count += live[i];
    group.tensor = static_cast<TensorId>(i);
    group.layers.insert(tensor.label.layer);
  }
  std::vector<TensorGroup> sorted;
  for (auto& [key, group] : groups) sorted.push_back(std::move(group));
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const TensorGroup& a, const TensorGroup& b) { return a.bytes > b.bytes; });
  return sorted;
}

Rows largest_rows(const Job& job, const std::vector<TensorGroup>& groups) {
  constexpr std::size_t kShown = 12;
  Rows rows = {{"  tensor", "shape", "dtype", "category", "count", "bytes"}};
  Bytes rest;
  std::int64_t rest_count = 0;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const TensorGroup& group = groups[i];
    if (i >= kShown) {
      rest += group.bytes;
      rest_count += group.count;
      continue;
    }
    const Tensor& tensor = job.tensors[static_cast<std::size_t>(group.tensor)];
    const std::string name = group.layers.size() > 1
                                 ? "layer*." + job.names[static_cast<std::size_t>(
                                                   tensor.label.name)]
                                 : label_text(job, tensor.label);
    rows.push_back({"  " + name, shape_text(tensor.shape), std::string(dtype_name(tensor.dtype)),
                    std::string(category_name(tensor.category)), fmt::format("{}", group.count),
                    format_bytes(group.bytes)});
  }
  if (rest_count > 0) {
    rows.push_back({"  others", "", "", "", fmt::format("{}", rest_count), format_bytes(rest)});
  }
  return rows;
}

// What stands between the live tensors and the device's total, and each communicator.
Rows device_rows(const StageMemory& memory, const std::vector<Communicator>& groups) {
  Rows rows = {{"  allocated", format_bytes(memory.peak), "live tensors"}};
  rows.push_back({"  workspace", format_bytes(memory.workspace), "matrix products"});
  rows.push_back({"  cached", format_bytes(memory.reserved - memory.peak - memory.workspace),
                  "rounding, gaps, blocks of other streams"});
  rows.push_back({"  reserved", format_bytes(memory.reserved), "by the caching allocator"});
  for (const Communicator& group : groups) {
    rows.push_back({"  communicator", format_bytes(group.bytes),
                    fmt::format("{}{}, {} ranks in {} {}", axis_set_name(group.axes),
                                group.ends_only ? " ends" : "", group.placement.ranks,
                                group.placement.nodes,
                                group.placement.nodes == 1 ? "node" : "nodes")});
  }
  rows.push_back({"  context", format_bytes(memory.context), "driver, kernels, library code"});
  rows.push_back({"  total", format_bytes(memory.device_total()), "on the device"});
  return rows;
}

std::string show_memory(const WhatIf& what_if, int stage) {
  const Job job = make_job(what_if);
  const Footprint footprint = account(job, what_if.cluster, memory_options(what_if.plan));
  const std::vector<std::vector<Communicator>> groups = communicators(job, what_if.cluster);
  const Bytes capacity = what_if.cluster.device.memory;
  std::string text = fmt::format("memory of one device; {} has {}\n",
                                 what_if.cluster.device.name, format_bytes(capacity));
  if (!footprint.not_modelled.empty()) {
    text += fmt::format("counted as zero, for nothing is published of it: {}\n",
                        fmt::join(footprint.not_modelled, ", "));
  }
  for (const std::size_t i : chosen_stages(job, stage)) {
    const StageMemory& memory = footprint.stages[i];
    const LiveCounts live = live_at_peak(job, job.programs[i], memory);
    const std::vector<TensorGroup> largest = largest_groups(job, live);
    Bytes sum;
    for (const TensorGroup& group : largest) sum += group.bytes;
    STEPCAST_CHECK(sum == memory.peak, "the replay and the account agree on the peak");

    text += fmt::format("\nstage {}: {}{}; most is alive at {}\n", i,
                        format_bytes(memory.device_total()),
                        memory.device_total() <= capacity ? "" : " (does not fit)",
                        moment(job, job.programs[i], memory));
    text += align(device_rows(memory, groups[i]), "lrl");
    Rows rows = {{"alive at the peak", ""}};
    for (std::size_t c = 0; c < kCategories; ++c) {
      rows.push_back({fmt::format("  {}", category_name(static_cast<Category>(c))),
                      format_bytes(memory.at_peak[c])});
    }
    rows.push_back({"  at rest", format_bytes(memory.resident)});
    text += align(rows, "lr");
    text += align(largest_rows(job, largest), "llllrr");
  }
  return text;
}

}  // namespace

int show_command(const ShowArguments& arguments) {
  const std::vector<std::string> kinds = {"model", "program", "cluster", "memory"};
  if (std::find(kinds.begin(), kinds.end(), arguments.what) == kinds.end()) {
    throw Error("show", fmt::format("\"{}\" is nothing to show{}; there are {}", arguments.what,
                                    did_you_mean(arguments.what, kinds), fmt::join(kinds, ", ")));
  }
  const bool has_stages = arguments.what == "program" || arguments.what == "memory";
  if (!has_stages && arguments.stage != -1) {
    throw Error("--stage", fmt::format("a {} has no stages; program and memory have",
                                       arguments.what));
  }
  const WhatIf what_if = read_what_if(arguments.config, arguments.sets);
  std::string text;
  if (arguments.what == "model") text = show_model(what_if);
  if (arguments.what == "cluster") text = cluster_text(what_if.cluster);
  if (arguments.what == "memory") text = show_memory(what_if, arguments.stage);
  if (arguments.what == "program") {
    const Job job = make_job(what_if);
    const std::vector<std::size_t> stages = chosen_stages(job, arguments.stage);
    text = arguments.stage == -1 ? print_job(job) : one_stage(job, stages.front());
  }
  write_file("-", text);
  return 0;
}

}  // namespace stepcast

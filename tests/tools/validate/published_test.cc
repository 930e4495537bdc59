#include "tools/validate/published.h"

#include <map>

#include <gmock/gmock.h>

#include "sim/base/error.h"
#include "tools/validate/report.h"

namespace stepcast {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

// Rows as a person brings them: words, checks and the same thing in several units and all.
constexpr std::string_view kRows = R"j(
{"id": "a-1", "group": "a", "kind_of_row": "measured", "trust": 1, "source_checked": true,
    "source": {"repo": "x/y", "commit": "abc", "path": "t.md", "line": 7}, "model": {"name":
    "gpt-1b", "layers": 24, "hidden": 2048, "heads": 16, "kv_heads": 16, "ffn_hidden": 8192,
    "gated_mlp": false, "vocab": 51200, "seq_len": 2048, "params_billion": 1.3}, "hardware":
    {"gpu": "A100-80GB-SXM", "gpus_total": 8, "gpus_per_node": 8}, "software": {"framework":
    "Megatron-LM", "precision": "bf16", "torch_compile": null, "extra": {"flags":
    {"overlap-grad-reduce": true, "vocab-file": "/data/v.json"}}}, "parallel": {"tp": 2, "pp":
    1, "dp": 4, "sequence_parallel": false, "zero_stage": 0, "micro_batch": 4, "global_batch":
    64}, "recompute": "full", "offload": {}, "measured": {"step_time_s": 2.5,
    "tokens_per_s_per_gpu": 6553.6, "mfu": 0.4, "peak_memory_gib": 20.5, "extra":
    {"peak_memory_bytes": 22011707392}}, "check": {"ratio": 1.0}, "notes": "Memory is that of
    the last rank, as its table says."}

{"id": "a-2", "group": "a", "kind_of_row": "measured", "trust": 1, "source_checked": true,
    "source": {"repo": "x/y", "commit": "abc", "path": "t.md", "line": 8}, "model": {"name":
    "gpt-1b", "layers": 24, "hidden": 2048, "heads": 16, "kv_heads": 16, "ffn_hidden": 8192,
    "gated_mlp": false, "vocab": 51200, "seq_len": 2048}, "hardware": {"gpu": "A100-80GB-SXM",
    "gpus_total": 8, "gpus_per_node": 8}, "software": {"framework": "Megatron-LM", "precision":
    "bf16"}, "parallel": {"tp": 1, "pp": 2, "dp": 4, "zero_stage": 0, "micro_batch": 4,
    "global_batch": 64, "schedule": "1f1b"}, "measured": {"step_time_s": 2.75,
    "tokens_per_s_per_gpu": 5957.8, "extra": {"step_time_is_derived": true,
    "peak_allocated_mib_by_rank": {"0": 20000, "1": 21000}}}, "notes": "No words of it are
    kept."}

{"id": "a-3", "group": "a", "kind_of_row": "analytic", "trust": 4, "source": {"repo":
    "x/y"}, "model": {"name": "gpt-1b"}, "hardware": {"gpu": "A100-80GB-SXM"}, "parallel":
    {"tp": 1}, "measured": {"step_time_s": 1}}

{"id": "b-1", "group": "b", "source": {"url": "https://a.b/c"}, "model": {"name":
    "llama3-8b", "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn_hidden": 14336,
    "gated_mlp": true, "vocab": 128256, "seq_len": 8192}, "hardware": {"gpu": "H100-80GB-SXM",
    "gpus_total": 8}, "software": {"framework": "FSDP2"}, "parallel": {"tp": 1, "pp": 1,
    "zero_stage": 3, "fsdp_mode": "FSDP2 shard=8", "micro_batch": 1, "global_batch": 8},
    "measured": {"tokens_per_s_per_gpu": 7000}, "notes": "LoRA: base weights are frozen"}
)j";

// A row a line, as JSON lines have it.
std::string json_lines(std::string_view text) {
  std::string lines;
  for (std::size_t i = 1; i + 1 < text.size(); ++i) {
    const bool end = text[i] == '\n';
    if (end && text[i + 1] == '\n') continue;
    lines += end && text[i - 1] != '\n' ? ' ' : text[i];
  }
  return lines;
}

const std::string& rows_text() {
  static const std::string lines = json_lines(kRows);
  return lines;
}

const Published& published() {
  static const Published all = publish(read_rows(rows_text(), "runs.jsonl"));
  return all;
}

const PublishedGroup& group(const std::string& name) {
  for (const PublishedGroup& one : published().groups) {
    if (one.group == name) return one;
  }
  throw Error(name, "is not published");
}

// Everything that validation says of a row, but for its place.
TEST(Published, MapsAsTheRowsThatItWasWrittenFrom) {
  const Shipped shipped = read_shipped();
  std::map<std::string, std::string> of_source, of_file;
  const auto say = [](const std::vector<ValidationRow>& rows, auto& into) {
    const Json json = validation_json(rows);
    for (const Json& row : json.at("rows")) into[row.at("id").get<std::string>()] = row.dump();
  };
  say(validate_lines(rows_text(), "runs.jsonl", shipped), of_source);
  for (const PublishedGroup& one : published().groups) {
    say(validate_rows(read_published(one.text, one.group), shipped), of_file);
  }
  of_source.erase("a-3");
  EXPECT_EQ(of_file, of_source);
  EXPECT_THAT(of_file.at("a-1"), HasSubstr("last rank"));
  EXPECT_THAT(of_file.at("b-1"), HasSubstr("\"group\":\"b\""));
}

TEST(Published, KeepsFactsAndNoWords) {
  const std::string& text = group("a").text;
  for (const char* gone : {"as its table says", "No words", "ratio", "mfu", "params_billion",
                           "v.json", "peak_memory_gib", "6553.6", "kind_of_row"}) {
    EXPECT_THAT(text, Not(HasSubstr(gone)));
  }
  // A step time that was computed from a rate does not replace it.
  EXPECT_THAT(text, HasSubstr("5957.8"));
  EXPECT_THAT(published().not_taken, Contains("measured.mfu"));
}

TEST(Published, CountsWhatIsNoEvidence) {
  EXPECT_EQ(group("a").rows, 2);
  EXPECT_EQ(group("a").left_out, 1);
  EXPECT_THAT(group("a").text, HasSubstr("not a measurement: analytic"));
  EXPECT_EQ(group("b").left_out, 0);
}

TEST(Published, WritesARowALine) {
  const std::string& text = group("a").text;
  EXPECT_THAT(text, HasSubstr("\n    [\"a-1\","));
  EXPECT_THAT(text, HasSubstr("\n    [\"a-2\","));
}

std::string file_with(const std::string& shared, const std::string& columns,
                      const std::string& rows) {
  return R"({"format": "stepcast.published/1", "group": "g", "left_out": [],
"shared": {"source.repo": "x/y", "model.name": "m", "hardware.gpu": "H100", "parallel.tp": 1)" +
         shared + R"(},
"columns": ["id", "measured.step_time_s")" +
         columns + R"(],
"rows": [
)" + rows +
         "\n]}\n";
}

std::string published_trouble(const std::string& text) {
  try {
    read_published(text, "g.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Published, NamesTheLineAndTheFactOfATrouble) {
  EXPECT_EQ(published_trouble(file_with("", "", R"(["r", 1])")), "");
  EXPECT_THAT(published_trouble(file_with("", "", "[\"r\", 1],\n[\"s\", -1]")),
              HasSubstr("g.json:6: rows: \"measured.step_time_s\" must be a number above 0"));
  EXPECT_THAT(published_trouble(file_with("", ", \"model.layer\"", R"(["r", 1, 2])")),
              HasSubstr("g.json:3: columns: \"model.layer\" is no fact of a run (did you mean "
                        "\"model.layers\"?)"));
  EXPECT_THAT(published_trouble(file_with(", \"model.hidden\": \"x\"", "", R"(["r", 1])")),
              HasSubstr("\"model.hidden\" must be a whole number"));
  EXPECT_THAT(published_trouble(file_with("", "", R"(["r"])")), HasSubstr("a list of 2 values"));
  EXPECT_THAT(published_trouble(file_with("", ", \"id\"", R"(["r", 1, "s"])")),
              HasSubstr("told twice"));
  EXPECT_THAT(published_trouble(file_with("", "", R"(["r", 1, {"parallel.tp": 2}])")),
              HasSubstr("\"parallel.tp\" is told twice"));
  EXPECT_THAT(published_trouble(file_with("", "", R"(["r", 1, {"notes": "many words"}])")),
              HasSubstr("\"notes\" may hold"));
  EXPECT_THAT(published_trouble(file_with(
                  "", "", R"(["r", 1, {"software.extra.a": 1, "software.extra.a.b": 2}])")),
              HasSubstr("\"software.extra.a.b\" lies within another fact"));
}

TEST(Published, RefusesARowThatSaysTooLittle) {
  EXPECT_THAT(published_trouble(file_with("", "", R"([null, 1])")), HasSubstr("\"id\" is missing"));
  EXPECT_THAT(published_trouble(file_with("", "", R"(["r", null])")),
              HasSubstr("nothing is measured"));
  EXPECT_THAT(published_trouble(file_with("", "", R"(["r", 1, {"trust": 3}])")),
              HasSubstr("no evidence: its source is not trusted"));
  EXPECT_THAT(published_trouble(file_with("", "", "[\"r\", 1],\n[\"r\", 2]")),
              HasSubstr("g.json:6: the id \"r\" stands at g.json:5 too"));
}

// What is in the repository: read whole, and about as many rows as its README says.
TEST(Published, ShipsTheRunsThatItsReadmeCounts) {
  const std::vector<PlacedRow> rows = shipped_runs();
  EXPECT_GT(rows.size(), 1000u);
}

}  // namespace
}  // namespace stepcast

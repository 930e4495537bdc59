// Explain: the table of fields, one entry at a time. A key is found as it is, then as the last
// component of paths ("tensor"), then as a section; else the nearest one is named. Case and the
// spelling of terms ("micro batch") do not matter. Cost: linear in the table.
#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/base/error.h"
#include "tools/base/files.h"
#include "tools/base/text.h"
#include "tools/commands/commands.h"
#include "tools/commands/fields.h"

namespace stepcast {
namespace {

std::string plain_key(std::string_view key) {
  std::string text = lower(key);
  for (char& c : text) c = c == '-' || c == ' ' ? '_' : c;
  return text;
}

// "memory.stages[].peak_at" may be asked for as "memory.stages.peak_at" or with a number.
std::string plain_path(std::string_view path) {
  std::string text;
  bool inside = false;
  for (const char c : plain_key(path)) {
    if (c == '[') inside = true;
    if (!inside) text += c;
    if (c == ']') inside = false;
  }
  return text;
}

std::string_view topic_text(Topic topic) {
  switch (topic) {
    case Topic::kWhatIf: return "what-if file";
    case Topic::kReport: return "report";
    case Topic::kTerm: return "term";
  }
  STEPCAST_CHECK(false, "a topic out of range");
}

std::string any_of(const Field& field) {
  return fmt::format("{}", fmt::join(split_words(field.words), " | "));
}

std::string form_text(const Field& field) {
  switch (field.form) {
    case Form::kNone: return "";
    case Form::kObject: return "object";
    case Form::kList: return "list";
    case Form::kText: return "text";
    case Form::kWord: return any_of(field);
    case Form::kCount:
      return field.topic == Topic::kReport
                 ? "whole number"
                 : fmt::format("whole number, {} to {}", field.limits.least, field.limits.most);
    case Form::kNumber: return "number";
    case Form::kSwitch: return "true | false";
    case Form::kBytes: return "bytes with a unit, such as \"200 MB\" or \"1 GiB\"";
    case Form::kTime: return "time with a unit, such as \"5 us\"";
    case Form::kBandwidth: return "bandwidth with a unit, such as \"400 Gb/s\" or \"50 GB/s\"";
    case Form::kByteLimit: return "upper limit, such as \"<= 76 GiB\"";
    case Form::kTimeLimit: return "upper limit, such as \"<= 12 s\"";
    case Form::kNameOrObject: return "name, path or object";
    case Form::kWordOrObject: return any_of(field) + " | an object of one key";
    case Form::kWordOrCounts: return any_of(field) + " | a list of whole numbers";
    case Form::kWords: return "list of " + any_of(field);
    case Form::kCountOrText: return "whole number, or text such as \"300B\"";
  }
  STEPCAST_CHECK(false, "a form out of range");
}

// `text` in lines of at most 100 columns behind a head of twelve.
std::string paragraph(std::string_view head, std::string_view text) {
  if (text.empty()) return "";
  constexpr std::size_t kColumns = 88;
  std::string out, line;
  const auto flush = [&] {
    out += fmt::format("  {:<9} {}\n", out.empty() ? head : "", line);
    line.clear();
  };
  for (const std::string& word : split_words(text)) {
    if (!line.empty() && line.size() + 1 + word.size() > kColumns) flush();
    if (!line.empty()) line += ' ';
    line += word;
  }
  flush();
  return out;
}

std::string entry(const std::vector<Field>& fields, const Field& field) {
  std::string text = fmt::format("{} ({})\n", field.path, topic_text(field.topic));
  text += paragraph("is", field.meaning);
  text += paragraph("form", form_text(field));
  if (field.topic == Topic::kWhatIf) {
    text += paragraph("left out", field.otherwise.empty() ? "an error" : field.otherwise);
  }
  text += paragraph("effect", field.effect);
  const std::vector<Field> members = children(fields, field);
  if (members.empty()) return text;
  text += "  with\n";
  for (const Field& member : members) {
    text += fmt::format("    {:<40} {}\n", member.path, form_text(member));
  }
  return text;
}

std::vector<Field> find_fields(const std::vector<Field>& fields, std::string_view key) {
  std::vector<Field> found;
  const std::string wanted = plain_path(key);
  for (const Field& field : fields) {
    if (plain_path(field.path) == wanted) found.push_back(field);
  }
  if (!found.empty()) return found;
  for (const Field& field : fields) {
    if (plain_key(last_component(field.path)) == wanted) found.push_back(field);
  }
  return found;
}

}  // namespace

std::string explanation(std::string_view key) {
  const std::vector<Field> fields = all_fields();
  const std::vector<Field> found = find_fields(fields, key);
  if (found.empty()) {
    std::vector<std::string> names;
    for (const Field& field : fields) {
      names.emplace_back(field.path);
      names.emplace_back(last_component(field.path));
    }
    throw Error("explain", fmt::format("no key or term is called \"{}\"{}; `stepcast schema` has "
                                       "all keys of the what-if file",
                                       key, did_you_mean(key, names)));
  }
  std::string text;
  for (const Field& field : found) {
    if (!text.empty()) text += '\n';
    text += entry(fields, field);
  }
  return text;
}

int explain_command(const std::string& key) {
  write_file("-", explanation(key));
  return 0;
}

}  // namespace stepcast

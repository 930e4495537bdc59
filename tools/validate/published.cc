// Writing sorts out what all rows share, what most state, and the rest; reading puts it together
// again. A row is one line of the file, so that a change of one run is a change of one line. Linear
// in the facts.
#include "tools/validate/published.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/base/error.h"
#include "tools/base/files.h"
#include "tools/validate/fields.h"
#include "tools/validate/published_facts.h"

namespace stepcast {
namespace {

constexpr std::string_view kPublishedFormat = "stepcast.published/1";
constexpr std::string_view kFolder = "published";

// What words of a source decide how its numbers are read; no other ones are kept.
constexpr std::string_view kLastRank = "last rank", kAdapters = "lora";

// ----------------------------------------------------------------------------------------- facts

using Facts = Json;  // an object: name -> value

void collect(const Json& value, const std::string& name, const std::string& place, Facts& facts) {
  if (value.is_null()) return;
  if (!value.is_object()) {
    facts[name] = value;
    return;
  }
  for (const auto& [key, member] : value.items()) {
    if (key.find('.') != std::string::npos) {
      throw Error(place, fmt::format("the key \"{}\" must not hold a dot", key));
    }
    collect(member, name.empty() ? key : name + "." + key, place, facts);
  }
}

std::string note_words(const std::string& notes) {
  const std::string text = lower(notes);
  std::vector<std::string_view> words;
  if (text.starts_with(kAdapters)) words.push_back(kAdapters);
  if (has(text, kLastRank)) words.push_back(kLastRank);
  return fmt::format("{}", fmt::join(words, "; "));
}

// What is kept of a row. `not_taken` learns the other fields.
Facts facts_of(const PlacedRow& row, std::set<std::string>& not_taken) {
  Facts all = Json::object(), kept = Json::object();
  collect(row.row, "", row.place, all);
  if (all.contains("notes") && all["notes"].is_string()) {
    const std::string words = note_words(all["notes"].get<std::string>());
    all.erase("notes");
    if (!words.empty()) all["notes"] = words;
  }
  for (const auto& [name, value] : all.items()) {
    if (name == "group") continue;  // the file's
    if (!is_fact(name) || is_derived(name, all)) {
      not_taken.insert(name);
      continue;
    }
    if (value.is_string() && value.get_ref<const std::string&>().empty()) continue;
    const std::string fault = fact_fault(name, value);
    if (!fault.empty()) throw Error(row.place, fmt::format("{} {}", name, fault));
    kept[name] = value;
  }
  return kept;
}

bool measures(const Facts& facts) {
  for (const auto& [name, value] : facts.items()) {
    if (name.starts_with("measured.") && value.is_number()) return true;
  }
  return false;
}

void put_fact(Json& row, std::string_view name, const Json& value, const std::string& place) {
  const std::string_view whole = name;
  Json* at = &row;
  for (std::size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.')) {
    at = &(*at)[std::string(name.substr(0, dot))];
    if (!at->is_null() && !at->is_object()) {
      throw Error(place, fmt::format("\"{}\" lies within another fact", whole));
    }
    name.remove_prefix(dot + 1);
  }
  Json& leaf = (*at)[std::string(name)];
  if (!leaf.is_null()) throw Error(place, fmt::format("\"{}\" is told twice", whole));
  leaf = value;
}

// --------------------------------------------------------------------------------------- writing

// Names in the order of the table; those of a family as the rows have them.
std::vector<std::string> ordered_names(const std::vector<Facts>& rows) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const Facts& facts : rows) {
    for (const auto& [name, value] : facts.items()) {
      if (seen.insert(name).second) names.push_back(name);
    }
  }
  std::stable_sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return fact_order(a) < fact_order(b);
  });
  return names;
}

struct Layout {
  std::vector<std::string> shared, columns;  // names; what is in neither is rare
};

Layout layout_of(const std::vector<Facts>& rows) {
  constexpr std::size_t kOften = 3;  // a column where one row in three has it
  Layout layout;
  for (const std::string& name : ordered_names(rows)) {
    const auto having = static_cast<std::size_t>(
        std::count_if(rows.begin(), rows.end(), [&](const Facts& f) { return f.contains(name); }));
    const bool same = having == rows.size() && name != "id" &&
                      std::all_of(rows.begin(), rows.end(), [&](const Facts& facts) {
                        return facts[name] == rows.front()[name];
                      });
    if (same) layout.shared.push_back(name);
    if (!same && having * kOften >= rows.size()) layout.columns.push_back(name);
  }
  return layout;
}

std::string row_line(const Facts& facts, const Layout& layout) {
  Json line = Json::array(), rare = facts;
  for (const std::string& name : layout.shared) rare.erase(name);
  for (const std::string& name : layout.columns) {
    line.push_back(facts.contains(name) ? facts[name] : Json(nullptr));
    rare.erase(name);
  }
  if (!rare.empty()) line.push_back(std::move(rare));
  return line.dump();
}

std::string indented_json(const Json& value) {
  std::string text;
  for (const char c : value.dump(2)) text += c == '\n' ? std::string("\n  ") : std::string(1, c);
  return text;
}

std::string group_text(const std::string& group, const std::vector<Facts>& rows,
                       const std::map<std::string, int>& left_out) {
  const Layout layout = layout_of(rows);
  Json shared = Json::object(), counts = Json::array();
  for (const std::string& name : layout.shared) shared[name] = rows.front()[name];
  for (const auto& [because, count] : left_out) {
    counts.push_back({{"rows", count}, {"because", because}});
  }
  std::string text = fmt::format(
      "{{\n  \"format\": \"{}\",\n  \"group\": {},\n  \"left_out\": {},\n  \"shared\": {},\n"
      "  \"columns\": {},\n  \"rows\": [",
      kPublishedFormat, Json(group).dump(), indented_json(counts), indented_json(shared),
      indented_json(Json(layout.columns)));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    text += (i > 0 ? ",\n    " : "\n    ") + row_line(rows[i], layout);
  }
  return text + (rows.empty() ? "]\n}\n" : "\n  ]\n}\n");
}

// --------------------------------------------------------------------------------------- reading

// Why `words` are not those that note_words() writes; "" if they are.
std::string notes_fault(const std::string& words) {
  if (!words.empty() && note_words(words) == words) return "";
  return fmt::format("may hold \"{}\" and \"{}\", joined by \"; \", and nothing else", kAdapters,
                     kLastRank);
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& file) : document_(parse_json(text, file)) {}

  std::vector<PlacedRow> rows(std::string& group, std::vector<LeftOut>& left_out) const {
    const Object root(document_);
    const std::string format = root.string("format");
    if (format != kPublishedFormat)
      root.fail("format", fmt::format("must be \"{}\"", kPublishedFormat));
    group = root.string("group");
    for (std::size_t i = 0; i < root.array_size("left_out"); ++i) {
      const Object one = root.element("left_out", i);
      left_out.push_back(
          {group, one.string("because"), static_cast<int>(one.integer("rows", {1, 1'000'000}))});
      one.done();
    }
    const Json& shared = root.at("shared");
    if (!shared.is_object()) root.fail("shared", "must be an object");
    for (const auto& [name, value] : shared.items()) {
      check_fact(name, value, line_of("/shared"), "shared");
    }
    const Json& columns = root.at("columns");
    const std::size_t width = root.array_size("columns");
    for (std::size_t i = 0; i < width; ++i) check_column(columns, i, shared);
    const Json& values = root.at("rows");
    std::vector<PlacedRow> rows;
    for (std::size_t i = 0; i < root.array_size("rows"); ++i) {
      const std::string place = line_of(fmt::format("/rows/{}", i));
      rows.push_back({expand(values[i], shared, columns, place), place});
      rows.back().row["group"] = group;
    }
    root.done();
    return rows;
  }

 private:
  std::string line_of(const std::string& pointer) const {
    const auto found = document_.lines.find(pointer);
    return fmt::format("{}:{}", document_.file, found == document_.lines.end() ? 1 : found->second);
  }

  static void check_fact(const std::string& name, const Json& value, const std::string& place,
                         const std::string& where) {
    std::string fault = fact_fault(name, value);
    if (fault.empty() && name == "notes") fault = notes_fault(value.get<std::string>());
    if (fault.empty()) return;
    const std::string hint = is_fact(name) ? "" : did_you_mean(name, fact_names());
    throw Error(fmt::format("{}: {}", place, where), fmt::format("\"{}\" {}{}", name, fault, hint));
  }

  void check_column(const Json& columns, std::size_t i, const Json& shared) const {
    const std::string place = line_of(fmt::format("/columns/{}", i)) + ": columns";
    if (!columns[i].is_string()) throw Error(place, "must be names of facts");
    const std::string name = columns[i].get<std::string>();
    if (!is_fact(name)) {
      throw Error(place, fmt::format("\"{}\" is no fact of a run{}", name,
                                     did_you_mean(name, fact_names())));
    }
    const auto first = std::find(columns.begin(), columns.end(), columns[i]);
    if (first != columns.begin() + static_cast<std::ptrdiff_t>(i) || shared.contains(name)) {
      throw Error(place, fmt::format("\"{}\" is told twice", name));
    }
  }

  static Json expand(const Json& values, const Json& shared, const Json& columns,
                     const std::string& place) {
    const std::size_t width = columns.size();
    const bool more = values.is_array() && values.size() == width + 1 && values.back().is_object();
    if (!values.is_array() || (values.size() != width && !more)) {
      throw Error(place, fmt::format("must be a list of {} values, one a column, and perhaps an "
                                     "object of more facts",
                                     width));
    }
    Json row = Json::object();
    for (const auto& [name, value] : shared.items()) put_fact(row, name, value, place);
    for (std::size_t i = 0; i < width; ++i) {
      if (values[i].is_null()) continue;
      const std::string name = columns[i].get<std::string>();
      check_fact(name, values[i], place, "rows");
      put_fact(row, name, values[i], place);
    }
    if (!more) return row;
    for (const auto& [name, value] : values.back().items()) {
      check_fact(name, value, place, "rows");
      if (shared.contains(name) ||
          std::find(columns.begin(), columns.end(), name) != columns.end()) {
        throw Error(place, fmt::format("\"{}\" is told twice", name));
      }
      put_fact(row, name, value, place);
    }
    return row;
  }

  Document document_;
};

// A row that says who measured what on which device.
void check_row(const PlacedRow& placed) {
  const Json& row = placed.row;
  const auto text = [&](const char* section, const char* key) {
    const Json* object = member(row, section);
    return object == nullptr ? std::string() : text_of(*object, key);
  };
  if (text_of(row, "id").empty()) throw Error(placed.place, "\"id\" is missing");
  if (text("source", "repo").empty() && text("source", "url").empty()) {
    throw Error(placed.place, "\"source.repo\" or \"source.url\" is missing");
  }
  if (text("hardware", "gpu").empty()) throw Error(placed.place, "\"hardware.gpu\" is missing");
  if (text("model", "name").empty()) throw Error(placed.place, "\"model.name\" is missing");
  if (member(row, "parallel") == nullptr) {
    throw Error(placed.place, "the facts of its \"parallel\" layout are missing");
  }
  if (member(row, "measured") == nullptr) throw Error(placed.place, "nothing is measured");
  if (const std::string why = doubt(row); !why.empty()) {
    throw Error(placed.place, fmt::format("the row is no evidence: {}", why));
  }
}

void check_rows(const std::vector<PlacedRow>& rows, std::map<std::string, std::string>& ids) {
  for (const PlacedRow& placed : rows) {
    check_row(placed);
    const auto [at, fresh] = ids.emplace(text_of(placed.row, "id"), placed.place);
    if (!fresh) {
      throw Error(placed.place,
                  fmt::format("the id \"{}\" stands at {} too", at->first, at->second));
    }
  }
}

// Published groups only: causes and errors lie beside them.
std::vector<std::string> shipped_groups() {
  std::vector<std::string> names = config_names(std::string(kFolder));
  std::erase_if(names, [](const std::string& n) { return n == "causes" || n == "errors"; });
  return names;
}

void read_groups(std::vector<PlacedRow>& all, std::vector<LeftOut>& left_out) {
  std::map<std::string, std::string> ids;
  for (const std::string& name : shipped_groups()) {
    const std::string path = find_config(std::string(kFolder), name, "validate");
    std::string group;
    std::vector<PlacedRow> rows = Reader(read_file(path), path).rows(group, left_out);
    if (group != name) {
      throw Error(path, fmt::format("holds the group \"{}\", so it must be {}.json", group, group));
    }
    check_rows(rows, ids);
    std::move(rows.begin(), rows.end(), std::back_inserter(all));
  }
}

}  // namespace

std::vector<PlacedRow> read_published(std::string_view text, const std::string& file) {
  std::string group;
  std::vector<LeftOut> left_out;
  std::map<std::string, std::string> ids;
  std::vector<PlacedRow> rows = Reader(text, file).rows(group, left_out);
  check_rows(rows, ids);
  return rows;
}

std::vector<PlacedRow> shipped_runs() {
  std::vector<PlacedRow> rows;
  std::vector<LeftOut> left_out;
  read_groups(rows, left_out);
  return rows;
}

std::vector<LeftOut> shipped_left_out() {
  std::vector<PlacedRow> rows;
  std::vector<LeftOut> left_out;
  read_groups(rows, left_out);
  return left_out;
}

Published publish(const std::vector<PlacedRow>& rows) {
  struct PublishedRows {
    std::vector<Facts> facts;
    std::map<std::string, int> left_out;
  };
  std::map<std::string, PublishedRows> groups;
  std::set<std::string> not_taken;
  for (const PlacedRow& placed : rows) {
    const std::string name = text_of(placed.row, "group");
    constexpr std::string_view kLegal = "abcdefghijklmnopqrstuvwxyz0123456789-.";
    if (name.empty() || name.find_first_not_of(kLegal) != std::string::npos) {
      throw Error(placed.place, "\"group\" must be a name of lower-case letters, digits and '-'");
    }
    PublishedRows& group = groups[name];
    std::string why = doubt(placed.row);
    Facts facts = why.empty() ? facts_of(placed, not_taken) : Facts();
    if (why.empty() && !measures(facts)) why = "neither a time, a rate nor memory is stated";
    if (why.empty()) {
      group.facts.push_back(std::move(facts));
    } else {
      ++group.left_out[why];
    }
  }
  Published published;
  published.not_taken.assign(not_taken.begin(), not_taken.end());
  for (const auto& [name, group] : groups) {
    int left_out = 0;
    for (const auto& [because, count] : group.left_out) left_out += count;
    published.groups.push_back({name, group_text(name, group.facts, group.left_out),
                                static_cast<int>(group.facts.size()), left_out});
    read_published(published.groups.back().text, name + ".json");  // what is written can be read
  }
  return published;
}

}  // namespace stepcast

// The rules of the house, read out of the sources: who may include whom, and how a file looks.
//
// Each rule is a function of one file's text, so that it is itself tested on small wrong examples
// first; then every rule reads the whole tree. A complaint names file, line and rule.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace {

namespace fs = std::filesystem;

struct Source {
  std::string path;  // from the root: "sim/base/json.h"
  std::vector<std::string> lines;
};

struct Complaint {
  std::string path;
  std::size_t line = 0;  // 1 is the first
  std::string rule;
  bool operator==(const Complaint&) const = default;
};
using Complaints = std::vector<Complaint>;

void PrintTo(const Complaint& complaint, std::ostream* out) {
  *out << complaint.path << ":" << complaint.line << ": " << complaint.rule;
}

std::string to_text(const Complaints& complaints) {
  std::string text;
  for (const Complaint& c : complaints) {
    text += "\n" + c.path + ":" + std::to_string(c.line) + ": " + c.rule;
  }
  return text;
}

// ------------------------------------------------------------------------------ the floors

// What a folder may include besides itself and the standard library. A folder below another (the
// cuda of execute) may what that one may, and what its own row adds. An entry is the beginning of
// an include path; libraries from outside stand in angle brackets.
struct Floor {
  std::string_view folder;
  std::vector<std::string_view> may_include;
};

const std::vector<Floor>& floors() {
  static const std::vector<Floor> table = {
      {"sim/base", {"<fmt/"}},
      {"sim/base/json.", {"<nlohmann/"}},
      {"sim/program", {"sim/base/", "<fmt/"}},
      // op.h only for Dtype: a device's rates are given by data type.
      {"sim/hardware", {"sim/base/", "sim/program/op.h", "<fmt/"}},
      {"sim/hardware/topology.", {"<boost/graph/"}},
      {"sim/cost", {"sim/base/", "sim/program/", "sim/hardware/", "<fmt/"}},
      {"sim/network", {"sim/base/", "sim/program/", "sim/hardware/", "<fmt/"}},
      {"sim/result", {"sim/base/", "sim/program/", "sim/hardware/", "<fmt/"}},
      {"sim/engine", {"sim/", "<fmt/"}},
      {"models", {"sim/base/", "sim/program/", "<fmt/"}},
      {"execute", {"sim/base/", "sim/program/", "sim/result/", "<fmt/", "<mpi.h>"}},
      {"execute/progress.", {"<sys/", "<unistd.h>"}},
      {"execute/cpu", {"<dnnl", "<oneapi/dnnl/", "<omp.h>"}},
      {"execute/cuda", {"<cuda", "<cublas", "<nccl", "<mma.h>", "<dlfcn.h>"}},
      {"calibrate",
       {"execute/", "sim/base/", "sim/program/", "sim/cost/", "sim/hardware/", "sim/result/",
        "<fmt/", "<benchmark/", "<nlopt.hpp>"}},
      {"tools/base", {"sim/base/", "<fmt/", "<unistd.h>"}},
      {"tools/whatif",
       {"tools/base/", "sim/", "models/", "execute/", "<fmt/", "<sched.h>", "<unistd.h>"}},
      {"tools/forecast", {"tools/base/", "tools/whatif/", "sim/", "models/", "<fmt/"}},
      {"tools/search",
       {"tools/base/", "tools/whatif/", "tools/forecast/", "sim/", "models/", "<fmt/",
        "<unistd.h>"}},
      {"tools/time", {"tools/base/", "tools/whatif/", "tools/forecast/", "sim/", "<fmt/"}},
      {"tools/validate",
       {"tools/base/", "tools/whatif/", "tools/forecast/", "tools/time/", "sim/", "models/",
        "calibrate/", "<fmt/"}},
      {"tools/import",
       {"tools/base/", "tools/whatif/", "tools/time/", "tools/validate/", "sim/", "models/",
        "calibrate/", "<fmt/"}},
      {"tools/import/topology_xml.", {"<pugixml.hpp>"}},
      {"tools/compare",
       {"tools/base/", "tools/whatif/", "tools/forecast/", "sim/", "calibrate/", "<fmt/"}},
      {"tools/compare/measured_trace.", {"<simdjson.h>"}},
      {"tools/compare/measured_files.", {"<zlib.h>"}},
      {"tools/run",
       {"tools/base/", "tools/whatif/", "tools/forecast/", "tools/compare/", "sim/", "models/",
        "execute/", "calibrate/", "<fmt/", "<unistd.h>"}},
      {"tools/commands",
       {"tools/base/", "tools/whatif/", "tools/forecast/", "sim/", "models/", "<fmt/"}},
      {"tools/cli.", {"tools/", "sim/base/", "<fmt/", "<CLI/"}},
      {"tools/options.", {"tools/", "<CLI/"}},
      {"tools/main.", {"tools/cli.h"}},
  };
  return table;
}

// "sim/base/json.h" lies in the folder "sim/base" and under the prefix "sim/base/json.".
bool lies_in(std::string_view path, std::string_view folder) {
  if (!path.starts_with(folder)) return false;
  return folder.ends_with('.') || path.substr(folder.size()).starts_with('/');
}

// <vector>, <cstdint>: no folder and no suffix.
bool is_standard(std::string_view header) {
  return header.starts_with('<') && header.find_first_of("/.") == std::string_view::npos;
}

// The header of an #include line: <vector> with its brackets, "a/b.h" without quotes; or "".
std::string included(std::string_view line) {
  const std::size_t hash = line.find_first_not_of(' ');
  if (hash == std::string_view::npos || line[hash] != '#') return "";
  const std::size_t word = line.find_first_not_of(' ', hash + 1);
  if (word == std::string_view::npos || !line.substr(word).starts_with("include")) return "";
  const std::size_t open = line.find_first_of("<\"", word);
  if (open == std::string_view::npos) return "";
  const std::size_t close = line.find(line[open] == '<' ? '>' : '"', open + 1);
  if (close == std::string_view::npos) return "";
  return std::string(line[open] == '<' ? line.substr(open, close - open + 1)
                                       : line.substr(open + 1, close - open - 1));
}

Complaints check_floors(const Source& source) {
  // tests/ know everything; what lies in no folder of the table has no business with sources.
  if (source.path.starts_with("tests/")) return {};
  std::vector<const Floor*> rows;
  for (const Floor& floor : floors()) {
    if (lies_in(source.path, floor.folder)) rows.push_back(&floor);
  }
  if (rows.empty()) return {{source.path, 1, "its folder has no row in the table of floors"}};

  const auto allowed = [&](std::string_view header) {
    if (is_standard(header)) return true;
    return std::any_of(rows.begin(), rows.end(), [&](const Floor* row) {
      return lies_in(header, row->folder) ||
             std::any_of(row->may_include.begin(), row->may_include.end(),
                         [&](std::string_view entry) { return header.starts_with(entry); });
    });
  };
  Complaints complaints;
  for (std::size_t i = 0; i < source.lines.size(); ++i) {
    const std::string header = included(source.lines[i]);
    if (header.empty() || allowed(header)) continue;
    complaints.push_back(
        {source.path, i + 1, std::string(rows.front()->folder) + " may not include " + header});
  }
  return complaints;
}

// ------------------------------------------------------------------------- the look of a file

constexpr std::size_t kColumnsMax = 100;
constexpr std::size_t kLinesMax = 500;
constexpr std::size_t kTestLinesMax = 650;

bool is_header(std::string_view path) { return path.ends_with(".h") || path.ends_with(".cuh"); }

// Characters of UTF-8 text: bytes that do not continue one.
std::size_t columns(std::string_view line) {
  return static_cast<std::size_t>(std::count_if(line.begin(), line.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0u) != 0x80u;
  }));
}

Complaints check_layout(const Source& source) {
  Complaints complaints;
  for (std::size_t i = 0; i < source.lines.size(); ++i) {
    const std::string& line = source.lines[i];
    const auto complain = [&](std::string rule) {
      complaints.push_back({source.path, i + 1, std::move(rule)});
    };
    if (columns(line) > kColumnsMax) {
      complain(std::to_string(columns(line)) + " columns; at most " + std::to_string(kColumnsMax));
    }
    if (line.find('\t') != std::string::npos) complain("a tab; indent with spaces");
    if (line.ends_with(' ') || line.ends_with('\r')) complain("blanks at the end of the line");
  }
  const std::size_t most = source.path.starts_with("tests/") ? kTestLinesMax : kLinesMax;
  if (source.lines.size() > most) {
    complaints.push_back({source.path, source.lines.size(),
                          std::to_string(source.lines.size()) + " lines; at most " +
                              std::to_string(most) + ": is there more than one idea inside?"});
  }
  return complaints;
}

// A file opens by saying what it is; a header is read once.
Complaints check_opening(const Source& source) {
  Complaints complaints;
  const bool prose = !source.path.starts_with("tests/") || is_header(source.path);
  if (prose && (source.lines.empty() || !source.lines.front().starts_with("//"))) {
    complaints.push_back({source.path, 1, "must begin with a comment: what this is"});
  }
  if (is_header(source.path) &&
      std::find(source.lines.begin(), source.lines.end(), "#pragma once") == source.lines.end()) {
    complaints.push_back({source.path, 1, "a header needs #pragma once"});
  }
  return complaints;
}

// ---------------------------------------------------------------------------------- the words

bool is_word(char c) { return c == '_' || std::isalnum(static_cast<unsigned char>(c)) != 0; }

// Whether `text` holds `word`, not as a part of a longer one.
bool has_word(std::string_view text, std::string_view word) {
  for (std::size_t at = text.find(word); at != std::string_view::npos;
       at = text.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    const bool starts = at == 0 || !is_word(word.front()) || !is_word(text[at - 1]);
    const bool ends = end == text.size() || !is_word(word.back()) || !is_word(text[end]);
    if (starts && ends) return true;
  }
  return false;
}

Complaints check_words(const Source& source) {
  if (source.path == "tests/house_test.cc") return {};  // has to spell them
  static const std::vector<std::string> unfinished = {"TODO", "FIXME", "XXX"};
  static const std::vector<std::string> prints = {"std::cout", "printf(", "puts(", "fmt::print(\""};
  static const std::set<std::string> impure = {"<thread>", "<mutex>", "<fstream>", "<filesystem>",
                                               "<iostream>"};
  const bool pure = source.path.starts_with("sim/") || source.path.starts_with("models/");
  const bool may_print = source.path.starts_with("tools/");

  Complaints complaints;
  for (std::size_t i = 0; i < source.lines.size(); ++i) {
    const std::string& line = source.lines[i];
    const std::string_view code = std::string_view(line).substr(0, line.find("//"));
    const auto complain = [&](std::string rule) {
      complaints.push_back({source.path, i + 1, std::move(rule)});
    };
    for (const std::string& word : unfinished) {
      if (has_word(line, word)) complain("unfinished: " + word);
    }
    for (const std::string& word : prints) {
      if (!may_print && has_word(code, word)) complain("only tools/ writes to stdout: " + word);
    }
    if (is_header(source.path) && has_word(code, "using namespace")) {
      complain("a header may not open a namespace for all who include it");
    }
    if (const std::string header = included(line); pure && impure.contains(header)) {
      complain("sim/ and models/ know neither threads nor files: " + header);
    }
  }
  return complaints;
}

// ----------------------------------------------------------------------------------- the tree

const std::vector<std::string>& top_folders() {
  static const std::vector<std::string> names = {"sim",     "models",    "tools",
                                                 "execute", "calibrate", "tests"};
  return names;
}

Source read_source(const fs::path& root, const fs::path& file) {
  Source source{fs::relative(file, root).generic_string(), {}};
  std::ifstream in(file, std::ios::binary);
  for (std::string line; std::getline(in, line);) source.lines.push_back(line);
  return source;
}

// All sources of the tree, in the order of their names.
const std::vector<Source>& tree() {
  static const std::vector<Source> sources = [] {
    static const std::set<std::string> suffixes = {".h", ".cc", ".cpp", ".hpp", ".cu", ".cuh"};
    const fs::path root(STEPCAST_SOURCE_DIR);
    std::vector<Source> found;
    for (const std::string& top : top_folders()) {
      if (!fs::is_directory(root / top)) continue;
      for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
        if (entry.is_regular_file() && suffixes.contains(entry.path().extension().string())) {
          found.push_back(read_source(root, entry.path()));
        }
      }
    }
    std::sort(found.begin(), found.end(),
              [](const Source& a, const Source& b) { return a.path < b.path; });
    return found;
  }();
  return sources;
}

template <class Check>
Complaints check_tree(Check check) {
  Complaints all;
  for (const Source& source : tree()) {
    const Complaints found = check(source);
    all.insert(all.end(), found.begin(), found.end());
  }
  return all;
}

// One namespace: two types of one name in two headers would be one type to the linker, and the
// wrong one of their inline functions would run. Types within types are indented, so they do not
// count.
Complaints check_types(const std::vector<Source>& sources) {
  Complaints complaints;
  std::map<std::string, std::string> known;  // type -> where it is defined
  for (const Source& source : sources) {
    if (!source.path.ends_with(".h") || source.path.starts_with("tests/")) continue;
    for (std::size_t i = 0; i < source.lines.size(); ++i) {
      std::string_view line = source.lines[i];
      const std::string_view word = line.substr(0, line.find(' '));
      if (word != "struct" && word != "class") continue;
      if (line.ends_with(";") && line.find('{') == std::string_view::npos) continue;  // a promise
      line.remove_prefix(word.size() + 1);
      const std::string name(line.substr(0, line.find_first_of(" :{<")));
      const auto [first, fresh] = known.emplace(name, source.path);
      if (fresh) continue;
      complaints.push_back({source.path, i + 1, name + " is already a type of " + first->second});
    }
  }
  return complaints;
}

// ---------------------------------------------------------------------- each rule can be broken

TEST(HouseRules, ReadsTheHeaderOutOfAnIncludeLine) {
  EXPECT_EQ(included("#include <vector>"), "<vector>");
  EXPECT_EQ(included("#  include \"sim/base/json.h\"  // why"), "sim/base/json.h");
  EXPECT_EQ(included("// #include <vector>"), "");
  EXPECT_EQ(included("#pragma once"), "");
}

TEST(HouseRules, NamesFileAndLineOfAnIncludeFromAFloorAbove) {
  const Source source{"models/plan.cc",
                      {"#include <vector>", "#include \"sim/engine/simulate.h\""}};
  const Complaints expected = {
      {"models/plan.cc", 2, "models may not include sim/engine/simulate.h"}};
  EXPECT_EQ(check_floors(source), expected);
}

TEST(HouseRules, KnowsTheFloorsOfEachFolder) {
  const auto allows = [](std::string_view path, std::string_view line) {
    return check_floors({std::string(path), {std::string(line)}}).empty();
  };
  // A folder knows itself, what stands below it, and no neighbour.
  EXPECT_TRUE(allows("sim/cost/cost.cc", "#include \"sim/cost/gemm.h\""));
  EXPECT_TRUE(allows("sim/cost/cost.cc", "#include \"sim/program/program.h\""));
  EXPECT_FALSE(allows("sim/cost/cost.cc", "#include \"sim/network/network.h\""));
  EXPECT_FALSE(allows("sim/base/error.cc", "#include \"sim/program/op.h\""));
  EXPECT_TRUE(allows("sim/engine/price.cc", "#include \"sim/network/network.h\""));
  EXPECT_FALSE(allows("sim/engine/price.cc", "#include \"models/model.h\""));
  EXPECT_TRUE(allows("tools/validate/runs.cc", "#include \"tools/forecast/forecast.h\""));
  EXPECT_FALSE(allows("tools/forecast/forecast.cc", "#include \"tools/validate/runs.h\""));
  // Exceptions hold for the file that they name.
  EXPECT_TRUE(allows("sim/hardware/hardware.h", "#include \"sim/program/op.h\""));
  EXPECT_FALSE(allows("sim/hardware/hardware.h", "#include \"sim/program/program.h\""));
  EXPECT_TRUE(allows("sim/base/json.h", "#include <nlohmann/json.hpp>"));
  EXPECT_FALSE(allows("sim/base/units.h", "#include <nlohmann/json.hpp>"));
  EXPECT_FALSE(allows("sim/hardware/hardware.cc", "#include <boost/graph/adjacency_list.hpp>"));
  // CUDA stays in its own corner, which also knows what execute/ knows.
  EXPECT_TRUE(allows("execute/cuda/device.cc", "#include <cuda_runtime.h>"));
  EXPECT_TRUE(allows("execute/cuda/device.cc", "#include \"sim/program/op.h\""));
  EXPECT_FALSE(allows("execute/device.cc", "#include <cuda_runtime.h>"));
  EXPECT_FALSE(allows("tools/main.cc", "#include <cuda_runtime.h>"));
  // A new folder needs a row; a name that only begins alike is another folder.
  EXPECT_FALSE(allows("sim/baseline/x.cc", "#include <vector>"));
}

TEST(HouseRules, CountsColumnsInCharactersAndFindsBlanks) {
  EXPECT_TRUE(check_layout({"sim/a.cc", {std::string(100, 'x')}}).empty());
  EXPECT_EQ(check_layout({"sim/a.cc", {std::string(101, 'x')}}).size(), 1u);
  std::string wide = std::string(99, 'x') + "\u00b5";  // two bytes, one column
  EXPECT_TRUE(check_layout({"sim/a.cc", {wide}}).empty());
  EXPECT_EQ(check_layout({"sim/a.cc", {"\tint x;"}}).size(), 1u);
  EXPECT_EQ(check_layout({"sim/a.cc", {"int x; "}}).size(), 1u);
}

TEST(HouseRules, AllowsTestsToBeLonger) {
  const std::vector<std::string> lines(600);
  EXPECT_EQ(check_layout({"sim/base/json.cc", lines}).size(), 1u);
  EXPECT_TRUE(check_layout({"tests/sim/base/json_test.cc", lines}).empty());
}

TEST(HouseRules, WantsEachFileToSayWhatItIs) {
  EXPECT_TRUE(check_opening({"sim/a.h", {"// Units.", "#pragma once"}}).empty());
  EXPECT_EQ(check_opening({"sim/a.h", {"// Units."}}).size(), 1u);
  EXPECT_EQ(check_opening({"sim/a.cc", {"#include <vector>"}}).size(), 1u);
  EXPECT_EQ(check_opening({"sim/a.cc", {}}).size(), 1u);
  EXPECT_TRUE(check_opening({"tests/a_test.cc", {"#include <vector>"}}).empty());
}

TEST(HouseRules, FindsForbiddenWordsButNotLongerOnesThatHoldThem) {
  const auto count = [](std::string_view path, std::string_view line) {
    return check_words({std::string(path), {std::string(line)}}).size();
  };
  EXPECT_EQ(count("sim/a.cc", "// TODO: later"), 1u);
  EXPECT_EQ(count("sim/a.cc", "int kTODOs = 0;"), 0u);
  EXPECT_EQ(count("sim/a.cc", "printf(\"x\");"), 1u);
  EXPECT_EQ(count("sim/a.cc", "std::printf(\"x\");"), 1u);
  EXPECT_EQ(count("sim/a.cc", "fmt::print(\"{}\", x);"), 1u);
  EXPECT_EQ(count("sim/a.cc", "fmt::print(stderr, \"{}\", x);"), 0u);
  EXPECT_EQ(count("sim/a.cc", "std::fprintf(stderr, \"x\");"), 0u);
  EXPECT_EQ(count("tools/a.cc", "std::cout << x;"), 0u);
  EXPECT_EQ(count("sim/a.h", "using namespace std;"), 1u);
  EXPECT_EQ(count("sim/a.cc", "using namespace std::literals;"), 0u);
  EXPECT_EQ(count("models/a.cc", "#include <mutex>"), 1u);
  EXPECT_EQ(count("tools/a.cc", "#include <fstream>"), 0u);
}

TEST(HouseRules, FindsATypeThatTwoHeadersDefine) {
  const Source one{"sim/a.h", {"struct Route {", "};", "struct Link;"}};
  const Source two{"sim/b.h", {"struct Link { int x; };", "class Route : Base {", "};"}};
  EXPECT_EQ(check_types({one, two}),
            (Complaints{{"sim/b.h", 2, "Route is already a type of sim/a.h"}}));
}

// ------------------------------------------------------------------------- the tree keeps them

TEST(House, HasSourcesToRead) {
  const auto has = [](std::string_view path) {
    return std::any_of(tree().begin(), tree().end(),
                       [&](const Source& source) { return source.path == path; });
  };
  EXPECT_TRUE(has("sim/program/program.h"));
  EXPECT_TRUE(has("tests/house_test.cc"));
}

TEST(House, EveryIncludeKeepsTheFloors) {
  const Complaints complaints = check_tree(check_floors);
  EXPECT_TRUE(complaints.empty()) << to_text(complaints);
}

TEST(House, EveryFileKeepsTheLayout) {
  const Complaints complaints = check_tree(check_layout);
  EXPECT_TRUE(complaints.empty()) << to_text(complaints);
}

TEST(House, EveryFileOpensWithWhatItIs) {
  const Complaints complaints = check_tree(check_opening);
  EXPECT_TRUE(complaints.empty()) << to_text(complaints);
}

TEST(House, NoFileHoldsAForbiddenWord) {
  const Complaints complaints = check_tree(check_words);
  EXPECT_TRUE(complaints.empty()) << to_text(complaints);
}

TEST(House, EveryTypeIsDefinedOnce) {
  const Complaints complaints = check_types(tree());
  EXPECT_TRUE(complaints.empty()) << to_text(complaints);
}

TEST(House, EveryFolderWithSourcesHasAReadme) {
  std::set<std::string> folders;
  for (const Source& source : tree()) {
    // The folders of tests/ mirror the tree and are explained once, in tests/README.md.
    folders.insert(source.path.starts_with("tests/")
                       ? "tests"
                       : fs::path(source.path).parent_path().generic_string());
  }
  Complaints complaints;
  for (const std::string& folder : folders) {
    const std::string readme = folder + "/README.md";
    if (fs::is_regular_file(fs::path(STEPCAST_SOURCE_DIR) / readme)) continue;
    complaints.push_back({readme, 1, "missing: what lives here, in which order to read it"});
  }
  EXPECT_TRUE(complaints.empty()) << to_text(complaints);
}

}  // namespace

#include "sim/base/json.h"

#include <algorithm>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "sim/base/error.h"

namespace stepcast {
namespace {

// What an action complains of, place and all; "" if it does not.
template <class Action>
std::string complaint(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string parse_complaint(std::string_view text) {
  return complaint([&] { parse_json(text, "plan.json"); });
}

// Reads the integer "tensor", from 1 to 8.
std::string tensor_complaint(std::string_view value) {
  const Document file = parse_json("{\"tensor\": " + std::string(value) + "}", "plan.json");
  return complaint([&] { Object(file).integer("tensor", {1, 8}); });
}

constexpr std::string_view kPlan = R"({
  // how the model is cut
  "parallel": {
    "tensor": 8, "pipeline":
      4,
    "a/b~c": [
      10,
      {"deep": true}
    ]
  },
  "name": "x"
}
)";

TEST(Json, KnowsTheLineWhereEachValueBegins) {
  const std::map<std::string, int> expected = {{"", 1},
                                               {"/parallel", 3},
                                               {"/parallel/tensor", 4},
                                               {"/parallel/pipeline", 5},
                                               {"/parallel/a~1b~0c", 6},
                                               {"/parallel/a~1b~0c/0", 7},
                                               {"/parallel/a~1b~0c/1", 8},
                                               {"/parallel/a~1b~0c/1/deep", 8},
                                               {"/name", 11}};
  EXPECT_EQ(parse_json(kPlan, "plan.json").lines, expected);
}

// The lexer takes the newline after a number before the number is reported.
TEST(Json, DoesNotCountTheNewlineAfterANumber) {
  const Document file = parse_json("[1\n,\n2.5\n,-3\n\n]", "x");
  EXPECT_EQ(file.lines.at("/0"), 1);
  EXPECT_EQ(file.lines.at("/1"), 3);
  EXPECT_EQ(file.lines.at("/2"), 4);
}

TEST(Json, KeepsValuesAndTheOrderOfKeys) {
  const Document file =
      parse_json(R"({"b": 1, "a": [null, -2, 2.5, "\u00e9", {}], "c": [[]]})", "x");
  EXPECT_EQ(file.root.dump(), R"({"b":1,"a":[null,-2,2.5,"é",{}],"c":[[]]})");
  EXPECT_EQ(parse_json(" 7", "x").root, Json(7));
}

TEST(Json, AllowsCommentsAndAByteOrderMark) {
  EXPECT_EQ(parse_json("\xEF\xBB\xBF/* a\n b */ {\"a\": 1} // c", "x").lines.at("/a"), 2);
}

TEST(Json, NamesBothLinesOfADuplicateKey) {
  EXPECT_EQ(parse_complaint("{\"a\": {\n\"t\": 1,\n\"u\": 2,\n\"t\": 3}}"),
            "plan.json:4: a.t: duplicate key \"t\"; the first is on line 2");
  EXPECT_EQ(parse_complaint("[{\"t\": 1}, {\"t\": 2}]"), "");
}

TEST(Json, NamesLineAndColumnOfASyntaxError) {
  EXPECT_EQ(parse_complaint("{\n  \"a\": 1,\n  123: 2\n}"),
            "plan.json:3:3: unexpected number; expected string");
  EXPECT_EQ(parse_complaint("{\"a\" \"b\"}"), "plan.json:1:6: unexpected string; expected ':'");
  EXPECT_EQ(parse_complaint("{\"a\": 1,}"), "plan.json:1:9: unexpected '}'; expected string");
  EXPECT_EQ(parse_complaint("[1 2]"), "plan.json:1:4: unexpected number; expected ']'");
  EXPECT_EQ(parse_complaint("{\"é\": nul}"),
            "plan.json:1:7: unknown word nul; text stands in double quotes");
  EXPECT_EQ(parse_complaint("{'a': 1}"),
            "plan.json:1:2: unexpected character; text stands in double quotes");
}

TEST(Json, NamesTheEndOfATextThatIsCutOff) {
  EXPECT_EQ(parse_complaint(""), "plan.json:1:1: unexpected end of the text; expected a value");
  EXPECT_EQ(parse_complaint("{\"a\": [1,\n"),
            "plan.json:2:1: unexpected end of the text; expected a value");
  EXPECT_EQ(parse_complaint("[\"abc"), "plan.json:1:6: invalid string: missing closing quote");
}

TEST(Json, RefusesWhatFollowsTheValue) {
  EXPECT_EQ(parse_complaint("{}\n}"), "plan.json:2:1: unexpected '}'; expected end of the text");
  EXPECT_EQ(parse_complaint(std::string_view("{}\0 junk", 8)),
            "plan.json:1:3: a NUL character is not JSON");
}

TEST(Json, RefusesNumbersThatAreNotFinite) {
  EXPECT_EQ(parse_complaint("[1,\n 1e999]"), "plan.json:2:2: number 1e999 is too large");
  EXPECT_EQ(parse_complaint("[NaN]"),
            "plan.json:1:2: unknown word NaN; text stands in double quotes");
  EXPECT_NE(parse_complaint("[-Infinity]"), "");
}

TEST(Json, RefusesBytesThatAreNotUtf8) {
  EXPECT_NE(parse_complaint("[\"\xFF\"]"), "");
  EXPECT_NE(parse_complaint("\xEF\xBB"), "");
}

TEST(Json, RefusesNestingBeyondTheLimit) {
  const std::size_t most = kJsonDepthMax;
  EXPECT_EQ(parse_complaint(std::string(most, '[') + std::string(most, ']')), "");
  EXPECT_EQ(parse_complaint("\n" + std::string(most + 1, '[')),
            "plan.json:2: nested deeper than 64 levels");
  EXPECT_EQ(parse_complaint(std::string(10'000'000, '[')),
            "plan.json:1: nested deeper than 64 levels");
}

TEST(Json, RefusesTextBeyondTheLimit) {
  EXPECT_EQ(parse_complaint(std::string(kJsonBytesMax + 1, ' ')),
            "plan.json: JSON of more than 64 MiB");
}

// Any text either parses or throws Error. Mutations: replace, insert, delete a byte; cut; repeat.
TEST(Json, ParsesOrThrowsErrorOnMutatedText) {
  std::mt19937 random(20240607);
  const auto below = [&](std::size_t n) { return random() % n; };
  constexpr std::string_view kBytes = "{}[]\",:/*\\ \n-+.eE0129tfnu\xEF\xBB\xBF\xC3\x01";
  int parsed = 0;
  int refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text(kPlan);
    for (std::size_t edits = 1 + below(3); edits > 0 && !text.empty(); --edits) {
      const std::size_t at = below(text.size());
      const char byte =
          below(8) == 0 ? static_cast<char>(below(256)) : kBytes[below(kBytes.size())];
      switch (below(5)) {
        case 0: text[at] = byte; break;
        case 1: text.insert(at, 1, byte); break;
        case 2: text.erase(at, 1); break;
        case 3: text.resize(at); break;
        default: text.insert(at, text.substr(below(text.size()), below(9))); break;
      }
    }
    try {
      const Document file = parse_json(text, "x");
      ++parsed;
      for (const auto& [pointer, line] : file.lines) {
        ASSERT_TRUE(file.root.contains(Json::json_pointer(pointer))) << text;
        ASSERT_GE(line, 1);
        ASSERT_LE(line, 1 + std::count(text.begin(), text.end(), '\n'));
      }
    } catch (const Error& error) {
      ++refused;
      ASSERT_EQ(error.where().substr(0, 2), "x:") << text;
      ASSERT_EQ(error.message().find("json.exception"), std::string::npos) << error.what();
    }
  }
  EXPECT_GT(parsed, 1000);   // both ways are walked
  EXPECT_GT(refused, 1000);
}

TEST(SetValue, TakesJsonElseAString) {
  Document file = parse_json(kPlan, "plan.json");
  set_value(file, "parallel.tensor", "4");
  set_value(file, "name", "abc");
  set_value(file, "expect", "{\"step_time\": \"<= 12 s\"}");
  EXPECT_EQ(file.root["parallel"]["tensor"], Json(4));
  EXPECT_EQ(file.root["name"], Json("abc"));
  EXPECT_EQ(file.root["expect"]["step_time"], Json("<= 12 s"));
}

TEST(SetValue, CreatesObjectsOnTheWay) {
  Document file = parse_json("{\"a\": null}", "x");
  set_value(file, "a.b.0", "1");
  set_value(file, "c.d", "");
  EXPECT_EQ(file.root.dump(), R"({"a":{"b":{"0":1}},"c":{"d":""}})");
  Document empty{"x", Json(), {}};
  set_value(empty, "a", "1");
  EXPECT_EQ(Object(empty).integer("a", {}), 1);
}

TEST(SetValue, ReachesIntoArrays) {
  Document file = parse_json("{\"a\": [1, {\"b\": 2}]}", "x");
  set_value(file, "a.1.b", "3");
  EXPECT_EQ(file.root["a"][1]["b"], Json(3));
  EXPECT_EQ(complaint([&] { set_value(file, "a.2", "0"); }),
            "--set a.2: no index 2: the array has 2 elements, 0 to 1");
  EXPECT_EQ(complaint([&] { set_value(file, "a.-1", "0"); }),
            "--set a.-1: no index -1: the array has 2 elements, 0 to 1");
  EXPECT_EQ(complaint([&] { set_value(file, "a.b", "0"); }),
            "--set a.b: no index b: the array has 2 elements, 0 to 1");
}

TEST(SetValue, RefusesPathsThatLeadNowhereAndChangesNothing) {
  Document file = parse_json(kPlan, "plan.json");
  const Json before = file.root;
  EXPECT_EQ(complaint([&] { set_value(file, "parallel.tensor.x", "1"); }),
            "--set parallel.tensor.x: \"parallel.tensor\" is 8, neither an object nor an array");
  for (const char* path : {"", ".", "a.", ".a", "a..b"}) {
    EXPECT_NE(complaint([&] { set_value(file, path, "1"); }), "") << path;
  }
  EXPECT_NE(complaint([&] { set_value(file, "name", "\xFF"); }), "");
  EXPECT_NE(complaint([&] { set_value(file, "a" + std::string(200, 'a') + "\xFF", "1"); }), "");
  std::string deep = "a";
  for (int i = 0; i < kJsonDepthMax; ++i) deep += ".a";
  EXPECT_NE(complaint([&] { set_value(file, deep, "1"); }), "");
  EXPECT_EQ(file.root, before);
}

TEST(SetValue, IsThePlaceOfWhatItSetAndOfAllBelow) {
  Document file = parse_json(kPlan, "plan.json");
  set_value(file, "parallel", "{\"tensor\": 0,\n\"tensr\": 1}");
  const Object parallel = Object(file).object("parallel");
  EXPECT_EQ(parallel.place("tensor"), "--set parallel.tensor");
  EXPECT_EQ(parallel.place(), "--set parallel");
  EXPECT_EQ(Object(file).place("name"), "plan.json:11: name");
  EXPECT_EQ(complaint([&] { parallel.integer("tensor", {1, 8}); }),
            "--set parallel.tensor: must be from 1 to 8, is 0");
}

TEST(SetValue, LeavesThePlacesOfTheRest) {
  Document file = parse_json(kPlan, "plan.json");
  set_value(file, "parallel.tensor", "abc");
  const Object parallel = Object(file).object("parallel");
  EXPECT_EQ(parallel.place("pipeline"), "plan.json:5: parallel.pipeline");
  EXPECT_EQ(complaint([&] { parallel.integer("tensor", {1, 8}); }),
            "--set parallel.tensor: must be an integer, is \"abc\"");
}

TEST(Object, NamesFileLineAndPathOfAnUnknownKey) {
  const Document file = parse_json("{\n\"parallel\": {\n\"tensr\": 8}}", "plan.json");
  const Object root(file);
  const Object parallel = root.object("parallel");
  EXPECT_EQ(parallel.integer("tensor", 1, {1, 8}), 1);
  EXPECT_EQ(complaint([&] { parallel.done(); }),
            "plan.json:3: parallel.tensr: unknown key \"tensr\" (did you mean \"tensor\"?)");
  EXPECT_EQ(complaint([&] { root.done(); }), "");
}

TEST(Object, ListsTheKnownKeysWhereNoneIsNear) {
  const Document file = parse_json("{\"x\": 1}", "plan.json");
  const Object root(file);
  root.touch("tensor");
  EXPECT_FALSE(root.boolean("overlap", false));
  EXPECT_EQ(complaint([&] { root.done(); }),
            "plan.json:1: x: unknown key \"x\"; the keys here are \"tensor\", \"overlap\"");
}

TEST(Object, PlacesTheRootAtTheFileAndAnAbsentKeyAtItsObject) {
  const Document file = parse_json(kPlan, "plan.json");
  const Object root(file);
  EXPECT_EQ(root.place(), "plan.json:1");
  EXPECT_EQ(root.object("parallel").place("data"), "plan.json:3: parallel.data");
  EXPECT_EQ(root.object("parallel").element("a/b~c", 1).place("deep"),
            "plan.json:8: parallel.a/b~c.1.deep");
  EXPECT_EQ(complaint([&] { root.integer("batch", {}); }),
            "plan.json:1: batch: \"batch\" is missing");
}

TEST(Object, ReadsWholeNumbersHoweverTheyAreWritten) {
  const Document file = parse_json(R"({"a": 2e3, "b": 7.0, "c": 9223372036854775807})", "x");
  const Object root(file);
  EXPECT_EQ(root.integer("a", {}), 2000);
  EXPECT_EQ(root.integer("b", {}), 7);
  EXPECT_EQ(root.integer("c", {}), INT64_MAX);
  EXPECT_EQ(root.integer("d", 5, {}), 5);
}

TEST(Object, RefusesIntegersOfAnotherTypeOrBeyondTheirLimits) {
  EXPECT_EQ(tensor_complaint("8"), "");
  EXPECT_EQ(tensor_complaint("0"), "plan.json:1: tensor: must be from 1 to 8, is 0");
  EXPECT_EQ(tensor_complaint("9"), "plan.json:1: tensor: must be from 1 to 8, is 9");
  EXPECT_EQ(tensor_complaint("18446744073709551615"),
            "plan.json:1: tensor: must be from 1 to 8, is 18446744073709551615");
  EXPECT_EQ(tensor_complaint("1e300"), "plan.json:1: tensor: must be from 1 to 8, is 1e+300");
  EXPECT_EQ(tensor_complaint("1.5"), "plan.json:1: tensor: must be an integer, is 1.5");
  EXPECT_EQ(tensor_complaint("\"4\""), "plan.json:1: tensor: must be an integer, is \"4\"");
  EXPECT_EQ(tensor_complaint("true"), "plan.json:1: tensor: must be an integer, is true");
  EXPECT_EQ(tensor_complaint("[1]"), "plan.json:1: tensor: must be an integer, is an array");
  const Document file = parse_json("{\"a\": 0}", "x");
  EXPECT_EQ(complaint([&] { Object(file).integer("a", {1, INT64_MAX}); }),
            "x:1: a: must be at least 1, is 0");
}

TEST(Object, ReadsNumbersBooleansAndStrings) {
  const Document file = parse_json(R"({"n": 0.5, "t": true, "s": "x", "z": null})", "x");
  const Object root(file);
  EXPECT_EQ(root.number("n", 1, 0, 1), 0.5);
  EXPECT_EQ(root.number("absent", 0.25, 0, 1), 0.25);
  EXPECT_TRUE(root.boolean("t", false));
  EXPECT_EQ(root.string("s"), "x");
  EXPECT_EQ(root.string("z", "default"), "default");
  EXPECT_FALSE(root.has("z"));
  EXPECT_EQ(complaint([&] { root.number("n", 1, 1, 2); }), "x:1: n: must be from 1 to 2, is 0.5");
  EXPECT_EQ(complaint([&] { root.number("s", 1, 1, 2); }), "x:1: s: must be a number, is \"x\"");
  EXPECT_EQ(complaint([&] { root.boolean("n", true); }),
            "x:1: n: must be true or false, is 0.5");
  EXPECT_EQ(complaint([&] { root.string("t"); }), "x:1: t: must be a string, is true");
}

TEST(Object, ReadsValuesWithUnits) {
  const Document file = parse_json(
      R"({"b": "80 GB", "s": "5 us", "w": "400 Gb/s", "f": "989 TFLOP/s", "n": 200, "a": []})",
      "x");
  const Object root(file);
  EXPECT_EQ(root.bytes("b"), Bytes(80'000'000'000));
  EXPECT_EQ(root.seconds("s"), Seconds(5e-6));
  EXPECT_EQ(root.bandwidth("w"), Bandwidth(50e9));
  EXPECT_EQ(root.flop_rate("f"), FlopRate(989e12));
  EXPECT_EQ(root.bytes("absent", Bytes(3)), Bytes(3));
  EXPECT_EQ(root.seconds("absent", Seconds(3)), Seconds(3));
  EXPECT_EQ(root.bandwidth("absent", Bandwidth(3)), Bandwidth(3));
  EXPECT_EQ(complaint([&] { root.bytes("n"); }),
            "x:1: n: 200 has no unit; write a unit, such as \"200 MB\"");
  EXPECT_EQ(complaint([&] { root.seconds("a"); }),
            "x:1: a: must be text with a unit, such as \"5 us\", is an array");
  EXPECT_EQ(complaint([&] { root.bandwidth("b"); }),
            "x:1: b: unknown unit \"GB\"; use B/s, kB/s, MB/s, GB/s, TB/s, PB/s, KiB/s, MiB/s, "
            "GiB/s, TiB/s, PiB/s, b/s, kb/s, Mb/s, Gb/s, Tb/s");
}

enum class Schedule { kGpipe, kOneForwardOneBackward };

TEST(Object, ReadsOneWordOfASet) {
  const std::vector<std::pair<std::string, Schedule>> words = {
      {"gpipe", Schedule::kGpipe}, {"1f1b", Schedule::kOneForwardOneBackward}};
  const Document file = parse_json(R"({"a": "1f1b", "b": "gpip", "c": 1})", "x");
  const Object root(file);
  EXPECT_EQ(root.word("a", Schedule::kGpipe, words), Schedule::kOneForwardOneBackward);
  EXPECT_EQ(root.word("absent", Schedule::kGpipe, words), Schedule::kGpipe);
  EXPECT_EQ(complaint([&] { root.word("b", Schedule::kGpipe, words); }),
            "x:1: b: must be one of \"gpipe\", \"1f1b\", is \"gpip\" (did you mean \"gpipe\"?)");
  EXPECT_EQ(complaint([&] { root.word("c", Schedule::kGpipe, words); }),
            "x:1: c: must be one of \"gpipe\", \"1f1b\", is 1");
}

TEST(Object, ReadsNestedObjectsAndArrays) {
  const Document file = parse_json(R"({"a": [{"b": 1}, {"b": 2}], "n": 3})", "x");
  const Object root(file);
  ASSERT_EQ(root.array_size("a"), 2U);
  EXPECT_EQ(root.element("a", 1).integer("b", {}), 2);
  EXPECT_EQ(root.array_size("absent"), 0U);
  EXPECT_EQ(root.object("absent").integer("b", 7, {}), 7);
  EXPECT_EQ(complaint([&] { root.object("n"); }), "x:1: n: must be an object, is 3");
  EXPECT_EQ(complaint([&] { root.array_size("n"); }), "x:1: n: must be an array, is 3");
  EXPECT_EQ(complaint([&] { root.element("a", 1).integer("c", {}); }),
            "x:1: a.1.c: \"c\" is missing");
  const Document list = parse_json("[]", "x");
  EXPECT_EQ(complaint([&] { Object root_of_list(list); }),
            "x:1: must be an object, is an array");
}

TEST(Object, ShortensWhatItQuotes) {
  const Document file = parse_json("{\"a\": \"" + std::string(100'000, 'x') + "\"}", "x");
  EXPECT_LT(complaint([&] { Object(file).integer("a", {}); }).size(), 200U);
}

}  // namespace
}  // namespace stepcast

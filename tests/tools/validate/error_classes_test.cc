#include "tools/validate/error_classes.h"

#include <gtest/gtest.h>

#include "sim/base/error.h"
#include "tools/base/files.h"
#include "tools/validate/causes.h"
#include "tools/validate/page.h"
#include "tools/validate/published.h"

namespace stepcast {
namespace {

ValidationRow run(const std::string& source, const std::string& device, const std::string& kind,
                  double error) {
  ValidationRow row;
  row.kind = "run";
  row.covered = true;
  row.source = source;
  row.run = RunDetails();
  row.run->device = device;
  row.run->kind = kind;
  row.predicted_seconds = 1 + error;
  row.measured_seconds = 1;
  return row;
}

// Source a: 8 rows at +0.1, source b: 2 at -0.3. Each source is half of the weight: bias
// (0.1 - 0.3) / 2, mean of the absolute ones 0.2, the 10th percentile in b, the 90th in a.
TEST(ErrorClasses, LetEachSourceWeighTheSame) {
  std::vector<ValidationRow> rows;
  for (int i = 0; i < 8; ++i) rows.push_back(run("a", "h100-sxm", "tensor", 0.1));
  for (int i = 0; i < 2; ++i) rows.push_back(run("b", "h100-sxm", "tensor", -0.3));
  const std::vector<ErrorClass> classes = error_classes(rows);
  const ErrorClass* found = nearest_class(classes, "h100-sxm", "tensor");
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->runs, 10);
  EXPECT_EQ(found->sources, 2);
  EXPECT_NEAR(found->bias, -0.1, 1e-12);
  EXPECT_NEAR(found->mean_absolute, 0.2, 1e-12);
  EXPECT_NEAR(found->low, -0.3, 1e-12);
  EXPECT_NEAR(found->high, 0.1, 1e-12);
}

TEST(ErrorClasses, AreWidenedByDeviceThenByKind) {
  std::vector<ValidationRow> rows;
  for (int i = 0; i < 6; ++i) rows.push_back(run("a", "h100-sxm", "tensor", 0.1));
  for (int i = 0; i < 6; ++i) rows.push_back(run("a", "b200", "pipeline", 0.2));
  for (int i = 0; i < 6; ++i) rows.push_back(run("a", "b200", "launch-bound", -0.7));
  for (int i = 0; i < 6; ++i) rows.push_back(run("a", "b200", "launch-blocking", -0.9));
  rows.push_back(run("a", "b200", "tensor", 0.1));
  const std::vector<ErrorClass> classes = error_classes(rows);
  const auto words = [&](const std::string& device, const std::string& kind) {
    const ErrorClass* found = nearest_class(classes, device, kind);
    return found == nullptr ? "" : class_words(*found, device, kind);
  };
  EXPECT_EQ(words("h100-sxm", "tensor"), "6 published runs (1 source) of tensor plans on h100-sxm");
  EXPECT_EQ(words("b200", "tensor"),
            "7 published runs (1 source) of tensor plans, too few on b200");
  EXPECT_EQ(words("b200", "data"), "7 published runs (1 source) on b200, too few of data plans");
  EXPECT_EQ(words("h200", "data"),
            "13 published runs (1 source), too few on h200, too few of data plans");
  // What the host paces says nothing of what it does not, nor the other way round.
  EXPECT_EQ(words("h200", "launch-bound"),
            "6 published runs (1 source) of launch-bound plans, too few on h200");
  EXPECT_EQ(nearest_class({}, "h200", "data"), nullptr);
}

TEST(ErrorClasses, ReadBackWhatTheyWrite) {
  std::vector<ValidationRow> rows;
  for (int i = 0; i < 6; ++i) rows.push_back(run("a", "h100-sxm", "tensor", 0.01 * i));
  const std::vector<ErrorClass> classes = error_classes(rows);
  const std::string text = write_error_classes(classes);
  EXPECT_EQ(write_error_classes(read_error_classes(parse_json(text, "errors.json"))), text);
  EXPECT_THROW(read_error_classes(parse_json(R"({"format": "x", "classes": []})", "f")), Error);
  Json low = parse_json(text, "errors.json").root;
  low["classes"][0]["low"] = -1;
  EXPECT_THROW(read_error_classes(Document{"errors.json", low, {}}), Error);
}

// GCC defines a macro, Clang has a feature.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define STEPCAST_SANITIZED
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STEPCAST_SANITIZED
#endif

constexpr bool sanitized() {
#ifdef STEPCAST_SANITIZED
  return true;
#else
  return false;
#endif
}

std::string shipped_text(const std::string& name) {
  return read_file(config_directory() + "/published/" + name);
}

// All published runs are forecast again: what the repository says of them is what this tree does.
TEST(Fidelity, PageAndErrorsAreCurrent) {
  if (sanitized()) GTEST_SKIP() << "two thousand forecasts take minutes under a sanitizer";
  const std::vector<ValidationRow> rows = validate_rows(shipped_runs(), read_shipped());
  const char* how =
      "run: stepcast validate --markdown configs/published/FIDELITY.md --errors "
      "configs/published/errors.json";
  EXPECT_TRUE(validation_page(rows, shipped_left_out(), shipped_causes()) ==
              shipped_text("FIDELITY.md"))
      << how;
  EXPECT_TRUE(write_error_classes(error_classes(rows)) == shipped_text("errors.json")) << how;
}

}  // namespace
}  // namespace stepcast

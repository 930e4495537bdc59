#include <algorithm>
#include <fstream>
#include <random>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "sim/base/error.h"
#include "sim/program/program.h"
#include "tests/support/job_builder.h"

namespace stepcast {
namespace {

std::string golden(const std::string& name) {
  std::ifstream file(std::string(STEPCAST_SOURCE_DIR) + "/tests/golden/" + name);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Two stages that pass one tensor; every kind of instruction, table and name occurs.
Job every_kind() {
  JobBuilder b(2);
  b.job.mesh.degree(Axis::kTensor) = 2;
  b.job.mesh.order = {Axis::kPipeline, Axis::kTensor, Axis::kContext,
                      Axis::kExpert,   Axis::kData,   Axis::kReplica};
  const TensorId w = b.resident("weight of \"all\"\\\n", {8});
  b.job.tensors.back().cut = Cut::kRows;
  b.job.tensors.back().parts = {5, 3};
  b.job.flats.push_back({{w}, {}});
  b.job.batch = {4, 1, 3, 16};
  b.job.dropout = 0.1;
  b.job.experts = Axis::kTensor;
  const TensorId x = b.tensor("x.y", {4, 8}, Scope::kMicroBatch);
  b.job.tensors.back().label.layer = 3;
  const TensorId s = b.tensor("scalar", {}, Scope::kRank, Category::kBuffers, Dtype::kFp32);
  const TensorId experts = b.resident("experts", {6, 8});
  b.job.tensors.back().experts = 3;
  b.job.flats.push_back({{experts}, {}, Axis::kData});
  const BodyId first = b.body("forward of 10 layers", Phase::kForward);
  b.add(Mark{b.label("qkv", 12)}).alloc(x);
  b.compute(Pointwise{PointwiseKind::kFill, 4, 8}, {}, {x}, "fill");
  b.compute(Pointwise{PointwiseKind::kAddRows, 4, 8}, {x, w}, {x});
  b.order(Stream::kCompute, Stream::kTensor, 1);
  b.collective({TransferKind::kAllReduce, Axis::kTensor, false, Bytes(64), Reduction::kMaximum},
               Stream::kTensor, {x}, {x});
  b.order(Stream::kTensor, Stream::kSendForward, 2).send(x);
  b.order(Stream::kSendForward, Stream::kCompute, 0).free(x);
  const BodyId second = b.body("last", Phase::kRecompute);
  b.alloc(x).receive(x).order(Stream::kReceiveForward, Stream::kCompute, 0).free(x);
  const BodyId tail = b.body("", Phase::kOptimizer);
  b.alloc(s).compute(Pointwise{PointwiseKind::kFill, 1, 1, Dtype::kFp32, Dtype::kFp32}, {}, {s});
  b.order(Stream::kCompute, Stream::kGlobal, 0);
  b.collective({TransferKind::kAllReduce, Axis::kPipeline, true, Bytes(4)}, Stream::kGlobal, {s},
               {s});
  b.order(Stream::kGlobal, Stream::kCompute, 1).add(Synchronize{}).add(HostWait{1}).free(s);
  for (int i = 0; i < 3; ++i) b.call(0, first, i).call(1, second, i);
  b.call(0, tail, 0).call(1, tail, 0);
  return b.job;
}

TEST(JobText, ReadsBackExactly) {
  const Job job = every_kind();
  ASSERT_EQ(verify(job), "");
  const std::string text = print_job(job);
  EXPECT_TRUE(parse_job(text, "x") == job) << text;
  EXPECT_EQ(print_job(parse_job(text, "x")), text);
}

// The text is a format that people keep: a change of it must be meant. To renew the file, print
// every_kind() and read the difference.
TEST(JobText, IsTheTextThatItWas) {
  EXPECT_EQ(print_job(every_kind()), golden("every_kind.job"));
}

std::string trouble(const std::string& text, std::string* where = nullptr) {
  try {
    parse_job(text, "a.job");
  } catch (const Error& error) {
    if (where) *where = error.where();
    return error.message();
  }
  return "";
}

TEST(JobText, NamesTheLineAndWhatWasExpected) {
  const std::string text = print_job(every_kind());
  const auto broken = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    const std::size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    changed.replace(at, from.size(), to);
    std::string where;
    const std::string what = trouble(changed, &where);
    const auto line = std::count(changed.begin(), changed.begin() + static_cast<int>(at), '\n') + 1;
    EXPECT_EQ(where, "a.job:" + std::to_string(line));
    return what;
  };
  EXPECT_EQ(broken("job 1", "job 2"), "expected N with N from 1 to 1, found '2'");
  EXPECT_EQ(broken("alloc %1", "alloc %9"), "expected %N with N from 0 to 3, found '%9'");
  EXPECT_EQ(broken("tensor %1", "tensor %2"), "expected %N with N from 1 to 1, found '%2'");
  EXPECT_EQ(broken("free %1", "free %1 %1"), "expected the end of the line, found '%1'");
  EXPECT_EQ(broken("tensor=2", "tensor=2000000"),
            "expected tensor=N with N from 1 to 1048576, found 'tensor=2000000'");
  EXPECT_NE(broken("layer12.qkv", "layer12.kqv"), "");
  EXPECT_NE(broken("[4,8]", "[4,8,]"), "");
  EXPECT_NE(broken("[4,8]", "[4,1099511627776,1099511627776]"), "");
  EXPECT_NE(broken(" -> %1", " %1"), "");
  EXPECT_NE(broken("order=pipeline,", "order=tensor,"), "");
  EXPECT_NE(broken("rows=5+3", "rows=5+"), "");
  EXPECT_NE(broken("rows=5+3", "rows=1+1+1+5"), "");
  EXPECT_NE(broken("micro_batch=1", "micro_batch=0"), "");
  EXPECT_NE(broken("experts tensor", "experts columns"), "");
  EXPECT_NE(broken("experts tensor", "dropout 0.1"), "");
  EXPECT_NE(broken("experts=3", "experts=7"), "");
  EXPECT_NE(broken("over=data", "over=rows"), "");
  EXPECT_EQ(broken("dropout 0.1", "dropout 1"),
            "expected a number from 1e-06 to 0.999999, found '1'");
  EXPECT_NE(broken("dropout 0.1", "dropout nan"), "");
  EXPECT_NE(broken("dropout 0.1", "dropout"), "");
  EXPECT_NE(broken("flat ~0 %0 ->", "flat ~0 %0"), "");
}

TEST(JobText, RefusesASecondRateOfDropout) {
  std::string text = print_job(every_kind());
  text.insert(text.find("dropout 0.1"), "dropout 0.1\n");
  std::string where;
  EXPECT_NE(trouble(text, &where), "");
  EXPECT_EQ(where, "a.job:5");
}

TEST(JobText, RefusesATextThatEndsEarly) {
  const std::string text = print_job(every_kind());
  EXPECT_EQ(trouble(text.substr(0, text.size() - 4)),
            "expected call, residents or end, found the end of the file");
  EXPECT_NE(trouble(""), "");
  EXPECT_NE(trouble("job 1\n"), "");
}

// Seeded mutations: a broken text is an Error or another Job, and that prints and verifies without
// a crash; where it is valid it reads back.
TEST(JobText, SurvivesRandomMutations) {
  const std::string text = print_job(every_kind());
  std::mt19937 random(20240607);
  const auto below = [&](std::size_t n) { return random() % n; };
  int parsed = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string changed = text;
    for (std::size_t edits = 1 + below(3); edits > 0; --edits) {
      const std::size_t at = below(changed.size());
      switch (below(4)) {
        case 0: changed[at] = static_cast<char>(below(256)); break;
        case 1: changed.erase(at, 1 + below(12)); break;
        case 2: changed.insert(at, changed.substr(below(changed.size()), 1 + below(12))); break;
        default: changed[at] = "0123456789%#@$& \n\"\\"[below(19)]; break;
      }
    }
    try {
      const Job job = parse_job(changed, "x");
      ++parsed;
      const bool valid = verify(job).empty();
      const std::string again = print_job(job);
      EXPECT_TRUE(!valid || parse_job(again, "x") == job) << changed;
    } catch (const Error&) {
    }
  }
  EXPECT_GT(parsed, 100);
}

// Size, not time: a text of 100,000 instructions reads back whole.
TEST(JobText, ReadsALongBody) {
  JobBuilder b;
  const TensorId x = b.resident("x", {4, 8});
  const BodyId body = b.body("long", Phase::kForward);
  for (int i = 0; i < 100000; ++i) {
    b.compute(Pointwise{PointwiseKind::kScale, 4, 8}, {x}, {x}, "scale");
  }
  b.call(0, body, 0);
  EXPECT_EQ(verify(b.job), "");
  EXPECT_TRUE(parse_job(print_job(b.job), "x") == b.job);
}

}  // namespace
}  // namespace stepcast

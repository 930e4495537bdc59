// The parts of the executor by themselves: tokens, memory, initial weights, transports.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "execute/arena.h"
#include "execute/job_index.h"
#include "sim/base/error.h"
#include "tests/support/job_builder.h"
#include "tests/support/toy_network.h"
#include "tests/support/train.h"

namespace stepcast {
namespace {

// Four successors a symbol; of a pair one comes seven times in ten, the others once in ten.
TEST(Language, PrefersOneOfFourSuccessors) {
  const auto language = make_language(1000, 3);
  std::vector<std::int64_t> text(20000);
  language->read(0, static_cast<std::int64_t>(text.size()), text.data());
  std::map<std::int64_t, std::set<std::int64_t>> successors;
  std::map<std::pair<std::int64_t, std::int64_t>, std::map<std::int64_t, int>> counts;
  for (std::size_t i = 2; i < text.size(); ++i) {
    ASSERT_LT(text[i], 256);
    successors[text[i - 1]].insert(text[i]);
    ++counts[{text[i - 2], text[i - 1]}][text[i]];
  }
  for (const auto& [symbol, next] : successors) EXPECT_LE(next.size(), 4u);
  double most = 0, all = 0;
  for (const auto& [pair, next] : counts) {
    int best = 0, sum = 0;
    for (const auto& [symbol, count] : next) best = std::max(best, count), sum += count;
    if (sum < 20) continue;
    most += best;
    all += sum;
  }
  EXPECT_NEAR(most / all, 0.7, 0.05);
}

TEST(Language, GivesASequenceWhateverWasReadBefore) {
  const auto language = make_language(16, 3);
  std::vector<std::int64_t> long_one(9), again(5), other(5);
  language->read(4, 9, long_one.data());
  language->read(5, 5, other.data());
  language->read(4, 5, again.data());
  EXPECT_TRUE(std::equal(again.begin(), again.end(), long_one.begin()));
  EXPECT_NE(again, other);
}

TEST(Text, BeginsAgainWhereItEnds) {
  const auto text = make_text("abcde", "x", 256, 3);
  std::vector<std::int64_t> out(4);
  text->read(1, 4, out.data());  // from the byte 3 on
  EXPECT_EQ(out, (std::vector<std::int64_t>{'d', 'e', 'a', 'b'}));
  text->read(5, 4, out.data());  // 15 is the beginning
  EXPECT_EQ(out[0], 'a');
  EXPECT_THROW(make_text("", "x", 256, 3), Error);
  EXPECT_THROW(make_text("abc", "x", 'c', 3), Error);
}

// x, then y while x lives, then z where x was: 64-byte places 0, 1, 0. Counted are the tensors' own
// bytes: at most 8 + 12.
TEST(Arena, ReusesWhatWasFreed) {
  JobBuilder b;
  const TensorId x = b.tensor("x", {2}, Scope::kMicroBatch, Category::kActivations, Dtype::kFp32);
  const TensorId y = b.tensor("y", {3}, Scope::kMicroBatch, Category::kBuffers, Dtype::kFp32);
  const TensorId z = b.tensor("z", {2}, Scope::kMicroBatch, Category::kActivations, Dtype::kFp32);
  const BodyId body = b.body("f", Phase::kForward);
  b.alloc(x).alloc(y).free(x).alloc(z).free(z).free(y);
  b.call(0, body, 0);
  const MemoryPlan plan = plan_memory(b.job, b.job.programs[0]);
  EXPECT_EQ(plan.allocs, (std::vector<std::size_t>{0, 64, 0}));
  EXPECT_EQ(plan.size, 128u);
  Arena arena(plan);
  for (int step = 0; step < 2; ++step) {
    arena.begin_step();
    const std::byte* first = arena.allocate(b.job.tensors[0]);
    EXPECT_EQ(arena.allocate(b.job.tensors[1]), first + 64);
    arena.free(b.job.tensors[0]);
    EXPECT_EQ(arena.allocate(b.job.tensors[2]), first);
    arena.free(b.job.tensors[2]);
    arena.free(b.job.tensors[1]);
    EXPECT_EQ(arena.live(), Bytes(0));
    EXPECT_EQ(arena.peak(), Bytes(20));
    EXPECT_EQ(arena.at_peak()[static_cast<std::size_t>(Category::kBuffers)], Bytes(12));
  }
}

// The pieces of all tensor ranks, put where they belong, are the weight of one rank.
TEST(InitialValues, AreTheSameHoweverAWeightIsCut) {
  const auto values_of = [](const Job& job, const std::string& name, int t, int ranks) {
    for (std::size_t i = 0; i < job.tensors.size(); ++i) {
      if (job.names[static_cast<std::size_t>(job.tensors[i].label.name)] != name) continue;
      Place place{job.batch, t, ranks, 1};
      const JobIndex index(job);
      std::vector<float> out(static_cast<std::size_t>(job.tensors[i].shape.elements()));
      InitialValues{job, index, place, 0.02, 1}.write(static_cast<TensorId>(i), 0, 0,
                                                      job.tensors[i].shape.elements(), out.data());
      return out;
    }
    ADD_FAILURE() << name;
    return std::vector<float>();
  };
  const Model model = llama_model(1, 16, 4, 2, 24, 62);
  Plan plan = executable_plan(8, 1);
  const Job one = lowered(model, plan);
  plan.tensor = 2;
  const Job two = lowered(model, plan);
  // qkv: 8 rows of queries a rank, then 4 of keys, then 4 of values; 16 columns.
  const auto whole = values_of(one, "qkv.weight", 0, 1);
  for (int t = 0; t < 2; ++t) {
    const auto part = values_of(two, "qkv.weight", t, 2);
    const auto row = [&](std::size_t r) {
      const auto rank = static_cast<std::size_t>(t);
      if (r < 8) return 8 * rank + r;
      return r < 12 ? 16 + 4 * rank + r - 8 : 24 + 4 * rank + r - 12;
    };
    for (std::size_t r = 0; r < 16; ++r) {
      for (std::size_t c = 0; c < 16; ++c) {
        ASSERT_EQ(part[r * 16 + c], whole[row(r) * 16 + c]) << t << " " << r << " " << c;
      }
    }
    // fc2 is cut by columns: (16, 12) of (16, 24).
    const auto columns = values_of(two, "fc2.weight", t, 2);
    const auto all = values_of(one, "fc2.weight", 0, 1);
    for (std::size_t r = 0; r < 16; ++r) {
      for (std::size_t c = 0; c < 12; ++c) {
        ASSERT_EQ(columns[r * 12 + c], all[r * 24 + 12 * static_cast<std::size_t>(t) + c]);
      }
    }
  }
  double squares = 0;
  for (const float value : whole) squares += static_cast<double>(value) * value;
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(whole.size())), 0.02, 0.002);
}

// Four experts of 6 rows (two packed parts of 3) and 4 columns: on one rank; two on each of two
// ranks; cut by rows, and by columns, over two tensor ranks.
TEST(InitialValues, OfExpertsAreTheSameWhereverTheyAre) {
  const auto values = [](Shape shape, std::int64_t experts, Cut cut, std::int64_t part,
                         const Place& place) {
    JobBuilder b;
    const TensorId id = b.resident("fc1.weight", shape);
    b.job.tensors.back().experts = experts;
    b.job.tensors.back().cut = cut;
    if (cut == Cut::kRows) b.job.tensors.back().parts = {part, part};
    std::vector<float> out(static_cast<std::size_t>(shape.elements()));
    const JobIndex index(b.job);
    InitialValues{b.job, index, place, 0.02, 1}.write(id, 0, 0, shape.elements(), out.data());
    return out;
  };
  Place alone;
  const std::vector<float> all = values({24, 4}, 4, Cut::kWhole, 0, alone);
  EXPECT_EQ(std::set<float>(all.begin(), all.end()).size(), all.size());
  std::vector<float> joined;
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    Place place;
    place.expert_rank = rank;
    const std::vector<float> part = values({12, 4}, 2, Cut::kWhole, 0, place);
    joined.insert(joined.end(), part.begin(), part.end());
  }
  EXPECT_EQ(joined, all);

  // Two parts of 4 rows: here, of each expert, rows 0 1 | 4 5 or 2 3 | 6 7.
  const std::vector<float> whole = values({32, 4}, 4, Cut::kWhole, 0, alone);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    Place place;
    place.tensor_ranks = 2;
    place.tensor_rank = static_cast<std::int64_t>(rank);
    const std::vector<float> rows = values({16, 4}, 4, Cut::kRows, 2, place);
    const std::vector<float> columns = values({32, 2}, 4, Cut::kColumns, 0, place);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::size_t expert = i / 16, row = i / 4 % 4;
      const std::size_t there = 8 * expert + row / 2 * 4 + 2 * rank + row % 2;
      ASSERT_EQ(rows[i], whole[there * 4 + i % 4]) << rank << " " << i;
    }
    for (std::size_t i = 0; i < columns.size(); ++i) {
      ASSERT_EQ(columns[i], whole[i / 2 * 4 + 2 * rank + i % 2]) << rank << " " << i;
    }
  }
}

// Several threads share a large table.
TEST(InitialValues, AreTheSameInOnePieceAndInMany) {
  const Job job = lowered(gpt_model(1, 256, 4, 9000, 8), executable_plan(8, 1));
  const Place place{job.batch, 0, 1, 1};
  const JobIndex index(job);
  const InitialValues initial{job, index, place, 0.02, 1};
  for (std::size_t i = 0; i < job.tensors.size(); ++i) {
    const std::int64_t elements = job.tensors[i].shape.elements();
    if (job.tensors[i].category != Category::kWeights || elements < 9000 * 256) continue;
    std::vector<float> whole(static_cast<std::size_t>(elements)), pieces(whole.size());
    initial.write(static_cast<TensorId>(i), 0, 0, elements, whole.data());
    constexpr std::int64_t kPiece = 100'000;
    for (std::int64_t at = 0; at < elements; at += kPiece) {
      initial.write(static_cast<TensorId>(i), 0, at, std::min(kPiece, elements - at),
                    pieces.data() + at);
    }
    EXPECT_EQ(whole, pieces);
    return;
  }
  FAIL() << "the table is large";
}

// Ranks 0, 1, 2 hold 1, 10, 100 (times the element's number).
TEST(ThreadTransports, ReduceGatherAndScatter) {
  Mesh mesh;
  mesh.degree(Axis::kData) = 3;
  auto transports = make_thread_transports(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      Transport& all = *transports[static_cast<std::size_t>(rank)];
      const Group group = group_of(mesh, rank, Axis::kData, false);
      const auto unit = static_cast<float>(std::pow(10, rank));
      std::vector<float> values(7);
      for (std::size_t i = 0; i < 7; ++i) values[i] = unit * static_cast<float>(i);
      all.all_reduce(group, values, Reduction::kSum);
      for (std::size_t i = 0; i < 7; ++i) EXPECT_EQ(values[i], 111 * static_cast<float>(i));
      std::vector<float> one = {unit};
      all.all_reduce(group, one, Reduction::kMaximum);
      EXPECT_EQ(one[0], 100);
      const std::vector<float> mine = {unit, -unit};
      std::vector<float> gathered(6);
      all.all_gather(group, mine, gathered);
      EXPECT_EQ(gathered, (std::vector<float>{1, -1, 10, -10, 100, -100}));
      std::vector<float> piece(1);
      const std::vector<float> parts = {unit, 2 * unit, 3 * unit};
      all.reduce_scatter(group, parts, piece, Reduction::kSum);
      EXPECT_EQ(piece[0], 111 * static_cast<float>(rank + 1));
      // Of rank r's parts r0 r1 r2, rank i gets 0i 1i 2i.
      std::vector<std::byte> given, got(3);
      for (int i = 0; i < 3; ++i) given.push_back(static_cast<std::byte>(10 * rank + i));
      all.all_to_all(group, given, got);
      for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(got[static_cast<std::size_t>(i)], static_cast<std::byte>(10 * i + rank));
      }
      // Two messages around a ring: sends do not wait, and arrive in order.
      for (int i = 0; i < 2; ++i) {
        const auto message = static_cast<std::byte>(10 * rank + i);
        all.send((rank + 1) % 3, Stream::kSendForward, {&message, 1});
      }
      for (int i = 0; i < 2; ++i) {
        std::byte message{};
        all.receive((rank + 2) % 3, Stream::kSendForward, {&message, 1});
        EXPECT_EQ(message, static_cast<std::byte>(10 * ((rank + 2) % 3) + i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Group, OfTheEndsHasTwoMembers) {
  Mesh mesh;
  mesh.degree(Axis::kPipeline) = 4;
  mesh.degree(Axis::kTensor) = 2;
  const Group group = group_of(mesh, 7, Axis::kPipeline, true);
  EXPECT_EQ(group.members, (std::vector<int>{1, 7}));
  EXPECT_EQ(group.index, 1u);
}

TEST(LoneTransport, GivesARankWhatItHasItself) {
  const auto alone = make_lone_transport(3);
  EXPECT_EQ(alone->rank(), 3);
  std::vector<double> values = {2, 5};
  alone->sum_everywhere(values);
  EXPECT_EQ(values, (std::vector<double>{2, 5}));
  Group group;
  group.members = {2, 3};
  const std::vector<float> mine = {1, 2}, both = {3, 4, 5, 6};
  std::vector<float> all(4), piece(2);
  alone->all_gather(group, mine, all);
  EXPECT_EQ(all, (std::vector<float>{1, 2, 1, 2}));
  alone->reduce_scatter(group, both, piece, Reduction::kSum);
  EXPECT_EQ(piece, (std::vector<float>{3, 4}));
  const std::vector<std::byte> given = {std::byte{1}, std::byte{2}};
  std::vector<std::byte> got(2);
  alone->all_to_all(group, given, got);
  EXPECT_EQ(got, given);
  std::byte message{7};
  alone->send(2, Stream::kSendForward, {&message, 1});
  EXPECT_EQ(alone->receive(2, Stream::kSendForward, {&message, 1}), 0);
  EXPECT_EQ(message, std::byte{0});
}

}  // namespace
}  // namespace stepcast

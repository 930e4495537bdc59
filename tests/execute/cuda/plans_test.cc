// What the host decides before a GPU runs anything: which communicators there are, which fences an
// arena with fixed places needs, where a step's time went. All of it follows from the Job.
#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "execute/cuda/communicators.h"
#include "execute/cuda/cuda_device.h"
#include "execute/cuda/fences.h"
#include "execute/cuda/recorded.h"
#include "execute/cuda/waits.h"
#include "sim/engine/simulate.h"
#include "tests/support/toy_network.h"
#include "tests/support/train.h"

namespace stepcast {
namespace {

Model plan_llama(std::int64_t layers) { return llama_model(layers, 16, 4, 2, 24, 61); }

Plan mixed(std::int64_t tensor, std::int64_t pipeline, std::int64_t data, int zero) {
  Plan plan = executable_plan(8, 8);
  plan.compute = Dtype::kBf16;
  plan.master = true;
  plan.tensor = tensor;
  plan.pipeline = pipeline;
  plan.data = data;
  plan.zero = zero;
  plan.sequence_parallel = tensor > 1;
  return plan;
}

// Ranks that share a color share a communicator, with one key each; all ranks make the same list.
TEST(Communicators, SplitAllRanksAlike) {
  Plan plan = mixed(2, 3, 2, 1);
  const Job job = lowered(plan_llama(3), plan);
  const auto first = cuda::plan_communicators(job, 0);
  std::set<std::string> names;
  for (const cuda::Split& split : first) names.insert(split.name);
  EXPECT_TRUE(names.contains("tensor"));
  EXPECT_TRUE(names.contains("data"));
  EXPECT_TRUE(names.contains("forward 0"));
  EXPECT_TRUE(names.contains("backward 1"));
  std::vector<std::map<int, std::set<int>>> keys(first.size());  // by split: color -> keys
  for (int rank = 0; rank < job.mesh.ranks(); ++rank) {
    const auto splits = cuda::plan_communicators(job, rank);
    ASSERT_EQ(splits.size(), first.size());
    for (std::size_t i = 0; i < splits.size(); ++i) {
      EXPECT_EQ(splits[i].name, first[i].name);
      if (splits[i].color == cuda::kNoColor) continue;
      EXPECT_TRUE(keys[i][splits[i].color].insert(splits[i].key).second) << splits[i].name;
      if (splits[i].direction != 0) continue;
      const Group group = group_of(job.mesh, rank, splits[i].axes, splits[i].ends_only);
      EXPECT_EQ(splits[i].key, static_cast<int>(group.index));
      EXPECT_EQ(splits[i].color, group.members.front());
    }
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    for (const auto& [color, members] : keys[i]) {
      EXPECT_EQ(*members.rbegin(), static_cast<int>(members.size()) - 1) << first[i].name;
      EXPECT_TRUE(first[i].direction == 0 || members.size() == 2) << first[i].name;
    }
  }
}

// Sender and receiver of every message find themselves in one pair: the sender's key is 0.
TEST(Communicators, PairTheEndsOfEveryHop) {
  for (const std::int64_t stages : {2, 3, 4, 5}) {
    Plan plan = mixed(1, stages, 2, 0);
    plan.schedule = PipelineSchedule::kInterleaved;
    plan.virtual_stages = 2;
    plan.global_batch = 2 * 2 * stages;
    const Job job = lowered(plan_llama(2 * stages), plan);
    const auto count = static_cast<int>(stages);
    for (int rank = 0; rank < job.mesh.ranks(); ++rank) {
      const auto mine = cuda::plan_communicators(job, rank);
      const int stage = job.mesh.stage(rank);
      for (const int direction : {1, -1}) {
        const std::size_t hop = cuda::split_of_hop(mine, direction, stage, count);
        if (mine[hop].color != rank) continue;  // an end of the pipeline sends nothing
        EXPECT_EQ(mine[hop].key, 0);
        const int peer = job.mesh.neighbour(rank, Axis::kPipeline, direction);
        const auto theirs = cuda::plan_communicators(job, peer);
        EXPECT_EQ(theirs[hop].color, rank);
        EXPECT_EQ(theirs[hop].key, 1);
      }
    }
  }
}

TEST(Communicators, AreNoneForOneRank) {
  EXPECT_TRUE(cuda::plan_communicators(lowered(plan_llama(1), mixed(1, 1, 1, 0)), 0).empty());
}

// Streams that get on in any order that their own order, Records, Waits and fences allow. Whoever
// uses a tensor first makes its place its own; whoever uses it later must find it so.
class Streams {
 public:
  Streams(const Job& job, const Program& program, const MemoryPlan& places,
          const std::vector<cuda::Fence>& fences)
      : job_(job) {
    std::multimap<std::int64_t, std::int64_t> before;
    for (const cuda::Fence& fence : fences) before.emplace(fence.before, fence.after);
    std::int64_t number = 0;
    std::size_t next = 0, use = 0;
    std::vector<std::int64_t> events(static_cast<std::size_t>(job.events), -1);
    std::array<std::int64_t, kStreams> last;
    last.fill(-1);
    for (const Call& call : program.schedule) {
      const Body& body = job.bodies[static_cast<std::size_t>(call.body)];
      for (const Instruction& i : body.code) {
        const int stream = cuda::stream_index(i);
        if (const auto* a = std::get_if<Alloc>(&i)) {
          living_[key(call, a->tensor)] = {places.allocs[next++], use++};
        } else if (const auto* r = std::get_if<Record>(&i)) {
          // Reached when all that the stream held is done, what it waited for included.
          events[static_cast<std::size_t>(r->event)] = add_marker(r->stream, {});
        } else if (const auto* w = std::get_if<Wait>(&i)) {
          add_marker(w->stream, {events[static_cast<std::size_t>(w->event)]});
        } else if (stream < kStreams) {
          Task task;
          task.stream = stream;
          for (auto [it, end] = before.equal_range(number); it != end; ++it) {
            task.after.push_back(task_of_.at(it->second));
          }
          for (const TensorId id : operands(body, i)) {
            const auto found = living_.find(key(call, id));
            if (found == living_.end()) continue;
            const auto size =
                static_cast<std::size_t>(job.tensors[static_cast<std::size_t>(id)].bytes().count);
            task.uses.push_back({found->second.first, size, found->second.second});
          }
          task_of_[number] = add(task);
        }
        ++number;
      }
    }
  }

  // Whether some tensor found another one in its place, in one order of many.
  bool collides(std::uint32_t seed) const {
    std::mt19937 random(seed);
    std::array<std::size_t, kStreams> at = {};
    std::vector<bool> done(tasks_.size(), false);
    std::map<std::size_t, std::size_t> owner;  // by block of 512 bytes
    std::set<std::size_t> known;
    for (std::size_t left = tasks_.size(); left > 0;) {
      // One stream runs on for a while, so that others fall far behind.
      const auto stream = static_cast<std::size_t>(random() % kStreams);
      for (auto run = random() % 40 + 1; run > 0 && at[stream] < queues_[stream].size(); --run) {
        const std::size_t index = queues_[stream][at[stream]];
        const Task& task = tasks_[index];
        const bool ready = std::all_of(task.after.begin(), task.after.end(), [&](std::int64_t t) {
          return t < 0 || done[static_cast<std::size_t>(t)];
        });
        if (!ready) break;
        for (const Use& use : task.uses) {
          const bool fresh = known.insert(use.number).second;
          for (std::size_t b = use.begin / 512; b * 512 < use.begin + use.size; ++b) {
            if (fresh) owner[b] = use.number;
            if (owner[b] != use.number) return true;
          }
        }
        done[index] = true;
        ++at[stream];
        --left;
      }
    }
    return false;
  }

 private:
  struct Use {
    std::size_t begin, size, number;
  };
  struct Task {
    int stream = 0;
    std::vector<std::int64_t> after;
    std::vector<Use> uses;
  };

  std::int64_t add(Task task) {
    queues_[static_cast<std::size_t>(task.stream)].push_back(tasks_.size());
    tasks_.push_back(std::move(task));
    return static_cast<std::int64_t>(tasks_.size()) - 1;
  }
  std::int64_t add_marker(Stream stream, std::vector<std::int64_t> after) {
    return add({static_cast<int>(stream), std::move(after), {}});
  }
  std::tuple<TensorId, int, int> key(const Call& call, TensorId id) const {
    const Scope scope = job_.tensors[static_cast<std::size_t>(id)].scope;
    return {id, scope == Scope::kRank ? -1 : call.chunk,
            scope == Scope::kMicroBatch ? call.micro_batch : -1};
  }
  static std::vector<TensorId> operands(const Body& body, const Instruction& i) {
    const auto pool = [&](Operands o) {
      const auto first = body.operands.begin() + o.first;
      return std::vector<TensorId>(first, first + o.reads + o.writes);
    };
    if (const auto* c = std::get_if<Compute>(&i)) return pool(c->operands);
    if (const auto* c = std::get_if<Collective>(&i)) return pool(c->operands);
    if (const auto* s = std::get_if<Send>(&i)) return {s->tensor};
    if (const auto* r = std::get_if<Receive>(&i)) return {r->tensor};
    return {};
  }

  const Job& job_;
  std::vector<Task> tasks_;
  std::array<std::vector<std::size_t>, kStreams> queues_;
  std::map<std::int64_t, std::int64_t> task_of_;  // by number of the instruction
  std::map<std::tuple<TensorId, int, int>, std::pair<std::size_t, std::size_t>> living_;
};

std::vector<Plan> fence_plans() {
  std::vector<Plan> plans;
  plans.push_back(mixed(1, 1, 2, 3));
  plans.back().prefetch = 3;
  plans.push_back(mixed(1, 2, 1, 0));
  plans.push_back(mixed(2, 4, 1, 0));
  plans.push_back(mixed(2, 2, 2, 2));
  plans.push_back(mixed(2, 2, 2, 3));
  plans.back().recompute = Recompute::kFull;
  return plans;
}

TEST(Fences, KeepPlacesApartInWhateverOrderStreamsGetOn) {
  std::size_t fences_of_all = 0, collisions_without = 0;
  for (const Plan& plan : fence_plans()) {
    const Job job = lowered(plan_llama(4), plan);
    for (const Program& program : job.programs) {
      const MemoryPlan places = plan_memory(job, program, kCudaAlignment, {true, 0});
      const std::vector<cuda::Fence> fences = cuda::plan_fences(job, program, places);
      fences_of_all += fences.size();
      const Streams with(job, program, places, fences), without(job, program, places, {});
      for (std::uint32_t seed = 0; seed < 20; ++seed) {
        ASSERT_FALSE(with.collides(seed));
        if (without.collides(seed)) ++collisions_without;
      }
    }
  }
  EXPECT_GT(fences_of_all, 0u);
  EXPECT_GT(collisions_without, 0u);  // the test can see what fences are for
}

TEST(Fences, AreNoneOnOneStream) {
  const Job job = lowered(plan_llama(2), mixed(1, 1, 1, 0));
  const MemoryPlan places = plan_memory(job, job.programs[0], kCudaAlignment, {true, 0});
  EXPECT_TRUE(cuda::plan_fences(job, job.programs[0], places).empty());
}

// One micro-batch on two stages, by hand: the second stage computes nothing until the message is
// there. All parts of a rank sum to the step.
TEST(Waits, SumToTheStepAndNameWhatWasWaitedFor) {
  const Job job = lowered(plan_llama(4), mixed(2, 2, 1, 0));
  const auto stages = job.programs.size();
  for (std::size_t stage = 0; stage < stages; ++stage) {
    std::vector<Span> spans;
    Instant clock;
    Duration computed, exposed;
    for (const Call& call : job.programs[stage].schedule) {
      for (const Instruction& i : job.bodies[static_cast<std::size_t>(call.body)].code) {
        const int stream = cuda::stream_index(i);
        if (stream == kStreams) continue;
        // Everything one after the other: kernels 5 ns, all else 3 ns.
        const bool computes = stream == static_cast<int>(Stream::kCompute);
        const Duration length = Duration(computes ? 5000 : 3000);
        Span span;
        span.stream = static_cast<Stream>(stream);
        span.begin = clock;
        span.end = clock = clock + length;
        spans.push_back(span);
        (computes ? computed : exposed) += length;
      }
    }
    const Duration step = clock - Instant() + Duration(7000);
    const Breakdown parts = cuda::attribute(job, job.programs[stage], spans, step);
    Duration sum, kernels;
    for (const Duration part : parts) sum += part;
    for (const Part part : {Part::kCompute, Part::kRecompute, Part::kOptimizer}) {
      kernels += parts[static_cast<std::size_t>(part)];
    }
    EXPECT_EQ(sum, step);
    EXPECT_EQ(kernels, computed);
    EXPECT_GT(parts[static_cast<std::size_t>(Part::kTensor)], Duration());
    EXPECT_GT(parts[static_cast<std::size_t>(Part::kPipeline)], Duration());
    EXPECT_GE(parts[static_cast<std::size_t>(Part::kOther)], Duration(7000));
  }
}

// The simulator attributes its own step; from its spans alone the same must follow. On one stage,
// so that nothing is received, with transfers that slow nobody down.
TEST(Waits, AreAttributedAsTheSimulatorDoes) {
  for (const int zero : {0, 1, 2, 3}) {
    Plan plan = mixed(2, 1, 2, zero);
    if (zero == 2) plan.recompute = Recompute::kFull;
    const Job job = lowered(plan_llama(3), plan);
    Prices prices;
    for (std::size_t i = 0; i < job.ops.size(); ++i) {
      prices.ops.push_back(Duration(static_cast<std::int64_t>(3000 + 700 * (i % 5))));
      prices.basis.push_back(Basis::kMeasured);
    }
    for (std::size_t i = 0; i < job.transfers.size(); ++i) {
      prices.transfers.push_back(Duration(static_cast<std::int64_t>(9000 + 1100 * i)));
    }
    const Timeline timeline = simulate(job, prices, {Ranks::kFolded, true, true});
    ASSERT_EQ(timeline.ranks.size(), 1u);
    const Breakdown parts =
        cuda::attribute(job, job.programs[0], timeline.trace.spans, timeline.step);
    EXPECT_EQ(parts, timeline.ranks[0].breakdown) << "zero " << zero;
    EXPECT_GT(parts[static_cast<std::size_t>(Part::kData)], Duration()) << "zero " << zero;
  }
}

// Rank r takes 10 + r ns for whatever it does: members of a group, and both ends of a message, take
// what the fastest of them took.
TEST(Recorded, TakesTheShortestSpanOfThoseWhoMeet) {
  const Job job = lowered(plan_llama(2), mixed(2, 2, 2, 1));
  std::vector<std::vector<Span>> spans(static_cast<std::size_t>(job.mesh.ranks()));
  for (int rank = 0; rank < job.mesh.ranks(); ++rank) {
    const auto& program = job.programs[static_cast<std::size_t>(job.mesh.stage(rank))];
    for_each_timed(job, program, [&](const auto&...) {
      Span span;
      span.end = span.begin + Duration(10'000 + 1000 * rank);
      spans[static_cast<std::size_t>(rank)].push_back(span);
    });
  }
  const Recording recording = cuda::record_spans(job, spans, Duration(5));
  EXPECT_EQ(recording.step, Duration(5));
  std::set<std::string> kinds;
  for (int rank = 0; rank < job.mesh.ranks(); ++rank) {
    const auto& program = job.programs[static_cast<std::size_t>(job.mesh.stage(rank))];
    for_each_timed(job, program,
                   [&](const Call&, std::size_t, const Instruction& i, std::size_t at) {
                     int fastest = rank;
                     if (const auto* c = std::get_if<Collective>(&i)) {
                       const Transfer& t = job.transfers[static_cast<std::size_t>(c->transfer)];
                       fastest = group_of(job.mesh, rank, t.axes, t.ends_only).members.front();
                       kinds.insert("collective");
                     } else if (const auto* s = std::get_if<Send>(&i)) {
                       fastest = std::min(rank, job.mesh.neighbour(rank, Axis::kPipeline, s->step));
                       kinds.insert("send");
                     } else if (const auto* r = std::get_if<Receive>(&i)) {
                       fastest = std::min(rank, job.mesh.neighbour(rank, Axis::kPipeline, r->step));
                       kinds.insert("receive");
                     }
                     ASSERT_EQ(recording.durations[static_cast<std::size_t>(rank)][at],
                               Duration(10'000 + 1000 * fastest));
                     // A profile of this takes the whole of collectives.
                     ASSERT_EQ(recording.whole[static_cast<std::size_t>(rank)][at],
                               Duration(10'000 + 1000 * fastest));
                   });
  }
  EXPECT_EQ(kinds.size(), 3u);
}

TEST(CudaDevice, TakesTheGpuOfItsNumberOnItsMachine) {
  EXPECT_EQ(cuda_device_of_process(5) % std::max(1, cuda_devices()), cuda_device_of_process(5));
}

TEST(CudaDevice, SaysInOneLineWhatIsMissing) {
  const std::string missing = cuda_missing();
  if (missing.empty()) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(missing.find('\n'), std::string::npos);
  EXPECT_EQ(cuda_devices(), 0);
}

TEST(ClockRange, SaysHowAGpuWasClocked) {
  ClockRange clocks;
  EXPECT_EQ(to_text(clocks), "");
  clocks.add(CudaMachine{});  // NVML is not there
  EXPECT_EQ(clocks.looks, 0);
  CudaMachine look;
  look.clock_mhz_max = 1980;
  look.power_limit_watts = 700;
  for (const std::int64_t mhz : {1980, 1500, 1740, 1980}) {
    look.clock_mhz = mhz;
    look.power_watts = 700 - static_cast<double>(1980 - mhz) / 10;
    look.temperature_celsius = static_cast<int>(70 - mhz / 100);
    look.throttled_by.clear();
    if (mhz < 1600) look.throttled_by = {"power cap"};
    clocks.add(look);
  }
  EXPECT_EQ(to_text(clocks),
            "1500 to 1980 MHz, 1800 in the mean, of 1980; up to 700 W of 700, 55 C; held down by "
            "power cap in 25 % of 4 looks");
}

}  // namespace
}  // namespace stepcast

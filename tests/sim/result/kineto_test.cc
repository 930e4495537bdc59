#include "sim/result/kineto.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "sim/base/json.h"
#include "tests/sim/result/small_job.h"

namespace stepcast {
namespace {

Trace two_stage_trace() {
  return {{span(0, kForwardBody, 0, Stream::kCompute, 1'234'567'899, 2'234'567'100, 3, 1),
           span(0, kForwardBody, 1, Stream::kTensor, 2'300'000'000, 2'400'000'000, 3, 1),
           span(0, kForwardBody, 3, Stream::kSendForward, 2'500'000'000, 2'600'000'000, 3, 1),
           span(2, kBackwardBody, 0, Stream::kReceiveBackward, 2'600'000'000, 2'700'000'000),
           span(2, kBackwardBody, 2, Stream::kTensor, 2'700'000'000, 2'800'000'000),
           span(2, kOptimizerBody, 1, Stream::kGlobal, 2'800'000'000, 2'900'000'000)}};
}

std::vector<Json> events(const Json& root, std::string_view category) {
  std::vector<Json> result;
  for (const Json& event : root.at("traceEvents")) {
    if (event.at("ph") == "X" && event.at("cat") == category) result.push_back(event);
  }
  return result;
}

std::string metadata(const Json& root, int process, int thread, std::string_view name,
                     const std::string& key) {
  for (const Json& event : root.at("traceEvents")) {
    if (event.at("ph") == "M" && event.at("name") == name && event.at("pid") == process &&
        event.at("tid") == thread) {
      return event.at("args").at(key).get<std::string>();
    }
  }
  return "";
}

TEST(Kineto, OpensWithWhatProfilerTracesOpenWith) {
  const Json root = Json::parse(write_kineto(small_job(), two_stage_trace(), 2, "NVIDIA H100"));
  EXPECT_EQ(root.at("schemaVersion"), 1);
  EXPECT_EQ(root.at("deviceProperties"), Json::parse(R"([{"id": 2, "name": "NVIDIA H100"}])"));
  EXPECT_EQ(root.at("distributedInfo").at("backend"), "nccl");
  EXPECT_EQ(root.at("distributedInfo").at("rank"), 2);
  EXPECT_EQ(root.at("distributedInfo").at("world_size"), 4);
  // rank 2 = tensor 0 of stage 1; its tensor group is {2, 3}, its pipeline group {0, 2}
  const Json& groups = root.at("distributedInfo").at("pg_config");
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(root.at("distributedInfo").at("pg_count"), 3);
  EXPECT_EQ(groups[0].at("pg_desc"), "pipeline");
  EXPECT_EQ(groups[0].at("ranks"), Json::parse("[0, 2]"));
  EXPECT_EQ(groups[1].at("pg_desc"), "tensor");
  EXPECT_EQ(groups[1].at("ranks"), Json::parse("[2, 3]"));
  EXPECT_EQ(groups[2].at("pg_size"), 4);
  EXPECT_EQ(metadata(root, 2, 0, "process_name", "name"), "stage 1 rank 2");
  EXPECT_EQ(metadata(root, 2, 8, "thread_name", "name"), "stream 8 tensor");
}

TEST(Kineto, WritesAComputeAsAKernelOfItsDeviceAndStream) {
  const std::string text = write_kineto(small_job(), two_stage_trace(), 0);
  const Json kernel = events(Json::parse(text), "kernel").at(0);
  EXPECT_EQ(kernel.at("name"), "layer3.qkv");
  EXPECT_EQ(kernel.at("pid"), 0);
  EXPECT_EQ(kernel.at("tid"), 7);
  EXPECT_EQ(kernel.at("args").at("device"), 0);
  EXPECT_EQ(kernel.at("args").at("stream"), 7);
  EXPECT_EQ(kernel.at("args").at("micro_batch"), 3);
  EXPECT_EQ(kernel.at("args").at("chunk"), 1);
  EXPECT_EQ(kernel.at("args").at("phase"), "forward");
  EXPECT_EQ(kernel.at("args").at("op"), to_text(small_job().ops[0]));
}

// 1,234,567,899 ps is 1234.567 us and 899 ps, 2,234,567,100 ps is 2234.567 us: 1000.000 us apart.
TEST(Kineto, WritesMicrosecondsWithNanosecondDigits) {
  const std::string text = write_kineto(small_job(), two_stage_trace(), 0);
  EXPECT_NE(text.find("\"ts\":1234.567,\"dur\":1000.000,"), std::string::npos) << text;
}

// 1 MiB of bf16 are 524288 elements; a member of a group of 2 brings half of what is gathered, and
// keeps half of what is reduced and scattered.
TEST(Kineto, DescribesCollectivesAsPyTorchAndNcclDo) {
  const Job job = small_job();
  const auto of_rank = [&](int rank) {
    return events(Json::parse(write_kineto(job, two_stage_trace(), rank)), "kernel");
  };
  const std::vector<Json> first = of_rank(0), third = of_rank(2);
  ASSERT_EQ(first.size(), 3u);
  ASSERT_EQ(third.size(), 3u);

  const Json& gather = first[1];
  EXPECT_EQ(gather.at("name"),
            "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)");
  EXPECT_EQ(gather.at("args").at("Collective name"), "_allgather_base");
  EXPECT_EQ(gather.at("args").at("In msg nelems"), 262'144);
  EXPECT_EQ(gather.at("args").at("Out msg nelems"), 524'288);
  EXPECT_EQ(gather.at("args").at("Group size"), 2);
  EXPECT_EQ(gather.at("args").at("dtype"), "BFloat16");
  EXPECT_EQ(gather.at("args").at("Process Group Description"), "tensor");
  EXPECT_EQ(gather.at("args").at("label"), "layer3.gather");

  EXPECT_EQ(first[2].at("name"), "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)");
  EXPECT_EQ(first[2].at("args").at("Collective name"), "send");
  EXPECT_EQ(first[2].at("args").at("In msg nelems"), 524'288);
  EXPECT_EQ(third[0].at("args").at("Collective name"), "recv");
  EXPECT_EQ(third[0].at("args").at("Group size"), 2);

  const Json& scatter = third[1];
  EXPECT_EQ(scatter.at("name"),
            "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)");
  EXPECT_EQ(scatter.at("args").at("Collective name"), "_reduce_scatter_base");
  EXPECT_EQ(scatter.at("args").at("In msg nelems"), 524'288);
  EXPECT_EQ(scatter.at("args").at("Out msg nelems"), 262'144);
  EXPECT_EQ(scatter.at("args").at("phase"), "backward");

  const Json& norm = third[2];
  EXPECT_EQ(norm.at("name"),
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)");
  EXPECT_EQ(norm.at("args").at("Collective name"), "allreduce");
  EXPECT_EQ(norm.at("args").at("In msg nelems"), 1);
  EXPECT_EQ(norm.at("args").at("Group size"), 4);
  EXPECT_EQ(norm.at("args").at("dtype"), "Float");
}

TEST(Kineto, MarksTheStepOfAllRanksOnceOnTheHostAndOnceOnTheDevice) {
  const Json root = Json::parse(write_kineto(small_job(), two_stage_trace(), 0));
  const std::vector<Json> host = events(root, "user_annotation");
  const std::vector<Json> device = events(root, "gpu_user_annotation");
  ASSERT_EQ(host.size(), 1u);
  ASSERT_EQ(device.size(), 1u);
  EXPECT_EQ(host[0].at("name"), "ProfilerStep#0");
  EXPECT_EQ(host[0].at("ts"), 0.0);
  EXPECT_EQ(host[0].at("dur"), 2900.0) << "rank 2 ends last";
  EXPECT_EQ(host[0].at("pid"), 4) << "processes of hosts come after those of devices";
  EXPECT_EQ(device[0].at("pid"), 0);
  EXPECT_EQ(device[0].at("tid"), 7);
  EXPECT_EQ(device[0].at("dur"), host[0].at("dur"));
}

TEST(Kineto, WritesAllTracedRanksIntoOneFileIfAsked) {
  const Json root = Json::parse(write_kineto(small_job(), two_stage_trace(), kAllTracedRanks));
  EXPECT_EQ(events(root, "kernel").size(), 6u);
  EXPECT_EQ(events(root, "user_annotation").size(), 2u);
  EXPECT_EQ(root.at("deviceProperties").size(), 2u);
  EXPECT_EQ(root.at("deviceProperties")[1].at("id"), 2);
}

TEST(Kineto, StaysValidJsonWhateverANameHolds) {
  const Job job = small_job("a\"b\\c\n\x01\xff\xe2\x82\xac");
  const Json root = Json::parse(write_kineto(job, two_stage_trace(), 0));
  // \xff is no UTF-8: replaced
  EXPECT_EQ(events(root, "kernel").at(0).at("name"),
            "layer3.a\"b\\c\n\x01\xef\xbf\xbd\xe2\x82\xac");
}

TEST(Kineto, SaysTheSameTwice) {
  const Job job = small_job();
  EXPECT_EQ(write_kineto(job, two_stage_trace(), kAllTracedRanks),
            write_kineto(job, two_stage_trace(), kAllTracedRanks));
}

TEST(Kineto, WritesAnEmptyTraceAsAStepOfNoLength) {
  const Json one = Json::parse(write_kineto(small_job(), Trace{}, 1));
  EXPECT_TRUE(events(one, "kernel").empty());
  EXPECT_EQ(events(one, "user_annotation").at(0).at("dur"), 0.0);
  const Json all = Json::parse(write_kineto(small_job(), Trace{}, kAllTracedRanks));
  EXPECT_TRUE(all.at("traceEvents").empty());
}

TEST(KinetoDeathTest, RefusesARankThatTheMeshDoesNotHave) {
  EXPECT_DEATH(write_kineto(small_job(), Trace{}, 4), "no such rank");
}

}  // namespace
}  // namespace stepcast

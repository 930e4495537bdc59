#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/program/program.h"
#include "tests/support/job_builder.h"

namespace stepcast {
namespace {

using ::testing::HasSubstr;

constexpr Pointwise kGeluOp{PointwiseKind::kGelu, 4, 8};
constexpr Pointwise kGeluBackwardOp{PointwiseKind::kGeluBackward, 4, 8};
constexpr Pointwise kFillOp{PointwiseKind::kFill, 1, 1};

// Two stages, two micro-batches, 1F1B: forward with a tensor-parallel reduction and a message,
// backward with a message back, an update behind a reduction over both stages.
struct Good {
  JobBuilder b{2};
  TensorId x, a, g, norm;
  BodyId forward0, backward0, forward1, backward1, optimizer;

  Good() {
    b.job.mesh.degree(Axis::kTensor) = 2;
    x = b.resident("x", {4, 8});
    a = b.tensor("a", {4, 8});
    g = b.tensor("g", {4, 8});
    norm = b.tensor("norm", {1, 1}, Scope::kRank, Category::kBuffers);
    const Transfer reduce{TransferKind::kAllReduce, Axis::kTensor, false, Bytes(64)};
    const Transfer sum{TransferKind::kAllReduce, Axis::kTensor | Axis::kPipeline, false, Bytes(2)};

    forward0 = b.body("forward first", Phase::kForward);
    b.alloc(a).compute(kGeluOp, {x}, {a}).order(Stream::kCompute, Stream::kTensor, 0);
    b.collective(reduce, Stream::kTensor, {a}, {a}).order(Stream::kTensor, Stream::kCompute, 1);
    b.order(Stream::kCompute, Stream::kSendForward, 2).send(a).record(Stream::kSendForward, 3);
    backward0 = b.body("backward first", Phase::kBackward);
    b.alloc(g).receive(g, true).order(Stream::kReceiveBackward, Stream::kCompute, 4);
    b.compute(kGeluBackwardOp, {g, x}, {g}).wait(Stream::kCompute, 3).free(a).free(g);
    forward1 = b.body("forward last", Phase::kForward);
    b.alloc(a).receive(a).order(Stream::kReceiveForward, Stream::kCompute, 0);
    backward1 = b.body("backward last", Phase::kBackward);
    b.alloc(g).compute(kGeluBackwardOp, {a, x}, {g}).free(a);
    b.order(Stream::kCompute, Stream::kSendBackward, 1).send(g, true);
    b.order(Stream::kSendBackward, Stream::kCompute, 2).free(g);
    optimizer = b.body("optimizer", Phase::kOptimizer);
    b.alloc(norm).compute(kFillOp, {}, {norm}).order(Stream::kCompute, Stream::kGlobal, 5);
    b.collective(sum, Stream::kGlobal, {norm}, {norm}).order(Stream::kGlobal, Stream::kCompute, 6);
    b.free(norm);

    b.call(0, forward0, 0).call(0, forward0, 1).call(0, backward0, 0).call(0, backward0, 1);
    b.call(0, optimizer, 0);
    b.call(1, forward1, 0).call(1, backward1, 0).call(1, forward1, 1).call(1, backward1, 1);
    b.call(1, optimizer, 0);
  }

  std::vector<Instruction>& code(BodyId body) {
    return b.job.bodies[static_cast<std::size_t>(body)].code;
  }
  // The index of the n-th instruction of a kind.
  template <class Kind>
  std::size_t find(BodyId body, int n = 0) {
    for (std::size_t i = 0; i < code(body).size(); ++i) {
      if (std::holds_alternative<Kind>(code(body)[i]) && n-- == 0) return i;
    }
    ADD_FAILURE() << "no such instruction";
    return 0;
  }
  template <class Kind>
  void erase(BodyId body, int n = 0) {
    code(body).erase(code(body).begin() + static_cast<std::ptrdiff_t>(find<Kind>(body, n)));
  }
  template <class Kind>
  Kind& get(BodyId body, int n = 0) {
    return std::get<Kind>(code(body)[find<Kind>(body, n)]);
  }
  std::string verify() const { return stepcast::verify(b.job); }
};

TEST(Verify, PassesAGoodJob) { EXPECT_EQ(Good().verify(), ""); }

TEST(Verify, NamesStageCallAndInstructionOfAFault) {
  Good job;
  job.erase<Compute>(job.forward0);
  job.b.job.bodies[0].operands.erase(job.b.job.bodies[0].operands.begin(),
                                     job.b.job.bodies[0].operands.begin() + 2);
  job.get<Collective>(job.forward0).operands.first = 0;
  EXPECT_EQ(job.verify(),
            "stage 0, call 0 (forward first, chunk 0, micro-batch 0), instruction 3: "
            "reads %1 \"a\" before it is written");
}

TEST(Verify, FindsAReadOnAStreamThatDidNotWaitForTheWriter) {
  Good job;
  job.erase<Wait>(job.forward0, 0);
  EXPECT_THAT(job.verify(), HasSubstr("reads %1 \"a\" on stream tensor, which has not waited for "
                                      "its write on compute"));
}

// The collective writes in place; the send must wait for it, not only for the kernel before it.
TEST(Verify, FindsAReadThatWaitedForTooEarlyAnEvent) {
  Good job;
  job.get<Wait>(job.forward0, 2).event = 0;
  EXPECT_THAT(job.verify(), HasSubstr("on stream send_forward, which has not waited for its write "
                                      "on tensor"));
}

TEST(Verify, FindsAReadInALaterCallThatNobodyWaitedFor) {
  Good job;
  job.erase<Wait>(job.forward1);
  EXPECT_THAT(job.verify(), HasSubstr("stage 1, call 1 (backward last, chunk 0, micro-batch 0), "
                                      "instruction 1: reads %1 \"a\" on stream compute"));
}

TEST(Verify, FindsADropoutThatDropsAllOrNothing) {
  for (const double rate : {-0.1, 1e-9, 1.0, std::nan("")}) {
    Good job;
    job.b.job.dropout = rate;
    EXPECT_EQ(job.verify(), "dropout: the rate is out of range") << rate;
  }
}

// Gelu after the send was issued overwrites what may still be on its way out.
TEST(Verify, FindsAnOverwriteOfWhatAnotherStreamMayStillRead) {
  Good job;
  job.b.body("again", Phase::kForward);
  job.b.compute(kGeluOp, {job.x}, {job.a});
  auto& schedule = job.b.job.programs[0].schedule;
  schedule.insert(schedule.begin() + 1, Call{5, 0, 0});
  EXPECT_THAT(job.verify(), HasSubstr("writes %1 \"a\" on stream compute, which has not waited for "
                                      "its read on send_forward"));
}

TEST(Verify, FindsAFreeWhileAnotherStreamMayStillUseIt) {
  Good job;
  job.erase<Wait>(job.optimizer, 1);
  EXPECT_THAT(job.verify(), HasSubstr("frees %3 \"norm\" on stream compute, which has not waited "
                                      "for its write on global"));
}

TEST(Verify, LetsAFreePassBeforeTheMessageThatReadsHasLeft) {
  Good job;
  job.erase<Wait>(job.backward0, 1);
  EXPECT_EQ(job.verify(), "");
}

TEST(Verify, FindsAWriteToWhatIsNotAllocated) {
  Good job;
  job.erase<Alloc>(job.forward0);
  EXPECT_THAT(job.verify(), HasSubstr("writes %1 \"a\" while it is not allocated"));
}

TEST(Verify, FindsASecondAllocation) {
  Good job;
  job.code(job.forward0).insert(job.code(job.forward0).begin(), Alloc{job.a});
  EXPECT_THAT(job.verify(), HasSubstr("allocates %1 \"a\" a second time"));
}

TEST(Verify, FindsADoubleFree) {
  Good job;
  job.code(job.backward1).push_back(Free{job.g});
  EXPECT_THAT(job.verify(), HasSubstr("frees %2 \"g\" while it is not allocated"));
}

TEST(Verify, FindsAReadAfterFree) {
  Good job;
  std::swap(job.code(job.backward1)[1], job.code(job.backward1)[2]);
  EXPECT_THAT(job.verify(), HasSubstr("reads %1 \"a\" while it is not allocated"));
}

TEST(Verify, FindsAFreedOrAllocatedResident) {
  Good job;
  job.code(job.optimizer).push_back(Free{job.x});
  EXPECT_THAT(job.verify(), HasSubstr("frees %0 \"x\" which is resident"));
  job = Good();
  job.code(job.optimizer).push_back(Alloc{job.x});
  EXPECT_THAT(job.verify(), HasSubstr("allocates %0 \"x\" which is resident"));
}

TEST(Verify, FindsALeakAndNamesTheMicroBatch) {
  Good job;
  job.erase<Free>(job.backward0, 1);
  EXPECT_EQ(job.verify(),
            "stage 0, chunk 0, micro-batch 0: %2 \"g\" is still allocated at the end of the step");
}

TEST(Verify, FindsAWaitForAnEventThatWasNeverRecorded) {
  Good job;
  job.erase<Record>(job.forward0, 3);
  EXPECT_THAT(job.verify(), HasSubstr("(backward first, chunk 0, micro-batch 0), instruction 5: "
                                      "waits for event 3, which was never recorded"));
}

TEST(Verify, FindsAMessageOfAnotherSize) {
  Good job;
  const TensorId small = job.b.tensor("small", {2, 8});
  const TransferId id = job.b.message(small);
  for (Instruction& i : job.code(job.forward1)) {
    if (Alloc* alloc = std::get_if<Alloc>(&i)) alloc->tensor = small;
    if (Receive* receive = std::get_if<Receive>(&i)) *receive = Receive{id, small, receive->label};
  }
  job.code(job.forward1).push_back(Free{small});
  job.b.job.bodies[static_cast<std::size_t>(job.backward1)].operands[0] = job.x;
  job.erase<Free>(job.backward1);
  EXPECT_THAT(job.verify(), HasSubstr("this receive of 32 bytes meets a message of 64, sent at "
                                      "stage 0, call 0"));
}

TEST(Verify, FindsMessagesInTheWrongOrder) {
  Good job;
  std::swap(job.b.job.programs[0].schedule[0], job.b.job.programs[0].schedule[1]);
  EXPECT_THAT(job.verify(), HasSubstr("stage 1, call 0 (forward last, chunk 0, micro-batch 0), "
                                      "instruction 1: this receive meets a message of "
                                      "micro-batch 1, sent at stage 0"));
}

TEST(Verify, FindsAMessageThatArrivesAtAnotherChunk) {
  Good job;
  for (Call& call : job.b.job.programs[1].schedule) call.chunk = 1;
  job.b.job.programs[1].residents.push_back({0, 1});
  EXPECT_THAT(job.verify(), HasSubstr("meets a message of chunk 0"));
}

TEST(Verify, FindsASendWithoutAReceive) {
  Good job;
  job.b.job.programs[1].schedule.resize(2);  // micro-batch 0 only
  job.b.job.programs[0].schedule = {{job.forward0, 0, 0}, {job.forward0, 0, 1},
                                    {job.backward0, 0, 0}};
  const BodyId drop = job.b.body("drop", Phase::kBackward);
  job.b.wait(Stream::kCompute, 3).free(job.a);
  job.b.call(0, drop, 1);
  EXPECT_THAT(job.verify(), HasSubstr("call 1 (forward first, chunk 0, micro-batch 1), instruction "
                                      "9: this send meets no receive"));
}

TEST(Verify, FindsAReceiveWithoutASend) {
  Good job;
  auto& schedule = job.b.job.programs[0].schedule;
  schedule = {{job.forward0, 0, 0}, {job.backward0, 0, 0}};
  job.b.job.programs[1].schedule.pop_back();
  EXPECT_THAT(job.verify(), HasSubstr("this receive meets no send of stage 0"));
}

// Stage 0 wants a gradient before it sends what the gradient is of.
TEST(Verify, FindsADeadlock) {
  Good job;
  const BodyId early = job.b.body("early", Phase::kBackward);
  job.b.alloc(job.g).receive(job.g, true);
  job.b.order(Stream::kReceiveBackward, Stream::kCompute, 4).free(job.g);
  const BodyId drop = job.b.body("drop", Phase::kBackward);
  job.b.wait(Stream::kCompute, 3).free(job.a);
  auto& schedule = job.b.job.programs[0].schedule;
  schedule.insert(schedule.begin(), Call{early, 0, 0});
  schedule[3].body = drop;
  EXPECT_THAT(job.verify(), HasSubstr("stage 0, call 0 (early, chunk 0, micro-batch 0), "
                                      "instruction 1: deadlock: this receive waits forever for "
                                      "stage 1"));
}

// Stage 0 sends twice before it receives, stage 1 sends between its receives: each host alone may
// wait for what it has sent, both together do so for ever.
TEST(Verify, FindsHostsThatWaitForEachOthersReceives) {
  Good first, second, both;
  first.code(first.forward0).push_back(Synchronize{});
  second.code(second.backward1).push_back(Synchronize{});
  both.code(both.forward0).push_back(Synchronize{});
  both.code(both.backward1).push_back(Synchronize{});
  EXPECT_EQ(first.verify(), "");
  EXPECT_EQ(second.verify(), "");
  EXPECT_THAT(both.verify(), HasSubstr("stage 0, call 1 (forward first, chunk 0, micro-batch 1)"));
  EXPECT_THAT(both.verify(), HasSubstr("deadlock: a message sent before it is never received"));
}

// It waits for compute, which has the message by then, and for no message of its own.
TEST(Verify, LetsBothHostsWaitForEventsOfCompute) {
  Good job;
  job.code(job.forward0).push_back(HostWait{1});
  job.code(job.backward1).push_back(HostWait{2});
  EXPECT_EQ(job.verify(), "");
}

TEST(Verify, FindsAHostThatWaitsForAnEventThatWasNeverRecorded) {
  Good job;
  job.code(job.forward0).insert(job.code(job.forward0).begin(), HostWait{6});
  EXPECT_THAT(job.verify(), HasSubstr("instruction 0: waits for event 6, which was never"));
  job.get<HostWait>(job.forward0).event = 99;
  EXPECT_THAT(job.verify(), HasSubstr("event 99 is out of range"));
}

TEST(Verify, FindsACollectiveThatOneStageLeavesOut) {
  Good job;
  job.b.job.programs[1].schedule.pop_back();
  EXPECT_THAT(job.verify(), HasSubstr("stage 0, call 4 (optimizer, chunk 0, micro-batch 0), "
                                      "instruction 4: deadlock"));
}

TEST(Verify, FindsMembersThatIssueUnequalCollectives) {
  Good job;
  Job& j = job.b.job;
  j.bodies.push_back(j.bodies[static_cast<std::size_t>(job.optimizer)]);
  j.transfers.push_back(
      {TransferKind::kBroadcast, Axis::kTensor | Axis::kPipeline, false, Bytes(2)});
  const auto last = static_cast<TransferId>(j.transfers.size()) - 1;
  job.get<Collective>(5).transfer = last;
  j.programs[1].schedule.back().body = 5;
  EXPECT_THAT(job.verify(), HasSubstr("meets @"));
}

TEST(Verify, FindsAShiftOfUnequalSizesOrBetweenStages) {
  Good job;
  Job& j = job.b.job;
  j.mesh.degree(Axis::kContext) = 2;
  Collective& shift = job.get<Collective>(job.optimizer);
  j.transfers.push_back({TransferKind::kSendReceive, Axis::kContext, false, Bytes(2)});
  shift.transfer = static_cast<TransferId>(j.transfers.size()) - 1;
  shift.operands.reads += shift.operands.writes;
  shift.operands.writes = 0;
  EXPECT_THAT(job.verify(), HasSubstr("what is passed on and what comes differ in size"));
  j.transfers.back().axes = Axis::kContext | Axis::kPipeline;
  EXPECT_THAT(job.verify(), HasSubstr("a message between stages is no collective"));
}

// 32 elements have no equal parts for 3 ranks; what goes out and what comes is as much.
TEST(Verify, FindsAnAllToAllOfUnequalParts) {
  JobBuilder b;
  b.job.mesh.degree(Axis::kExpert) = 2;
  const TensorId out = b.resident("out", {4, 8}), in = b.resident("in", {4, 8});
  const TensorId half = b.resident("half", {4, 4});
  const BodyId body = b.body("exchange", Phase::kForward);
  const Transfer exchange{TransferKind::kAllToAll, Axis::kExpert, false, Bytes(64)};
  b.collective(exchange, Stream::kExpert, {out}, {in}).call(0, body, 0);
  EXPECT_EQ(verify(b.job), "");
  b.job.mesh.degree(Axis::kExpert) = 3;
  EXPECT_THAT(verify(b.job), HasSubstr("%0 has no equal parts for 3 ranks"));
  b.job.mesh.degree(Axis::kExpert) = 2;
  b.job.bodies[0].operands[1] = half;
  EXPECT_THAT(verify(b.job), HasSubstr("differ in size"));
  b.job.bodies[0].operands[1] = out;
  EXPECT_THAT(verify(b.job), HasSubstr("an all-to-all both sends %0 and writes it"));
}

// As many bytes in all, but one tensor of what two were.
TEST(Verify, FindsAnAllToAllWhoseTensorsDoNotPair) {
  JobBuilder b;
  b.job.mesh.degree(Axis::kExpert) = 2;
  const TensorId one = b.resident("one", {4, 4}), two = b.resident("two", {4, 4});
  const TensorId both = b.resident("both", {8, 4});
  const BodyId body = b.body("exchange", Phase::kForward);
  const Transfer exchange{TransferKind::kAllToAll, Axis::kExpert, false, Bytes(64)};
  b.collective(exchange, Stream::kExpert, {one, two}, {both}).call(0, body, 0);
  EXPECT_THAT(verify(b.job), HasSubstr("2 tensors of an all-to-all become 1"));
}

TEST(Verify, FindsOperandsThatAnOpOfExpertsDoesNotHave) {
  const auto fault = [](const Op& op, int reads, int writes) {
    JobBuilder b;
    const TensorId t = b.resident("t", {4, 8});
    const BodyId body = b.body("experts", Phase::kForward);
    b.compute(op, {t}, {t}).call(0, body, 0);
    auto& operands = std::get<Compute>(b.job.bodies[0].code[0]).operands;
    operands.reads = reads, operands.writes = writes;
    b.job.bodies[0].operands.assign(static_cast<std::size_t>(reads + writes), t);
    return verify(b.job);
  };
  const Route route{Pass::kForward, 4, 8, 2, 1}, back{Pass::kBackward, 4, 8, 2, 1};
  Permute permute{PermutePart::kPermute, 4, 2, 8, 8};
  Pointwise gelu{PointwiseKind::kGelu, 4, 8}, d_gelu{PointwiseKind::kGeluBackward, 4, 8};
  gelu.weighted = d_gelu.weighted = true;
  EXPECT_EQ(fault(route, 1, 2), "");
  EXPECT_EQ(fault(back, 3, 1), "");
  EXPECT_EQ(fault(permute, 2, 1), "");
  EXPECT_EQ(fault(Regroup{2, 2, 1, 8}, 1, 1), "");
  EXPECT_EQ(fault(gelu, 2, 1), "");
  EXPECT_EQ(fault(d_gelu, 3, 2), "");
  EXPECT_THAT(fault(route, 1, 1), HasSubstr("reads 1 and writes 2 operands, not 1 and 1"));
  EXPECT_THAT(fault(back, 2, 1), HasSubstr("reads 3 and writes 1 operands, not 2 and 1"));
  EXPECT_THAT(fault(permute, 3, 2), HasSubstr("reads 2 and writes 1 operands, not 3 and 2"));
  EXPECT_THAT(fault(Regroup{2, 2, 1, 8}, 2, 1), HasSubstr("reads 1 and writes 1"));
  EXPECT_THAT(fault(gelu, 1, 1), HasSubstr("reads 2 and writes 1 operands, not 1 and 1"));
  EXPECT_THAT(fault(d_gelu, 3, 1), HasSubstr("reads 3 and writes 2 operands, not 3 and 1"));
  permute.weighted = true;
  EXPECT_EQ(fault(permute, 3, 2), "");
  EXPECT_NE(fault(permute, 2, 1), "");
}

TEST(Verify, LetsOnlyTheEndsIntoACollectiveOfTheEnds) {
  JobBuilder b(3);
  const TensorId w = b.resident("w", {4, 8});
  const BodyId body = b.body("tied", Phase::kOptimizer);
  b.collective({TransferKind::kAllReduce, Axis::kPipeline, true, Bytes(64)}, Stream::kGlobal, {w},
               {w});
  const BodyId idle = b.body("idle", Phase::kOptimizer);
  b.call(0, body, 0).call(1, idle, 0).call(2, body, 0);
  EXPECT_EQ(verify(b.job), "");
  b.call(1, body, 0);
  EXPECT_THAT(verify(b.job), HasSubstr("stage 1, call 1"));
}

// Chunk 0 of the last stage sends to chunk 1 of the first; backward the other way.
TEST(Verify, FollowsMessagesAroundTheWrapOfAnInterleavedPipeline) {
  JobBuilder b(2);
  const TensorId a = b.tensor("a", {4, 8});
  const TensorId g = b.tensor("g", {4, 8});
  const auto body = [&](TensorId t, bool receives, bool sends, bool backward) {
    const BodyId id = b.body("hop", Phase::kForward);
    const Stream in = backward ? Stream::kReceiveBackward : Stream::kReceiveForward;
    const Stream out = backward ? Stream::kSendBackward : Stream::kSendForward;
    b.alloc(t);
    if (receives) b.receive(t, backward).order(in, Stream::kCompute, 0);
    if (!receives) b.compute(Pointwise{PointwiseKind::kFill, 4, 8}, {}, {t});
    b.order(Stream::kCompute, out, 1);
    if (sends) b.send(t, backward).order(out, Stream::kCompute, 2);
    b.free(t);
    return id;
  };
  const BodyId first = body(a, false, true, false), middle = body(a, true, true, false),
               last = body(a, true, false, false), back_first = body(g, false, true, true),
               back = body(g, true, true, true), back_last = body(g, true, false, true);
  b.call(0, first, 0, 0).call(0, middle, 0, 1).call(0, back, 0, 1).call(0, back_last, 0, 0);
  b.call(1, middle, 0, 0).call(1, last, 0, 1).call(1, back_first, 0, 1).call(1, back, 0, 0);
  EXPECT_EQ(verify(b.job), "");
  b.job.programs[0].schedule[1].chunk = 0;
  EXPECT_THAT(verify(b.job), HasSubstr("meets a message of chunk 0"));
}

TEST(Verify, FindsTooManyOperands) {
  Good job;
  job.b.job.ops[0] = kGeluBackwardOp;
  job.b.job.ops[1] = kGeluOp;
  EXPECT_THAT(job.verify(), HasSubstr("'pointwise gelu_backward 4x8 bf16' reads 2 and writes 1 "
                                      "operands, not 1 and 1"));
}

TEST(Verify, FindsNumbersOutOfRange) {
  const auto fault = [](auto breaks) {
    Good job;
    breaks(job);
    return job.verify();
  };
  EXPECT_NE(fault([](Good& j) { j.get<Alloc>(j.forward0).tensor = 99; }), "");
  EXPECT_NE(fault([](Good& j) { j.get<Compute>(j.forward0).op = -1; }), "");
  EXPECT_NE(fault([](Good& j) { j.get<Compute>(j.forward0).label.name = 99; }), "");
  EXPECT_NE(fault([](Good& j) { j.get<Record>(j.forward0).event = 99; }), "");
  EXPECT_NE(fault([](Good& j) { j.get<Send>(j.forward0).step = 2; }), "");
  EXPECT_NE(fault([](Good& j) { j.get<Send>(j.forward0).stream = Stream::kCompute; }), "");
  EXPECT_NE(fault([](Good& j) { j.get<Compute>(j.forward0).operands.first = 1; }), "");
  EXPECT_NE(fault([](Good& j) { j.b.job.programs[0].schedule.clear(); }), "");
  EXPECT_NE(fault([](Good& j) { j.b.job.programs[0].schedule[0].body = 77; }), "");
  EXPECT_NE(fault([](Good& j) { j.b.job.programs.pop_back(); }), "");
  EXPECT_NE(fault([](Good& j) { j.b.job.mesh.order[0] = Axis::kPipeline; }), "");
  EXPECT_NE(fault([](Good& j) { j.b.job.tensors[0].shape.sizes[3] = 2; }), "");
  EXPECT_NE(fault([](Good& j) { j.b.job.ops.push_back(Gemm{0, 1, 1}); }), "");
  EXPECT_NE(fault([](Good& j) { j.b.job.tensors[0].parts = {3, 4}; }), "");
  EXPECT_NE(fault([](Good& j) { j.b.job.tensors[0].experts = 3; }), "");
  EXPECT_NE(fault([](Good& j) { j.b.job.tensors[0].experts = -1; }), "");
  EXPECT_EQ(fault([](Good& j) { j.b.job.tensors[0].experts = 2; }), "");
  EXPECT_NE(fault([](Good& j) { j.b.job.flats.push_back({{0, 0}, {}}); }), "");
  EXPECT_NE(fault([](Good& j) { j.b.job.flats.push_back({{99}, {}}); }), "");
  EXPECT_NE(fault([](Good& j) { j.b.job.flats.push_back({{0}, {3}}); }), "");
  EXPECT_NE(fault([](Good& j) { j.b.job.batch = {4, 1, 0, 16}; }), "");
  EXPECT_NE(fault([](Good& j) { j.b.job.names.push_back(j.b.job.names[0]); }), "");
}

}  // namespace
}  // namespace stepcast

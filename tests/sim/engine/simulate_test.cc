// Closed forms, worked out by hand. Times are small whole numbers of picoseconds.
#include "sim/engine/simulate.h"

#include <gtest/gtest.h>

#include <initializer_list>

namespace stepcast {
namespace {

using Calls = std::vector<Call>;

// A Job without tensors: for the engine, only what takes time matters.
struct Text {
  Job job;
  Prices prices;

  explicit Text(int stages = 1, int tensor = 1) {
    job.mesh.degree(Axis::kPipeline) = stages;
    job.mesh.degree(Axis::kTensor) = tensor;
    job.events = 4;
    job.names = {"x"};
  }
  OpId op(std::int64_t ps, Basis basis = Basis::kDatasheet) {
    job.ops.push_back(Pointwise{PointwiseKind::kFill, 1, 1, Dtype::kBf16, Dtype::kBf16, false});
    prices.ops.push_back(Duration(ps));
    prices.basis.push_back(basis);
    return static_cast<OpId>(job.ops.size() - 1);
  }
  TransferId transfer(TransferKind kind, AxisSet axes, std::int64_t ps, bool ends_only = false) {
    job.transfers.push_back({kind, axes, ends_only, Bytes(1)});
    prices.transfers.push_back(Duration(ps));
    return static_cast<TransferId>(job.transfers.size() - 1);
  }
  TransferId all_reduce(AxisSet axes, std::int64_t ps, bool ends_only = false) {
    return transfer(TransferKind::kAllReduce, axes, ps, ends_only);
  }
  BodyId body(Phase phase, std::vector<Instruction> code) {
    job.bodies.push_back({"body", phase, std::move(code), {}});
    return static_cast<BodyId>(job.bodies.size() - 1);
  }
  void program(Calls calls) { job.programs.push_back({{}, std::move(calls)}); }
};

Compute kernel(OpId op, Phase phase = Phase::kForward) { return {op, {}, {}, phase}; }
Collective collective(TransferId transfer, Stream stream) {
  return {transfer, {}, {}, stream, Phase::kForward};
}
Send send_forward(TransferId t) { return {t, 0, {}, Stream::kSendForward, 1}; }
Send send_backward(TransferId t) { return {t, 0, {}, Stream::kSendBackward, -1}; }
Receive receive_forward(TransferId t) { return {t, 0, {}, Stream::kReceiveForward, -1}; }
Receive receive_backward(TransferId t) { return {t, 0, {}, Stream::kReceiveBackward, 1}; }

Breakdown parts(std::initializer_list<std::pair<Part, std::int64_t>> list) {
  Breakdown breakdown = {};
  for (const auto& [part, ps] : list) breakdown[static_cast<std::size_t>(part)] = Duration(ps);
  return breakdown;
}

// GPipe, forward f and backward b on each of p equal stages, wires free. The last stage begins its
// m forwards at (p-1) f and ends them at (m+p-1) f; then the backwards run the same way back:
//   step = (m + p - 1)(f + b), each stage works m (f + b), bubble = (p - 1) / (m + p - 1)
TEST(Simulate, GivesGpipesBubbleExactly) {
  for (const int p : {1, 2, 4, 7}) {
    for (const int m : {1, 2, 8, 31}) {
      Text text(p);
      const OpId f = text.op(100), b = text.op(200);
      const TransferId wire = text.transfer(TransferKind::kSendReceive, Axis::kPipeline, 0);
      for (int s = 0; s < p; ++s) {
        std::vector<Instruction> forward, backward;
        if (s > 0) {
          forward = {receive_forward(wire), Record{Stream::kReceiveForward, 0},
                     Wait{Stream::kCompute, 0}};
        }
        if (s + 1 < p) {
          backward = {receive_backward(wire), Record{Stream::kReceiveBackward, 0},
                      Wait{Stream::kCompute, 0}};
        }
        forward.push_back(kernel(f));
        backward.push_back(kernel(b, Phase::kBackward));
        forward.push_back(Record{Stream::kCompute, 1});
        backward.push_back(Record{Stream::kCompute, 1});
        if (s + 1 < p) {
          forward.push_back(Wait{Stream::kSendForward, 1});
          forward.push_back(send_forward(wire));
        }
        if (s > 0) {
          backward.push_back(Wait{Stream::kSendBackward, 1});
          backward.push_back(send_backward(wire));
        }
        const BodyId one = text.body(Phase::kForward, forward);
        const BodyId two = text.body(Phase::kBackward, backward);
        Calls calls;
        for (int i = 0; i < m; ++i) calls.push_back({one, 0, i});
        for (int i = 0; i < m; ++i) calls.push_back({two, 0, i});
        text.program(calls);
      }
      const Timeline timeline = simulate(text.job, text.prices);
      EXPECT_EQ(timeline.step, Duration(300 * (m + p - 1)));
      EXPECT_DOUBLE_EQ(timeline.bubble_fraction, static_cast<double>(p - 1) / (m + p - 1));
      // The first stage waits between its forwards and its backwards.
      EXPECT_EQ(timeline.ranks[0].breakdown,
                parts({{Part::kCompute, 300 * m}, {Part::kBubble, 300 * (p - 1)}}));
    }
  }
}

// Kernels of 3 issued every 10: they begin at 10, 20, 30, 40; 12 of 43 are work.
TEST(Simulate, WaitsForTheHostWhereKernelsAreShort) {
  Text text;
  const OpId op = text.op(3, Basis::kMeasured);
  text.prices.issue = Duration(10);
  text.program({{text.body(Phase::kForward, {kernel(op), kernel(op), Mark{}, kernel(op),
                                             kernel(op)}), 0, 0}});
  const Timeline timeline = simulate(text.job, text.prices);
  EXPECT_EQ(timeline.step, Duration(43));
  EXPECT_EQ(timeline.instructions, 4);
  EXPECT_EQ(timeline.ranks[0].breakdown, parts({{Part::kCompute, 12}, {Part::kOther, 31}}));
  EXPECT_EQ(timeline.ranks[0].basis[static_cast<std::size_t>(Basis::kMeasured)], Duration(12));
}

// In a pass of a fill and a kernel, of 3 each, the kernel is issued 10 after the fill, which took
// the host 2: it begins at 12. An update's fill takes the host as long as any kernel.
TEST(Simulate, IssuesAFillWithinAPassInATimeOfItsOwn) {
  Text text;
  const OpId fill = text.op(3), other = text.op(3);
  text.job.ops.back() = Pointwise{PointwiseKind::kScale, 1, 1};
  text.prices.issue = Duration(10);
  text.prices.fill = Duration(2);
  const BodyId pass = text.body(Phase::kForward, {kernel(fill), kernel(other)});
  text.program({{pass, 0, 0}});
  const Timeline one = simulate(text.job, text.prices);
  EXPECT_EQ(one.step, Duration(15));
  EXPECT_EQ(one.ranks[0].breakdown, parts({{Part::kCompute, 6}, {Part::kOther, 9}}));
  const Phase update = Phase::kOptimizer;
  text.job.bodies.push_back({"update", update, {kernel(fill, update)}, {}});
  text.job.programs[0].schedule.push_back({pass + 1, 0, 0});
  EXPECT_EQ(simulate(text.job, text.prices).step, Duration(25));
}

// The host takes 10 for a kernel, and 30 more for the products of a rank's experts, which it issues
// one by one: they begin at 40, what follows at 50.
TEST(Simulate, IssuesTheProductsOfExpertsOneByOne) {
  Text text;
  const OpId products = text.op(3), other = text.op(3);
  text.job.ops[0] = Gemm{8, 8, 8, 4};
  text.prices.issue = Duration(10);
  text.prices.groups = Duration(30);
  text.program({{text.body(Phase::kForward, {kernel(products), kernel(other)}), 0, 0}});
  EXPECT_EQ(simulate(text.job, text.prices).step, Duration(23));  // one batched kernel
  std::get<Gemm>(text.job.ops[0]).grouped = true;
  const Timeline timeline = simulate(text.job, text.prices);
  EXPECT_EQ(timeline.step, Duration(53));
  EXPECT_EQ(timeline.ranks[0].breakdown, parts({{Part::kCompute, 6}, {Part::kOther, 47}}));
}

// The router's kernel is issued at 50 for what goes with it, what follows at 60; so it is backward.
TEST(Simulate, WaitsForTheHostToRouteTokens) {
  Text text;
  const OpId router = text.op(3), other = text.op(3);
  text.prices.issue = Duration(10);
  text.prices.route = Duration(40);
  text.program({{text.body(Phase::kForward, {kernel(router), kernel(other)}), 0, 0}});
  EXPECT_EQ(simulate(text.job, text.prices).step, Duration(23));
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    text.job.ops[0] = Route{pass, 8, 4, 2, 4};
    EXPECT_EQ(simulate(text.job, text.prices).step, Duration(63));
  }
}

// A pass of two kernels of 3, each issued in 10, costs the host 50 before: its kernels begin at 60
// and 70, those of the next one at 130 and 140. The update is no pass: issued at 150.
TEST(Simulate, BeginsAPassWhenTheHostHasPreparedIt) {
  Text text;
  const OpId op = text.op(3);
  text.prices.issue = Duration(10);
  text.prices.pass = Duration(50);
  const BodyId pass = text.body(Phase::kForward, {kernel(op), kernel(op)});
  const BodyId update = text.body(Phase::kOptimizer, {kernel(op)});
  text.program({{pass, 0, 0}, {pass, 0, 1}, {update, 0, 0}});
  const Timeline timeline = simulate(text.job, text.prices);
  EXPECT_EQ(timeline.step, Duration(153));
  EXPECT_EQ(timeline.instructions, 5);
}

// A graph that takes the host 20 to launch, and what it holds nothing more: four kernels of 3, one
// after the other, on each of the ranks.
TEST(Simulate, BeginsAStepThatIsOneGraphWhenTheHostHasLaunchedIt) {
  for (const Ranks ranks : {Ranks::kFolded, Ranks::kAll}) {
    Text text(1, 2);
    const OpId op = text.op(3);
    text.prices.graph = Duration(20);
    text.program({{text.body(Phase::kForward, {kernel(op), kernel(op)}), 0, 0},
                  {text.body(Phase::kForward, {kernel(op), kernel(op)}), 0, 1}});
    const Timeline timeline = simulate(text.job, text.prices, {.ranks = ranks});
    EXPECT_EQ(timeline.step, Duration(32));
    for (const RankTime& time : timeline.ranks) {
      EXPECT_EQ(time.breakdown, parts({{Part::kCompute, 12}, {Part::kOther, 20}}));
    }
  }
}

// n micro-batches of k kernels that take 25 and are issued every 10, through two stages over wires
// of 4. The host runs ahead: only the first launch shows, and the last message and its kernels are
// left when the first stage is done,
//   step = 10 + 25 k n + 4 + 25 k
// A host that waits for every message issues a micro-batch's kernels behind it: to the first stage
// each costs a launch and a wire besides, and the second one launches again behind the last,
//   step = n (10 + 25 k + 4) + 10 + 25 k
TEST(Simulate, ExposesALaunchAMessageWhereTheHostWaitsForThem) {
  for (const bool waits : {false, true}) {
    for (const int n : {1, 3, 8}) {
      for (const int k : {1, 2, 5}) {
        Text text(2);
        const OpId op = text.op(25);
        const TransferId wire = text.transfer(TransferKind::kSendReceive, Axis::kPipeline, 4);
        text.prices.issue = Duration(10);
        std::vector<Instruction> first(static_cast<std::size_t>(k), kernel(op)), second;
        first.insert(first.end(), {Record{Stream::kCompute, 0}, Wait{Stream::kSendForward, 0},
                                   send_forward(wire)});
        second = {receive_forward(wire), Record{Stream::kReceiveForward, 0},
                  Wait{Stream::kCompute, 0}};
        if (waits) first.push_back(Synchronize{});
        if (waits) second.push_back(Synchronize{});
        second.insert(second.end(), static_cast<std::size_t>(k), kernel(op));
        Calls ones, twos;
        const BodyId one = text.body(Phase::kForward, first);
        const BodyId two = text.body(Phase::kForward, second);
        for (int m = 0; m < n; ++m) ones.push_back({one, 0, m});
        for (int m = 0; m < n; ++m) twos.push_back({two, 0, m});
        text.program(ones);
        text.program(twos);
        const Timeline timeline = simulate(text.job, text.prices);
        if (!waits) {
          EXPECT_EQ(timeline.step, Duration(14 + 25 * k * (n + 1)));
          continue;
        }
        EXPECT_EQ(timeline.step, Duration(n * (14 + 25 * k) + 10 + 25 * k));
        EXPECT_EQ(timeline.ranks[1].breakdown,
                  parts({{Part::kCompute, 25 * k * n}, {Part::kBubble, 10 + 25 * k},
                         {Part::kPipeline, 4 * n}, {Part::kOther, 10 * n}}));
      }
    }
  }
}

// Issued every 10, kernels of 5: a host that waits for each loses that kernel's time, too.
TEST(Simulate, LosesAKernelsTimeAtEachWaitOfALaunchBoundHost) {
  Text text;
  const OpId op = text.op(5);
  text.prices.issue = Duration(10);
  text.program({{text.body(Phase::kForward, {kernel(op), Synchronize{}, kernel(op), Synchronize{},
                                             kernel(op)}), 0, 0}});
  const Timeline timeline = simulate(text.job, text.prices);
  EXPECT_EQ(timeline.step, Duration(45));
  EXPECT_EQ(timeline.instructions, 5);
  EXPECT_EQ(timeline.ranks[0].breakdown, parts({{Part::kCompute, 15}, {Part::kOther, 30}}));
}

// Issued every 10: kernels end at 15 and 45. A host that waits for the first one's event goes on at
// 20, when it has issued the second one; for the second one's, at 45; for all, at 45, too.
TEST(Simulate, LetsTheHostWaitForAnEventAlone) {
  const auto step = [](const std::vector<Instruction>& waits) {
    Text text;
    const OpId five = text.op(5), long_one = text.op(25), last = text.op(1);
    text.prices.issue = Duration(10);
    std::vector<Instruction> code = {kernel(five), Record{Stream::kCompute, 0}, kernel(long_one),
                                     Record{Stream::kCompute, 1}};
    code.insert(code.end(), waits.begin(), waits.end());
    code.insert(code.end(), {kernel(last), kernel(last), kernel(last)});
    text.program({{text.body(Phase::kForward, code), 0, 0}});
    return simulate(text.job, text.prices).step;
  };
  EXPECT_EQ(step({}), Duration(51));
  EXPECT_EQ(step({HostWait{0}}), Duration(51));
  EXPECT_EQ(step({HostWait{1}}), Duration(76));
  EXPECT_EQ(step({Synchronize{}}), Duration(76));
}

// Kernel 0-5, collective 5-12 beside a kernel 5-8: compute waits from 8 to 12.
TEST(Simulate, ExposesWhatOfACollectiveNoKernelHides) {
  Text text(1, 2);
  const OpId five = text.op(5), three = text.op(3);
  const TransferId reduce = text.all_reduce(Axis::kTensor, 7);
  text.program({{text.body(Phase::kForward,
                           {kernel(five), Record{Stream::kCompute, 0}, Wait{Stream::kTensor, 0},
                            collective(reduce, Stream::kTensor), Record{Stream::kTensor, 1},
                            kernel(three, Phase::kRecompute), Wait{Stream::kCompute, 1},
                            kernel(three, Phase::kOptimizer)}),
                 0, 0}});
  for (const Ranks ranks : {Ranks::kFolded, Ranks::kAll}) {
    const Timeline timeline = simulate(text.job, text.prices, {ranks});
    EXPECT_EQ(timeline.step, Duration(15));
    EXPECT_EQ(timeline.ranks[0].breakdown, parts({{Part::kCompute, 5}, {Part::kRecompute, 3},
                                                  {Part::kTensor, 4}, {Part::kOptimizer, 3}}));
  }
}

// Experts that are spread over tensor ranks: an all-to-all is theirs, whether compute waits for its
// stream (from 5 to 12) or it runs on the device's one stream.
TEST(Simulate, ExposesAnAllToAllAsTheExperts) {
  Text text(1, 2);
  const OpId five = text.op(5);
  const TransferId exchange = text.transfer(TransferKind::kAllToAll, Axis::kTensor, 7);
  text.program({{text.body(Phase::kForward,
                           {kernel(five), Record{Stream::kCompute, 0}, Wait{Stream::kExpert, 0},
                            collective(exchange, Stream::kExpert), Record{Stream::kExpert, 1},
                            Wait{Stream::kCompute, 1}, kernel(five)}),
                 0, 0}});
  for (const bool one_stream : {false, true}) {
    text.prices.one_stream = one_stream;
    text.prices.receives.assign(one_stream ? 1 : 0, Duration());
    const Timeline timeline = simulate(text.job, text.prices, {Ranks::kFolded});
    EXPECT_EQ(timeline.step, Duration(17));
    EXPECT_EQ(timeline.ranks[0].breakdown, parts({{Part::kCompute, 10}, {Part::kExpert, 7}}));
  }
}

// A kernel of 5, then an exchange in three pieces beside a product, and the wait for all of it.
struct InPieces : Text {
  InPieces(TransferKind kind, std::int64_t piece, std::int64_t part) : Text(1, 2) {
    const OpId before = op(5), product = op(1000);
    job.ops.back() = Gemm{6, 4, 4};
    const TransferId whole = transfer(kind, Axis::kTensor, 1000);
    prices.pieces.push_back({whole, product, 3, Duration(piece), Duration(part)});
    Collective moved = collective(whole, Stream::kTensor);
    moved.pieces = 3;
    std::vector<Instruction> code = {kernel(before)};
    const std::vector<Instruction> exchange = {Record{Stream::kCompute, 0},
                                               Wait{Stream::kTensor, 0}, moved,
                                               Record{Stream::kTensor, 1}};
    const bool gathers = kind == TransferKind::kAllGather;
    if (!gathers) code.push_back(kernel(product));
    code.insert(code.end(), exchange.begin(), exchange.end());
    code.push_back(Wait{Stream::kCompute, 1});
    if (gathers) code.push_back(kernel(product));
    program({{body(Phase::kForward, code), 0, 0}});
  }
  void expect(std::int64_t step, std::int64_t exposed, std::int64_t other = 0) {
    for (const Ranks ranks : {Ranks::kFolded, Ranks::kAll}) {
      const Timeline timeline = simulate(job, prices, {ranks});
      EXPECT_EQ(timeline.step, Duration(step));
      EXPECT_EQ(timeline.ranks[0].breakdown,
                parts({{Part::kCompute, 20}, {Part::kTensor, exposed}, {Part::kOther, other}}));
    }
  }
};

// From 5 on: parts at 5, 10 and 15, the last two of rows that came at 9 and 13. With pieces of 7
// they come at 12 and 19: parts at 5, 12 and 19, the last one up to 24.
TEST(Simulate, GathersInPiecesBesideThePartsThatTakeThem) {
  InPieces(TransferKind::kAllGather, 4, 5).expect(20, 0);
  InPieces(TransferKind::kAllGather, 7, 5).expect(24, 4);
}

// Parts end at 10, 15 and 20, and the last piece leaves then: at 24. Pieces of 7 leave one behind
// the other from 10 on: 31.
TEST(Simulate, ScattersInPiecesBehindThePartsThatMakeThem) {
  InPieces(TransferKind::kReduceScatter, 4, 5).expect(24, 4);
  InPieces(TransferKind::kReduceScatter, 7, 5).expect(31, 11);
}

// Issued at 100, 200 (the product) and 300 (the gather). The first part runs from 200 to 205, the
// pieces come at 304 and 308, and the other parts run from 304 to 314: no launches of their own.
TEST(Simulate, IssuesAnExchangeInPiecesAsOneKernelAndOneCollective) {
  InPieces text(TransferKind::kAllGather, 4, 5);
  text.prices.issue = Duration(100);
  text.expect(314, 99, 195);
}

TEST(Simulate, LeavesAnExchangeWholeOnADeviceOfOneStream) {
  InPieces text(TransferKind::kAllGather, 4, 5);
  text.prices.pieces.clear();
  text.prices.one_stream = true;
  text.prices.receives.assign(text.job.transfers.size(), Duration(0));
  EXPECT_EQ(simulate(text.job, text.prices).step, Duration(5 + 1000 + 1000));
}

// Stage 0 works 10 and sends for 4; stage 1 waits 14 for it, of which 4 are the wire's. It then
// works 10, to 24; stage 0 was done at 14 (its send stream) and waits.
TEST(Simulate, SplitsTheWaitForAMessageIntoWireAndBubble) {
  Text text(2);
  const OpId op = text.op(10);
  const TransferId wire = text.transfer(TransferKind::kSendReceive, Axis::kPipeline, 4);
  text.program({{text.body(Phase::kForward, {kernel(op), Record{Stream::kCompute, 0},
                                             Wait{Stream::kSendForward, 0}, send_forward(wire)}),
                 0, 0}});
  text.program({{text.body(Phase::kForward,
                           {receive_forward(wire), Record{Stream::kReceiveForward, 0},
                            Wait{Stream::kCompute, 0}, kernel(op)}),
                 0, 0}});
  const Timeline timeline = simulate(text.job, text.prices, {Ranks::kAll, true});
  EXPECT_EQ(timeline.step, Duration(24));
  EXPECT_EQ(timeline.slowest, 1);
  EXPECT_EQ(timeline.ranks[0].end, Instant(14));
  EXPECT_EQ(timeline.ranks[0].pipeline_end, Instant(10));
  EXPECT_EQ(timeline.ranks[0].breakdown,
            parts({{Part::kCompute, 10}, {Part::kPipeline, 4}, {Part::kOther, 10}}));
  EXPECT_EQ(timeline.ranks[1].breakdown,
            parts({{Part::kCompute, 10}, {Part::kPipeline, 4}, {Part::kBubble, 10}}));
  // Pipeline time 24: stage 0 idles its last 14, stage 1 its 10 of bubble.
  EXPECT_DOUBLE_EQ(timeline.bubble_fraction, (14.0 / 24 + 10.0 / 24) / 2);

  // kernel, send of rank 0; receive, kernel of rank 1
  const std::vector<Span>& spans = timeline.trace.spans;
  ASSERT_EQ(spans.size(), 4u);
  const std::int64_t expected[4][3] = {{0, 0, 10}, {0, 10, 14}, {1, 10, 14}, {1, 14, 24}};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(spans[i].rank, expected[i][0]);
    EXPECT_EQ(spans[i].begin, Instant(expected[i][1]));
    EXPECT_EQ(spans[i].end, Instant(expected[i][2]));
  }
  EXPECT_EQ(spans[1].stream, Stream::kSendForward);
  EXPECT_EQ(spans[1].instruction, 3);
  EXPECT_EQ(spans[2].stream, Stream::kReceiveForward);
}

// A reduction that nobody waits for ends the step: kernel to 5, reduction to 14.
TEST(Simulate, CountsAnEndAfterTheComputeStreamsAsExposed) {
  Text text;
  const OpId op = text.op(5);
  const TransferId reduce = text.all_reduce(Axis::kData, 9);
  text.program({{text.body(Phase::kBackward,
                           {kernel(op), Record{Stream::kCompute, 0}, Wait{Stream::kData, 0},
                            collective(reduce, Stream::kData)}),
                 0, 0}});
  const Timeline timeline = simulate(text.job, text.prices);
  EXPECT_EQ(timeline.step, Duration(14));
  EXPECT_EQ(timeline.ranks[0].pipeline_end, Instant(5));
  EXPECT_EQ(timeline.ranks[0].breakdown, parts({{Part::kCompute, 5}, {Part::kData, 9}}));
}

// Stages 0, 1, 2 work 10, 50, 20; the first and the last then meet: both from 20 to 23.
TEST(Simulate, LetsTheEndsOfThePipelineMeetWithoutTheMiddle) {
  Text text(3, 2);
  const TransferId ends = text.all_reduce(Axis::kPipeline, 3, true);
  for (const std::int64_t ps : {10, 50, 20}) {
    std::vector<Instruction> code = {kernel(text.op(ps)), Record{Stream::kCompute, 0},
                                     Wait{Stream::kReplica, 0}};
    if (ps != 50) code.push_back(collective(ends, Stream::kReplica));
    text.program({{text.body(Phase::kBackward, code), 0, 0}});
  }
  for (const Ranks ranks : {Ranks::kFolded, Ranks::kAll}) {
    const Timeline timeline = simulate(text.job, text.prices, {ranks});
    EXPECT_EQ(timeline.step, Duration(50));
    for (const RankTime& rank : timeline.ranks) {
      EXPECT_EQ(rank.end, Instant(text.job.mesh.stage(rank.rank) == 1 ? 50 : 23));
    }
  }
}

// Tensor 2, rank 1 half as fast: kernels end at 10 and 20, the collective runs 20-27. Rank 0 waits
// 17 for it, rank 1 its 7.
TEST(Simulate, MakesTheMembersOfAGroupWaitForTheSlowest) {
  Text text(1, 2);
  const OpId op = text.op(10);
  const TransferId reduce = text.all_reduce(Axis::kTensor, 7);
  text.program({{text.body(Phase::kForward,
                           {kernel(op), Record{Stream::kCompute, 0}, Wait{Stream::kTensor, 0},
                            collective(reduce, Stream::kTensor), Record{Stream::kTensor, 0},
                            Wait{Stream::kCompute, 0}}),
                 0, 0}});
  text.prices.slow = {1.0, 2.0};
  const Timeline timeline = simulate(text.job, text.prices, {Ranks::kAll});
  EXPECT_EQ(timeline.step, Duration(27));
  EXPECT_EQ(timeline.ranks[0].breakdown, parts({{Part::kCompute, 10}, {Part::kTensor, 17}}));
  EXPECT_EQ(timeline.ranks[1].breakdown, parts({{Part::kCompute, 20}, {Part::kTensor, 7}}));
}

TEST(Simulate, NamesFoldedRanksByTheFirstOfTheirStage) {
  Text text(2, 4);
  const BodyId body = text.body(Phase::kForward, {kernel(text.op(1))});
  text.program({{body, 0, 0}});
  text.program({{body, 0, 0}});
  const Timeline timeline = simulate(text.job, text.prices, {Ranks::kFolded, true});
  ASSERT_EQ(timeline.ranks.size(), 2u);
  EXPECT_EQ(timeline.ranks[1].rank, 4);
  EXPECT_EQ(timeline.trace.spans[1].rank, 4);
}

TEST(SimulateDeathTest, RefusesToFoldSlowRanks) {
  Text text;
  text.program({{text.body(Phase::kForward, {kernel(text.op(1))}), 0, 0}});
  text.prices.slow = {2.0};
  EXPECT_DEATH(simulate(text.job, text.prices), "stage only where none is slow");
}

}  // namespace
}  // namespace stepcast

// The gradient of every kind of op against central differences, in double precision.
#include "tests/support/gradient_check.h"

namespace stepcast {
namespace {

TEST_F(Gradient, OfALinearLayer) {
  Array x = random({6, 4}), w = weight(random({5, 4})), b = weight(random({5}));
  Array y = empty({6, 5});
  const Gemm forward{6, 5, 4, 1, GemmRole::kForward, kReal, kReal, false, true};
  const auto loss = [&] {
    run(forward, {&x, &w, &b}, {&y});
    return sum(y);
  };
  Array dy = weights_of(y);
  Array dx = empty({6, 4}), dw = weight(empty({5, 4})), db = weight(empty({5}));
  run(Gemm{6, 4, 5, 1, GemmRole::kInputGradient, kReal, kReal, false, false}, {&dy, &w}, {&dx});
  const Gemm weights{5, 4, 6, 1, GemmRole::kWeightGradient, kReal, kReal, true, true};
  run(weights, {&dy, &x, &dw, &db}, {&dw, &db});
  expect_gradient(loss, x, dx);
  expect_gradient(loss, w, dw);
  expect_gradient(loss, b, db);
  // A second time: added to what is there. Without accumulation: written anew.
  Array twice_w = dw, twice_b = db;
  run(weights, {&dy, &x, &twice_w, &twice_b}, {&twice_w, &twice_b});
  expect_twice(twice_w, dw);
  expect_twice(twice_b, db);
  Gemm anew = weights;
  anew.accumulate = false;
  run(anew, {&dy, &x}, {&twice_w, &twice_b});
  EXPECT_EQ(twice_b.data, db.data);
}

// 4 heads of 4 on 2 kv heads, 3 positions of 2 sequences; queries and keys also from a tensor qk,
// and with dropout.
TEST_F(Gradient, OfFusedAttention) {
  for (const auto& [split, drops] : {std::pair(false, false), {true, false}, {true, true}}) {
    Array qkv = random({6, 32}), qk = random({6, 24});
    Array o = empty({6, 16}), lse = empty({2, 4, 3});
    Attention op{Pass::kForward, 2, 4, 2, 3, 3, 4, true, drops, kReal};
    const std::vector<Array*> inputs = split ? std::vector{&qk, &qkv} : std::vector{&qkv};
    const auto loss = [&] {
      run(op, inputs, {&o, &lse});
      return sum(o);
    };
    loss();
    Array d_o = weights_of(o), d_qkv = empty({6, 32});
    Attention backward = op;
    backward.pass = Pass::kBackward;
    std::vector<Array*> reads = {&qkv, &o, &lse, &d_o};
    if (split) reads.insert(reads.begin(), &qk);
    run(backward, reads, {&d_qkv});
    if (!split) {
      expect_gradient(loss, qkv, d_qkv);
      continue;
    }
    // Of qk: the first columns of d_qkv; of qkv itself: the values' columns.
    Array d_qk = empty({6, 24}), d_v = empty({6, 32});
    for (std::size_t row = 0; row < 6; ++row) {
      for (std::size_t c = 0; c < 32; ++c) {
        (c < 24 ? d_qk.data[row * 24 + c] : d_v.data[row * 32 + c]) = d_qkv.data[row * 32 + c];
      }
    }
    expect_gradient(loss, qk, d_qk);
    expect_gradient(loss, qkv, d_v);
  }
}

// A window of 2 of 5 positions: as with a mask, without the keys that are out of sight.
TEST_F(Gradient, OfAttentionWithinAWindow) {
  for (const bool drops : {false, true}) {
    Array qkv = random({5, 12}), o = empty({5, 4}), lse = empty({1, 1, 5});
    Attention op{Pass::kForward, 1, 1, 1, 5, 5, 4, true, drops, kReal};
    op.window = 2;
    const auto loss = [&] {
      run(op, {&qkv}, {&o, &lse});
      return sum(o);
    };
    loss();
    Array d_o = weights_of(o), d_qkv = empty({5, 12});
    Attention backward = op;
    backward.pass = Pass::kBackward;
    run(backward, {&qkv, &o, &lse, &d_o}, {&d_qkv});
    expect_gradient(loss, qkv, d_qkv);
    // The last query sees the last two keys alone: those before may be anything.
    loss();
    const std::vector<double> last(o.data.end() - 4, o.data.end());
    for (std::size_t i = 0; i < 36; ++i) qkv.data[i] += 1;
    loss();
    EXPECT_EQ(std::vector<double>(o.data.end() - 4, o.data.end()), last);
  }
}

// As softmax over the scores and one more, the head's sink, that no value stands behind; the sinks'
// gradient is added to what is there where it is read, too.
TEST_F(Gradient, OfAttentionWithSinks) {
  for (const bool drops : {false, true}) {
    Array qkv = random({6, 16}), sinks = weight(random({2})), o = empty({6, 8});
    Array lse = empty({2, 2, 3});
    Attention op{Pass::kForward, 2, 2, 1, 3, 3, 4, true, drops, kReal};
    const auto run_forward = [&](bool with) {
      op.sinks = with;
      run(op, with ? std::vector{&qkv, &sinks} : std::vector{&qkv}, {&o, &lse});
    };
    run_forward(false);
    const Array plain = lse, without = o;
    const auto loss = [&] {
      run_forward(true);
      return sum(o);
    };
    loss();
    for (std::size_t i = 0; i < lse.data.size(); ++i) {  // of (sequence, head, position)
      const std::size_t head = i / 3 % 2, row = i % 3 * 2 + i / 6;
      EXPECT_NEAR(lse.data[i], std::log(std::exp(plain.data[i]) + std::exp(sinks.data[head])),
                  1e-12);
      for (std::size_t c = 4 * head; c < 4 * head + 4; ++c) {
        EXPECT_NEAR(o.data[row * 8 + c],
                    without.data[row * 8 + c] * std::exp(plain.data[i] - lse.data[i]), 1e-12);
      }
    }
    Array d_o = weights_of(o), d_qkv = empty({6, 16}), d_sinks = weight(empty({2}));
    Attention backward = op;
    backward.pass = Pass::kBackward;
    run(backward, {&qkv, &o, &lse, &d_o, &sinks}, {&d_qkv, &d_sinks});
    expect_gradient(loss, qkv, d_qkv);
    expect_gradient(loss, sinks, d_sinks);
    Array added = d_sinks;
    for (double& one : added.data) one = 1;
    loss();
    run(backward, {&qkv, &o, &lse, &d_o, &sinks, &added}, {&d_qkv, &added});
    for (std::size_t i = 0; i < 2; ++i) EXPECT_NEAR(added.data[i], 1 + d_sinks.data[i], 1e-12);
  }
}

// 2 heads of 6 columns, of which 2 are rotated and the same for both, with values of 3; 3 positions
// of 2 sequences: from latents' keys to attention's result.
TEST_F(Gradient, OfLatentKeysAndNarrowerValues) {
  Array q = random({6, 12}), kv = random({6, 14}), shared = random({6, 2});
  Array k = empty({6, 12}), v = empty({6, 6}), o = empty({6, 6}), lse = empty({2, 2, 3});
  LatentKeys keys{Pass::kForward, 6, 2, 4, 2, 3, kReal};
  Attention op{Pass::kForward, 2, 2, 2, 3, 3, 6, true, false, kReal};
  op.value_dim = 3;
  const auto loss = [&] {
    run(keys, {&kv, &shared}, {&k, &v});
    run(op, {&q, &k, &v}, {&o, &lse});
    return sum(o);
  };
  loss();
  Array d_o = weights_of(o), d_q = empty({6, 12}), d_k = empty({6, 12}), d_v = empty({6, 6});
  Array d_kv = empty({6, 14}), d_shared = empty({6, 2});
  op.pass = Pass::kBackward;
  run(op, {&q, &k, &v, &o, &lse, &d_o}, {&d_q, &d_k, &d_v});
  keys.pass = Pass::kBackward;
  run(keys, {&d_k, &d_v}, {&d_kv, &d_shared});
  op.pass = keys.pass = Pass::kForward;
  expect_gradient(loss, q, d_q);
  expect_gradient(loss, kv, d_kv);
  expect_gradient(loss, shared, d_shared);
}

// Of each head's 6 columns the last 2 turn; the others stay.
TEST_F(Gradient, OfARotationOfSomeColumns) {
  Array x = random({6, 12});
  const Array before = x;
  Pointwise op{PointwiseKind::kRotary, 6, 12, kReal, kReal, false, 6};
  op.rotated = 2;
  run(op, {&x}, {&x});
  for (std::size_t i = 0; i < x.data.size(); ++i) {
    const bool stays = i % 6 < 4 || i < 24;  // rows 0 and 1 stand at position 0
    EXPECT_EQ(x.data[i] == before.data[i], stays) << i;
  }
  op.kind = PointwiseKind::kRotaryBackward;
  run(op, {&x}, {&x});
  for (std::size_t i = 0; i < x.data.size(); ++i) EXPECT_NEAR(x.data[i], before.data[i], 1e-12);
}

// The same without the fused kernel, and the same numbers as with it; with dropout too.
TEST_F(Gradient, OfUnfusedAttention) {
  Array qkv = random({6, 32}), o = empty({6, 16}), fused = o, lse = empty({2, 4, 3});
  Array scores = empty({24, 3}), p = scores, dropped = scores, mask = scores;
  const Gemm product{6, 3, 4, 4, GemmRole::kForward, kReal, kReal, false, false};
  const Gemm context{6, 4, 3, 4, GemmRole::kForward, kReal, kReal, false, false};
  const Pointwise softmax{PointwiseKind::kSoftmax, 24, 3, kReal, kReal, true};
  const Pointwise drop{PointwiseKind::kDropout, 24, 3, kReal, kReal, false, 0, true};
  const auto loss = [&] {
    run(product, {&qkv}, {&scores});
    run(softmax, {&scores}, {&p});
    run(drop, {&p}, {&dropped, &mask});
    run(context, {&dropped, &qkv}, {&o});
    return sum(o);
  };
  loss();
  run(Attention{Pass::kForward, 2, 4, 2, 3, 3, 4, true, true, kReal}, {&qkv}, {&fused, &lse});
  for (std::size_t i = 0; i < o.data.size(); ++i) EXPECT_NEAR(o.data[i], fused.data[i], 1e-12);

  Array d_o = weights_of(o), dp = scores, ds = scores, d_qkv = empty({6, 32});
  Array d_dropped = scores;
  const auto role = [](const Gemm& op, std::int64_t m, std::int64_t n, std::int64_t k, GemmRole r) {
    return Gemm{m, n, k, op.batch, r, kReal, kReal, false, false};
  };
  run(role(context, 6, 3, 4, GemmRole::kInputGradient), {&d_o, &qkv}, {&d_dropped});
  run(Pointwise{PointwiseKind::kDropoutBackward, 24, 3, kReal, kReal}, {&d_dropped, &mask}, {&dp});
  run(role(context, 3, 4, 6, GemmRole::kWeightGradient), {&dropped, &d_o}, {&d_qkv});
  run(Pointwise{PointwiseKind::kSoftmaxBackward, 24, 3, kReal, kReal, true}, {&dp, &p}, {&ds});
  run(role(product, 6, 4, 3, GemmRole::kInputGradient), {&ds, &qkv, &d_qkv}, {&d_qkv});
  run(role(product, 3, 4, 6, GemmRole::kWeightGradient), {&ds, &qkv, &d_qkv}, {&d_qkv});
  expect_gradient(loss, qkv, d_qkv);
}

// The same probabilities by the kernels of PyTorch, mask and softmax apart, and its gradient.
TEST_F(Gradient, OfSoftmaxWhoseMaskIsAKernelOfItsOwn) {
  Array x = random({24, 3}), wide = x, scores = x, p = x, fused = x;
  const auto pointwise = [](PointwiseKind kind, bool causal = false) {
    return Pointwise{kind, 24, 3, kReal, kReal, causal};
  };
  const auto loss = [&] {
    run(pointwise(PointwiseKind::kCast), {&x}, {&wide});
    run(pointwise(PointwiseKind::kScale), {&wide}, {&scores});
    run(pointwise(PointwiseKind::kMask), {&scores}, {&scores});
    run(pointwise(PointwiseKind::kSoftmax), {&scores}, {&p});
    return sum(p);
  };
  loss();
  run(pointwise(PointwiseKind::kSoftmax, true), {&x}, {&fused});
  for (std::size_t i = 0; i < p.data.size(); ++i) EXPECT_NEAR(p.data[i], fused.data[i], 1e-12);

  Array dp = weights_of(p), ds = p, dx = p;
  run(pointwise(PointwiseKind::kSoftmaxBackward), {&dp, &p}, {&ds});
  for (std::size_t i = 0; i < 24; i += 3) ds.data[3 * i + 2] = 1;  // row 0 of 3 sees one score
  run(pointwise(PointwiseKind::kMaskBackward), {&ds}, {&ds});
  run(pointwise(PointwiseKind::kScale), {&ds}, {&dx});
  expect_gradient(loss, x, dx);
}

// Onto a residual, with a bias. A mask is bytes; what holds it has room for more.
TEST_F(Gradient, OfDropoutOntoAResidual) {
  Array x = random({6, 5}), residual = random({6, 5}), bias = weight(random({5}));
  Array y = x, mask = x, dx = x, db = weight(empty({5}));
  const auto loss = [&] {
    run(Pointwise{PointwiseKind::kDropoutAdd, 6, 5, kReal, kReal}, {&x, &residual, &bias},
        {&y, &mask});
    return sum(y);
  };
  loss();
  Array dy = weights_of(y);
  run(Pointwise{PointwiseKind::kDropoutBackward, 6, 5, kReal, kReal}, {&dy, &mask}, {&dx});
  run(Pointwise{PointwiseKind::kAddRowsBackward, 6, 5, kReal, kReal}, {&dx}, {&db});
  expect_gradient(loss, x, dx);
  expect_gradient(loss, bias, db);
  expect_gradient(loss, residual, dy);
  for (std::size_t i = 0; i < 30; ++i) {
    EXPECT_EQ(dx.data[i] == 0, y.data[i] == residual.data[i]) << "element " << i;
  }
}

TEST_F(Gradient, OfNorms) {
  for (const NormKind kind : {NormKind::kLayer, NormKind::kRms}) {
    const bool layer = kind == NormKind::kLayer;
    Array x = random({6, 5}), w = weight(random({5})), b = weight(random({5}));
    Array y = empty({6, 5}), statistics = empty({6, layer ? 2 : 1});
    const auto loss = [&] {
      std::vector<Array*> reads = {&x, &w};
      if (layer) reads.push_back(&b);
      run(Norm{Pass::kForward, kind, 6, 5, kReal}, reads, {&y, &statistics});
      return sum(y);
    };
    loss();
    Array dy = weights_of(y), dx = y, dw = weight(random({5})), db = dw;  // overwritten
    std::vector<Array*> writes = {&dx, &dw};
    if (layer) writes.push_back(&db);
    run(Norm{Pass::kBackward, kind, 6, 5, kReal}, {&dy, &x, &w, &statistics}, writes);
    expect_gradient(loss, x, dx);
    expect_gradient(loss, w, dw);
    if (layer) expect_gradient(loss, b, db);
    const Array once = dw;
    run(Norm{Pass::kBackward, kind, 6, 5, kReal}, {&dy, &x, &w, &statistics, &dw}, {&dx, &dw});
    for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(dw.data[i], 2 * once.data[i], 1e-9);
  }
}

// 2 query heads and 1 key head of 4 in a qkv of 16 columns; backward works in place.
TEST_F(Gradient, OfTheNormOfQueriesAndKeys) {
  Array qkv = random({6, 16}), w = weight(random({2, 4})), qk = empty({6, 12});
  Array statistics = empty({18});
  const auto loss = [&] {
    run(Norm{Pass::kForward, NormKind::kRms, 18, 4, kReal}, {&qkv, &w}, {&qk, &statistics});
    return sum(qk);
  };
  loss();
  const Array r = weights_of(qk);
  Array d = empty({6, 16}), dw = weight(empty({2, 4}));
  for (std::size_t row = 0; row < 6; ++row) {
    for (std::size_t c = 0; c < 12; ++c) d.data[row * 16 + c] = r.data[row * 12 + c];
  }
  run(Norm{Pass::kBackward, NormKind::kRms, 18, 4, kReal}, {&d, &qkv, &w, &statistics, &dw},
      {&d, &dw});
  expect_gradient(loss, qkv, d);  // nothing of it for the values
  expect_gradient(loss, w, dw);
}

TEST_F(Gradient, OfActivations) {
  struct Kind {
    PointwiseKind forward, backward;
    std::int64_t width;  // of the input, in outputs
  };
  for (const Kind kind :
       {Kind{PointwiseKind::kGelu, PointwiseKind::kGeluBackward, 1},
        Kind{PointwiseKind::kSwiglu, PointwiseKind::kSwigluBackward, 2},
        Kind{PointwiseKind::kGeglu, PointwiseKind::kGegluBackward, 2},
        Kind{PointwiseKind::kSwigluOai, PointwiseKind::kSwigluOaiBackward, 2}}) {
    Array x = random({6, 4 * kind.width}), y = empty({6, 4}), dx = x;
    const auto loss = [&] {
      run(Pointwise{kind.forward, 6, 4, kReal, kReal, false}, {&x}, {&y});
      return sum(y);
    };
    Array dy = weights_of(y);
    run(Pointwise{kind.backward, 6, 4 * kind.width, kReal, kReal, false}, {&dy, &x}, {&dx});
    expect_gradient(loss, x, dx);
  }
}

// openai/gpt-oss gpt_oss/torch/model.py, swiglu: beyond the limits nothing changes with the input.
TEST_F(Gradient, OfTheActivationOfGptOssEndsAtItsLimits) {
  // Gates 0.5, 9, -9 and 1; their partners 2, 1, 8 and -8.
  Array x = empty({1, 8}), y = empty({1, 4}), dy = empty({1, 4}), dx = x;
  x.data = {0.5, 9, -9, 1, 2, 1, 8, -8};
  dy.data = {1, 1, 1, 1};
  run(Pointwise{PointwiseKind::kSwigluOai, 1, 4, kReal, kReal}, {&x}, {&y});
  run(Pointwise{PointwiseKind::kSwigluOaiBackward, 1, 8, kReal, kReal}, {&dy, &x}, {&dx});
  const auto swish = [](double gate) { return gate / (1 + std::exp(-1.702 * gate)); };
  const std::vector<double> expected = {swish(0.5) * 3, swish(7) * 2, swish(-9) * 8,
                                        swish(1) * -6};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(y.data[i], expected[i], 1e-12);
  EXPECT_EQ(dx.data[1], 0);
  EXPECT_NE(dx.data[2], 0);
  EXPECT_EQ(dx.data[6], 0);
  EXPECT_EQ(dx.data[7], 0);
  EXPECT_NEAR(dx.data[4], swish(0.5), 1e-12);
}

// Rotated back: the transpose of a rotation. 2 heads of 4 of 3, the rest of the row stays.
TEST_F(Gradient, OfRotaryPositions) {
  Array x = random({6, 12}), y = x;
  const auto loss = [&] {
    y = x;
    run(Pointwise{PointwiseKind::kRotary, 6, 8, kReal, kReal, false, 4}, {&y}, {&y});
    return sum(y);
  };
  loss();
  for (std::size_t c = 0; c < 12; ++c) EXPECT_EQ(y.data[c], x.data[c]);  // position 0 stays
  EXPECT_NE(y.data[2 * 12], x.data[2 * 12]);
  Array d = weights_of(y);
  run(Pointwise{PointwiseKind::kRotaryBackward, 6, 8, kReal, kReal, false, 4}, {&d}, {&d});
  expect_gradient(loss, x, d);
}

TEST_F(Gradient, OfRotaryPositionsWithAFactor) {
  Pointwise op{PointwiseKind::kRotary, 6, 8, kReal, kReal, false, 4};
  Array x = random({6, 12}), plain = x, y = x;
  run(op, {&plain}, {&plain});
  op.scale = 1.25;
  const auto loss = [&] {
    y = x;
    run(op, {&y}, {&y});
    return sum(y);
  };
  loss();
  for (std::size_t i = 0; i < y.data.size(); ++i) {
    const double factor = i % 12 < 8 ? 1.25 : 1;  // the last 4 are not rotated
    EXPECT_NEAR(y.data[i], factor * plain.data[i], 1e-12) << i;
  }
  Array d = weights_of(y);
  Pointwise backward = op;
  backward.kind = PointwiseKind::kRotaryBackward;
  run(backward, {&d}, {&d});
  expect_gradient(loss, x, d);
}

// Positions: a table of 4 for 3 positions of 2 sequences. Then as the second of two tensor ranks
// that share the rows: its 3 rows are tokens 3, 4, 5, at positions 1, 2, 2.
TEST_F(Gradient, OfPositionsAndBiases) {
  for (const std::int64_t ranks : {1, 2}) {
    place_.tensor_ranks = ranks;
    place_.tensor_rank = ranks - 1;
    const std::int64_t rows = 6 / ranks;
    Array x = random({rows, 2}), table = weight(random({4, 2})), y = x;
    const auto loss = [&] {
      run(Pointwise{PointwiseKind::kAddRows, rows, 2, kReal, kReal, false}, {&x, &table}, {&y});
      return sum(y);
    };
    loss();
    const std::size_t first_row = ranks == 1 ? 0 : 1;
    EXPECT_EQ(y.data[0], x.data[0] + table.data[2 * first_row]);
    Array dy = weights_of(y), d_table = weight(empty({4, 2}));
    run(Pointwise{PointwiseKind::kAddRowsBackward, rows, 2, kReal, kReal, false},
        {&dy, &d_table}, {&d_table});
    expect_gradient(loss, table, d_table);
  }
  Array a = random({6, 2}), b = random({6, 2}), bias = weight(random({2})), y = a;
  const auto loss = [&] {
    run(Pointwise{PointwiseKind::kAdd, 6, 2, kReal, kReal, false}, {&a, &b, &bias}, {&y});
    return sum(y);
  };
  Array dy = weights_of(y), d_bias = weight(random({2}));  // overwritten
  run(Pointwise{PointwiseKind::kAddRowsBackward, 6, 2, kReal, kReal, false}, {&dy}, {&d_bias});
  expect_gradient(loss, a, dy);
  expect_gradient(loss, b, dy);
  expect_gradient(loss, bias, d_bias);
}

// The second half of a table of 6, of which the vocabulary uses 5.
TEST_F(Gradient, OfALookupInASliceOfATable) {
  place_.tensor_ranks = 2;
  place_.tensor_rank = 1;
  Array id = ids({0, 3, 4, 3, 2, 1}), table = weight(random({3, 2})), y = random({6, 2});
  const Gather op{Pass::kForward, 6, 2, 3, kReal, kReal};
  const auto loss = [&] {
    run(op, {&id, &table}, {&y});
    return sum(y);
  };
  loss();
  EXPECT_EQ(y.data[0], 0);
  EXPECT_EQ(y.data[2], table.data[0]);
  Array dy = weights_of(y), d_table = weight(random({3, 2}));  // overwritten
  run(Gather{Pass::kBackward, 6, 2, 3, kReal, kReal}, {&id, &dy}, {&d_table});
  expect_gradient(loss, table, d_table);
}

// The mean over 6 tokens; the column of padding has no part in it.
TEST_F(Gradient, OfTheLoss) {
  Array id = ids({0, 3, 4, 3, 2, 1}), logits = random({6, 6});
  Array most = empty({6}), sums = empty({6, 2}), each = empty({6}), p = empty({6, 6}), d = p;
  const auto part = [](LossPart of) { return Loss{of, 6, 6, kReal, kReal}; };
  const auto loss = [&] {
    run(part(LossPart::kMaximum), {&logits}, {&most});
    run(part(LossPart::kSums), {&logits, &id, &most}, {&sums});
    run(part(LossPart::kFinish), {&logits, &most, &sums, &id}, {&each, &p});
    double mean = 0;
    for (const double one : each.data) mean += one / 6;
    return mean;
  };
  logits.data[5] = 1e3;
  EXPECT_LT(loss(), 10);
  run(part(LossPart::kBackward), {&p, &id}, {&d});
  expect_gradient(loss, logits, d);
}

// Float kernels do what double ones do: their products are oneDNN's.
TEST_F(Gradient, InFloatIsTheSame) {
  std::vector<float> a(6 * 4), b(5 * 4), c(6 * 5);
  Array x = random({6, 4}), w = weight(random({5, 4})), y = empty({6, 5});
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(x.data[i]);
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(w.data[i]);
  const Op op = Gemm{6, 5, 4, 1, GemmRole::kForward, kReal, kReal, false, false};
  run(op, {&x, &w}, {&y});
  cpu::Scratch<float> scratch;
  const std::vector<Operand> in = {{a.data(), &x.tensor}, {b.data(), &w.tensor}};
  const std::vector<Operand> out = {{c.data(), &y.tensor}};
  cpu::compute<float>({op, in, out, place_}, scratch);
  for (std::size_t i = 0; i < c.size(); ++i) EXPECT_NEAR(c[i], y.data[i], 1e-5);
}

}  // namespace
}  // namespace stepcast

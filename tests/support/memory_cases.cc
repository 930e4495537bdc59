// Kernels that move memory: fp32 within its rounding, bf16 within one rounding of the result (2^-8
// relative) and of what it is made of.
#include "tests/support/kernel_cases.h"

namespace stepcast::cuda {

namespace {

double tolerance(Dtype dtype) { return dtype == Dtype::kBf16 ? 5e-3 : 4e-6; }

// Columns that a warp takes by eights, by ones, and that a block takes.
constexpr std::int64_t kColumns[] = {64, 13, 1032};
constexpr Dtype kDtypes[] = {Dtype::kFp32, Dtype::kBf16};

constexpr Place kPlace = {{3, 2, 1, 5}, 0, 1, 6};  // 3 positions of 2 sequences

void normalise_as_the_cpu_does(TwoSidedOp& on) {
  on.place = kPlace;
  for (const NormKind kind : {NormKind::kLayer, NormKind::kRms}) {
    for (const Dtype dtype : kDtypes) {
      for (const std::int64_t columns : kColumns) {
        const bool layer = kind == NormKind::kLayer;
        TwoFold x = on.random({19, columns}, dtype), w = on.weight({columns}, dtype);
        TwoFold b = on.weight({columns}, dtype), y = on.empty({19, columns}, dtype);
        TwoFold statistics = on.empty({19, layer ? 2 : 1}, Dtype::kFp32);
        std::vector<TwoFold*> reads = {&x, &w};
        if (layer) reads.push_back(&b);
        on.run(Norm{Pass::kForward, kind, 19, columns, dtype}, reads, {&y, &statistics});
        on.expect_close(y, tolerance(dtype));
        on.expect_close(statistics, 1e-6);
        // Gradients in fp32, onto what is there; then anew.
        TwoFold dy = on.random({19, columns}, dtype), dx = on.empty({19, columns}, dtype);
        TwoFold dw = on.weight({columns}, Dtype::kFp32), db = on.weight({columns}, Dtype::kFp32);
        std::vector<TwoFold*> back = {&dy, &x, &w, &statistics}, writes = {&dx, &dw};
        if (layer) writes.push_back(&db);
        for (const bool accumulate : {true, false}) {
          if (accumulate) back.insert(back.end(), writes.begin() + 1, writes.end());
          if (!accumulate) back.resize(4);
          on.run(Norm{Pass::kBackward, kind, 19, columns, dtype}, back, writes, WarpOrder::kDown);
          on.expect_close(dx, tolerance(dtype));
          on.expect_close(dw, 1e-5);
          if (layer) {
            on.expect_close(db, 1e-5);
          }
        }
      }
    }
  }
}

// 2 query heads and 1 key head of 64 in a qkv of 4; the gradient in place.
void normalise_queries_and_keys_in_place(TwoSidedOp& on) {
  on.place = kPlace;
  for (const Dtype dtype : kDtypes) {
    TwoFold qkv = on.random({6, 256}, dtype), w = on.weight({2, 64}, dtype),
            qk = on.empty({6, 192}, dtype);
    TwoFold statistics = on.empty({18}, Dtype::kFp32);
    on.run(Norm{Pass::kForward, NormKind::kRms, 18, 64, dtype}, {&qkv, &w}, {&qk, &statistics});
    on.expect_close(qk, tolerance(dtype));
    TwoFold d = on.random({6, 256}, dtype), dw = on.weight({2, 64}, Dtype::kFp32);
    on.run(Norm{Pass::kBackward, NormKind::kRms, 18, 64, dtype}, {&d, &qkv, &w, &statistics, &dw},
           {&d, &dw});
    on.expect_close(d, tolerance(dtype));
    on.expect_close(dw, 1e-5);
  }
}

void activate_as_the_cpu_does(TwoSidedOp& on) {
  on.place = kPlace;
  using Kind = PointwiseKind;
  struct Pair {
    Kind forward, backward;
    std::int64_t width;  // of the input, in outputs
  };
  for (const Pair pair :
       {Pair{Kind::kGelu, Kind::kGeluBackward, 1}, Pair{Kind::kSwiglu, Kind::kSwigluBackward, 2},
        Pair{Kind::kGeglu, Kind::kGegluBackward, 2}}) {
    for (const Dtype dtype : kDtypes) {
      for (const std::int64_t columns : kColumns) {
        TwoFold x = on.random({6, columns * pair.width}, dtype), y = on.empty({6, columns}, dtype);
        TwoFold dx = on.empty({6, columns * pair.width}, dtype),
                dy = on.random({6, columns}, dtype);
        on.run(Pointwise{pair.forward, 6, columns, dtype, dtype}, {&x}, {&y});
        on.run(Pointwise{pair.backward, 6, columns * pair.width, dtype, dtype}, {&dy, &x}, {&dx});
        on.expect_close(y, tolerance(dtype));
        on.expect_close(dx, tolerance(dtype));
      }
    }
  }
}

// Gate and up, and their gradients, in tensors of their own.
void gate_from_two_tensors(TwoSidedOp& on) {
  on.place = kPlace;
  using Kind = PointwiseKind;
  for (const auto& [forward, backward] : {std::pair{Kind::kSwiglu, Kind::kSwigluBackward},
                                          {Kind::kGeglu, Kind::kGegluBackward}}) {
    for (const Dtype dtype : kDtypes) {
      for (const std::int64_t columns : kColumns) {
        TwoFold gate = on.random({6, columns}, dtype), up = on.random({6, columns}, dtype),
                y = on.empty({6, columns}, dtype), dy = on.random({6, columns}, dtype),
                d_gate = on.empty({6, columns}, dtype), d_up = on.empty({6, columns}, dtype);
        on.run(Pointwise{forward, 6, columns, dtype, dtype}, {&gate, &up}, {&y});
        on.run(Pointwise{backward, 6, 2 * columns, dtype, dtype}, {&dy, &gate, &up},
               {&d_gate, &d_up});
        for (const TwoFold* one : {&y, &d_gate, &d_up}) on.expect_close(*one, tolerance(dtype));
      }
    }
  }
}

void add_with_and_without_abias_and_in_place(TwoSidedOp& on) {
  on.place = kPlace;
  for (const Dtype dtype : kDtypes) {
    TwoFold a = on.random({6, 40}, dtype), b = on.random({6, 40}, dtype),
            bias = on.weight({40}, dtype);
    TwoFold y = on.empty({6, 40}, dtype);
    on.run(Pointwise{PointwiseKind::kAdd, 6, 40, dtype, dtype}, {&a, &b, &bias}, {&y});
    on.expect_close(y, tolerance(dtype));
    on.run(Pointwise{PointwiseKind::kAdd, 6, 40, dtype, dtype}, {&a, &b}, {&a});
    on.expect_close(a, tolerance(dtype));
  }
}

// Onto a residual with a bias, by one rank and by the second of two that share the tokens; then the
// scores of two heads of two sequences of 3 positions. What comes back follows the mask.
void drop_the_same_elements(TwoSidedOp& on) {
  on.place = kPlace;
  on.drop(0.3);
  for (const Dtype dtype : kDtypes) {
    for (const std::int64_t columns : kColumns) {
      for (const std::int64_t ranks : {1, 2}) {
        on.place.tensor_ranks = ranks;
        on.place.tensor_rank = ranks - 1;
        const std::int64_t rows = 6 / ranks;
        TwoFold x = on.random({rows, columns}, dtype), beside = on.random({rows, columns}, dtype);
        TwoFold bias = on.weight({columns}, dtype), y = on.empty({rows, columns}, dtype);
        TwoFold mask = on.empty({rows, columns}, Dtype::kUint8), d = y;
        const Pointwise op{PointwiseKind::kDropoutAdd, rows, columns, dtype, dtype};
        on.run(op, {&x, &beside, &bias}, {&y, &mask});
        on.expect_same_mask(mask);
        on.expect_close(y, tolerance(dtype));
        on.run(Pointwise{PointwiseKind::kDropoutBackward, rows, columns, dtype, dtype}, {&x, &mask},
               {&d});
        on.expect_close(d, tolerance(dtype));
      }
    }
    TwoFold p = on.random({12, 3}, dtype), dropped = p, mask = on.empty({12, 3}, Dtype::kUint8);
    on.run(Pointwise{PointwiseKind::kDropout, 12, 3, dtype, dtype, false, 0, true}, {&p},
           {&dropped, &mask});
    on.expect_same_mask(mask);
    on.expect_close(dropped, tolerance(dtype));
  }
}

// A table of 4 for 3 positions of 2 sequences; then as the second of two tensor ranks that share
// the rows: its 3 rows are tokens 3, 4, 5. A table of one row is a bias.
void add_positions_and_biases(TwoSidedOp& on) {
  on.place = kPlace;
  for (const Dtype dtype : kDtypes) {
    for (const std::int64_t columns : kColumns) {
      for (const std::int64_t ranks : {1, 2}) {
        for (const std::int64_t table_rows : {4, 1}) {
          on.place.tensor_ranks = ranks;
          on.place.tensor_rank = ranks - 1;
          const std::int64_t rows = 6 / ranks;
          TwoFold x = on.random({rows, columns}, dtype),
                  table = on.weight({table_rows, columns}, dtype);
          TwoFold y = on.empty({rows, columns}, dtype);
          TwoFold d_table = on.weight({table_rows, columns}, Dtype::kFp32);
          on.run(Pointwise{PointwiseKind::kAddRows, rows, columns, dtype, dtype}, {&x, &table},
                 {&y});
          on.expect_close(y, tolerance(dtype));
          const Pointwise back{PointwiseKind::kAddRowsBackward, rows, columns, dtype, dtype};
          on.run(back, {&x, &d_table}, {&d_table});
          on.expect_close(d_table, 1e-5);
          on.run(back, {&x}, {&d_table});
          on.expect_close(d_table, 1e-5);
        }
      }
    }
  }
}

// 2 heads of the dimension in rows of 3; two positions far out besides.
void rotate_there_and_back(TwoSidedOp& on) {
  on.place = kPlace;
  for (const Dtype dtype : kDtypes) {
    for (const std::int64_t dim : {64, 12}) {
      TwoFold x = on.random({6, 3 * dim}, dtype);
      on.run(Pointwise{PointwiseKind::kRotary, 6, 2 * dim, dtype, dtype, false, dim}, {&x}, {&x});
      on.expect_close(x, tolerance(dtype));
      on.run(Pointwise{PointwiseKind::kRotaryBackward, 6, 2 * dim, dtype, dtype, false, dim}, {&x},
             {&x});
      on.expect_close(x, 2 * tolerance(dtype));
      TwoFold q = on.random({6, 2 * dim}, dtype), turned = on.empty({6, 2 * dim}, dtype);
      on.run(Pointwise{PointwiseKind::kRotary, 6, 2 * dim, dtype, dtype, false, dim}, {&q},
             {&turned});
      on.expect_close(turned, tolerance(dtype));
      Pointwise scaled{PointwiseKind::kRotary, 6, 2 * dim, dtype, dtype, false, dim};
      scaled.scale = 1.25;
      on.run(scaled, {&q}, {&turned});
      on.expect_close(turned, tolerance(dtype));
    }
  }
  on.place.batch.sequence_length = 131072;
  on.place.batch.micro_batch = 1;
  on.place.tensor_ranks = 65536;
  on.place.tensor_rank = 65535;
  TwoFold x = on.random({2, 64}, Dtype::kFp32);
  const Dtype fp32 = Dtype::kFp32;
  on.run(Pointwise{PointwiseKind::kRotary, 2, 64, fp32, fp32, false, 64}, {&x}, {&x});
  on.expect_close(x, 1e-6);
}

void take_softmax_of_masked_rows(TwoSidedOp& on) {
  on.place = kPlace;
  for (const Dtype dtype : kDtypes) {
    for (const std::int64_t columns : kColumns) {
      for (const bool causal : {false, true}) {
        TwoFold scores = on.random({21, columns}, dtype), p = on.empty({21, columns}, dtype);
        TwoFold dp = on.random({21, columns}, dtype), ds = on.empty({21, columns}, dtype);
        const Pointwise op{PointwiseKind::kSoftmax, 21, columns, dtype, dtype, causal};
        on.run(op, {&scores}, {&p});
        on.expect_close(p, tolerance(dtype));
        on.run(Pointwise{PointwiseKind::kSoftmaxBackward, 21, columns, dtype, dtype, causal},
               {&dp, &p}, {&ds});
        on.expect_close(ds, tolerance(dtype));
      }
    }
  }
}

// Of two heads of a sequence, each by itself; and the scale that leaves them as they are.
void mask_and_scale_scores(TwoSidedOp& on) {
  on.place = kPlace;
  for (const Dtype dtype : kDtypes) {
    for (const std::int64_t columns : {16, 13}) {
      TwoFold scores = on.random({2 * columns, columns}, dtype), scaled = scores, d = scores;
      on.run(Pointwise{PointwiseKind::kScale, 2 * columns, columns, dtype, dtype}, {&scores},
             {&scaled});
      on.expect_close(scaled, 0);
      on.run(Pointwise{PointwiseKind::kMask, 2 * columns, columns, dtype, dtype}, {&scores},
             {&scores});
      on.expect_close(scores, tolerance(dtype));  // kMaskedScore in bf16 is -9,984
      on.run(Pointwise{PointwiseKind::kMaskBackward, 2 * columns, columns, dtype, dtype}, {&d},
             {&d});
      on.expect_close(d, 0);
    }
  }
}

// The second half of a vocabulary of 2 x 1040, whose last 30 columns are padding.
void take_the_loss_over_aslice_of_the_vocabulary(TwoSidedOp& on) {
  on.place = kPlace;
  for (const Dtype dtype : kDtypes) {
    on.place.tensor_ranks = 2;
    on.place.tensor_rank = 1;
    on.place.batch.vocabulary = 2050;
    TwoFold logits = on.random({6, 1040}, dtype), id = on.ids({1040, 3, 2049, 1500, 7, 1999});
    TwoFold most = on.empty({6}, Dtype::kFp32), sums = on.empty({6, 2}, Dtype::kFp32);
    TwoFold each = on.empty({6}, Dtype::kFp32), p = on.empty({6, 1040}, dtype), d = p;
    const auto part = [&](LossPart of) { return Loss{of, 6, 1040, dtype, dtype}; };
    for (std::size_t row = 0; row < 6; ++row) on.set(logits, row * 1040 + 1035, 1e3);  // padding
    on.run(part(LossPart::kMaximum), {&logits}, {&most});
    on.expect_close(most, 0);
    on.expect(most.value(0) < 10, "padding counts");
    on.run(part(LossPart::kSums), {&logits, &id, &most}, {&sums});
    on.expect_close(sums, 1e-5);
    on.run(part(LossPart::kFinish), {&logits, &most, &sums, &id}, {&each, &p});
    on.expect_close(each, 1e-5);
    on.expect_close(p, tolerance(dtype));
    on.run(part(LossPart::kBackward), {&p, &id}, {&d});
    on.expect_close(d, tolerance(dtype));
  }
}

// 1,100 rows, so that equal ids lie further apart than one look; a slice of 3 of 6.
void look_up_and_add_up_equal_ids(TwoSidedOp& on) {
  on.place = kPlace;
  for (const Dtype dtype : kDtypes) {
    for (const std::int64_t columns : {dtype == Dtype::kBf16 ? 16 : 5}) {
      on.place.tensor_ranks = 2;
      on.place.tensor_rank = 1;
      std::vector<std::int64_t> values(1100, 0);
      values[0] = values[1] = values[1099] = 4;
      values[700] = 5;
      values[701] = 2;
      TwoFold id = on.ids(values), table = on.weight({3, columns}, dtype);
      TwoFold y = on.empty({1100, columns}, dtype), d = on.random({1100, columns}, dtype);
      on.run(Gather{Pass::kForward, 1100, columns, 3, dtype, dtype}, {&id, &table}, {&y});
      on.expect_close(y, 0);
      TwoFold dt = on.weight({3, columns}, Dtype::kFp32);
      const Gather back{Pass::kBackward, 1100, columns, 3, dtype, Dtype::kFp32};
      on.run(back, {&id, &d, &dt}, {&dt});
      on.expect_close(dt, 1e-6);
      on.run(back, {&id, &d}, {&dt}, WarpOrder::kDown);
      on.expect_close(dt, 1e-6);
    }
  }
}

void cast_join_and_take_ashare(TwoSidedOp& on) {
  on.place = kPlace;
  const Dtype fp32 = Dtype::kFp32, bf16 = Dtype::kBf16;
  TwoFold a = on.random({3, 5}, fp32), b = on.random({7}, fp32), joined = on.empty({22}, bf16);
  on.run(Pointwise{PointwiseKind::kCast, 1, 22, fp32, bf16}, {&a, &b}, {&joined});
  on.expect_close(joined, 4e-3);
  for (std::size_t i = 0; i < 15; ++i) {
    const float value = static_cast<float>(a.value(i));
    on.expect(joined.value(i) == static_cast<double>(widen(round_bf16(value))), "cast");
  }
  on.place.tensor_ranks = 2;
  on.place.tensor_rank = 1;
  TwoFold share = on.empty({11}, fp32);
  on.run(Pointwise{PointwiseKind::kCast, 1, 11, bf16, fp32}, {&joined}, {&share});
  for (std::size_t i = 0; i < 11; ++i) on.expect(share.value(i) == joined.value(11 + i), "share");
  on.run(Pointwise{PointwiseKind::kFill, 1, 11, fp32, fp32}, {}, {&share, &joined});
  on.expect(share.value(10) == 0, "fill");
  on.expect(joined.value(21) == 0, "fill");
}

}  // namespace

const std::vector<KernelCase>& memory_cases() {
  static const std::vector<KernelCase> cases = {
      {"NormaliseAsTheCpuDoes", normalise_as_the_cpu_does},
      {"NormaliseQueriesAndKeysInPlace", normalise_queries_and_keys_in_place},
      {"ActivateAsTheCpuDoes", activate_as_the_cpu_does},
      {"GateFromTwoTensors", gate_from_two_tensors},
      {"AddWithAndWithoutABiasAndInPlace", add_with_and_without_abias_and_in_place},
      {"DropTheSameElements", drop_the_same_elements},
      {"AddPositionsAndBiases", add_positions_and_biases},
      {"RotateThereAndBack", rotate_there_and_back},
      {"TakeSoftmaxOfMaskedRows", take_softmax_of_masked_rows},
      {"MaskAndScaleScores", mask_and_scale_scores},
      {"TakeTheLossOverASliceOfTheVocabulary", take_the_loss_over_aslice_of_the_vocabulary},
      {"LookUpAndAddUpEqualIds", look_up_and_add_up_equal_ids},
      {"CastJoinAndTakeAShare", cast_join_and_take_ashare},
  };
  return cases;
}

}  // namespace stepcast::cuda

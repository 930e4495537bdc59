// GEMM: tiles and waves.
//
// A library kernel cuts C into tiles of (Tm, Tn) and gives each to one multiprocessor, so C is
// padded to whole tiles and the tiles to whole waves (NVIDIA, "Matrix Multiplication Background
// User's Guide": tile and wave quantisation). On top of these two, three effects that any tiled
// kernel has (CUTLASS, "Efficient GEMM in CUDA"):
//   * main loop   operands pass through shared memory at 1/Tm + 1/Tn words a multiply-add, so with
//                 h = 2 Tm Tn / (Tm + Tn) a tile reaches the share h / (h + 30) of what an
//                 unbounded tile would; rates are relative to the largest tile here (256 x 128)
//   * ramp        each tile first fills its pipeline of operand stages: k costs as k + 128
//                 (four stages of 32)
//   * epilogue    a tile's output is not hidden behind its own main loop; half of C's traffic is
//                 hidden behind other tiles
// With fewer tiles than multiprocessors k may be split in parts whose fp32 partial sums are written
// and read once, by a second kernel (split-k).
// A last wave that fills the device only partly takes as long as a full one, unless the kernel
// spreads the k of its tiles over all multiprocessors (stream-k; Osama et al., PPoPP 2023); the
// device's `partial_wave` says how much of the idle time is lost.
//
// Experts' products (Gemm::grouped) in one kernel (CUTLASS's grouped GEMM, DeepGEMM, MegaBlocks)
// are as many tiles more. Where each is a kernel of its own, issued over several streams
// (TransformerEngine, transformer_engine/common/gemm/cublaslt_gemm.cu: multi_stream_cublas_gemm),
// their tiles fill the same waves, but tiles and split are what the library takes for one of them,
// so small that it fills the device alone, and each pays a kernel's start: with 2 to 3 us the mean
// error of MooreThreads/SimuMax's 68 rows of these on a B200 is least, to which nothing here is
// fitted but the host's pace (issue_time in cost.h).
//
// The candidate with the smallest time wins, as in a library's heuristic. Each candidate's time is
// non-decreasing in m, n, k and batch, and a larger product never has more candidates; so is the
// minimum (but for products that are tiled as if alone). The device's matrix efficiency is that of
// a large product; the main loop's rate is set such that 8192 x 8192 x 8192 with whole waves runs
// at exactly that share of the peak.
// The ramp and the hidden half were picked out of nine pairs (ramp 32, 64, 128; exposed 0, 1/2, 1)
// by the A100 rows of MooreThreads/SimuMax's GEMM table, before that last normalisation; so those
// rows are no independent check. No constant was fitted to its B200 rows.
// Cost: 8 tile shapes, at most 8 splits each; a fraction of a microsecond.
#include "sim/cost/gemm.h"

#include <algorithm>
#include <array>
#include <limits>

#include "sim/base/error.h"
#include "sim/cost/cost.h"

namespace stepcast {
namespace {

struct Tile {
  int rows, columns;
};
// The shapes that libraries ship most, largest first.
constexpr std::array<Tile, 8> kTiles = {{{256, 128}, {128, 256}, {128, 128}, {256, 64},
                                         {64, 256},  {128, 64},  {64, 128},  {64, 64}}};
constexpr std::array<int, 8> kSplits = {1, 2, 3, 4, 6, 8, 12, 16};

constexpr double kHalfTile = 30;            // h at which the main loop runs at half its limit
constexpr double kRamp = 128;               // columns of k that filling the pipeline costs
constexpr double kExposedEpilogue = 0.5;    // share of C's traffic that nothing hides
constexpr double kReference = 8192;         // m = n = k of the product behind the matrix efficiency
constexpr double kMemoryLatency = 0.7e-6;   // seconds; see memory_time

constexpr std::int64_t ceil_divide(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Share of the largest tile's rate.
constexpr double tile_share(Tile tile) {
  constexpr double kLargest = 2.0 * 256 * 128 / (256 + 128);
  const double h = 2.0 * tile.rows * tile.columns / (tile.rows + tile.columns);
  return h / (h + kHalfTile) * (kLargest + kHalfTile) / kLargest;
}

double sustained_bandwidth(const Device& device) {
  return device.memory_bandwidth.value * device.kernels.memory;
}

// Rate of the main loop with the largest tile: the time of the reference product at
// the matrix efficiency, less its epilogue, without its ramp.
double main_loop_rate(const Gemm& gemm, const Device& device, const Room& room) {
  const Dtype dtype = gemm.dtype;
  const double work = 2 * kReference * kReference * kReference;
  const MatrixKernels& matrix = device.kernels.matrix;
  const double of_bf16 = (gemm.block_scales ? matrix.fp8_block : matrix.fp8) *
                         (room.rested ? 1 : matrix.fp8_sustained);
  const double share = matrix.efficiency * (dtype == Dtype::kFp8 ? of_bf16 : 1);
  const double whole = work / (matrix_rate(dtype, device).value * share);
  const double output = kReference * kReference * static_cast<double>(dtype_size(dtype));
  const double epilogue = kExposedEpilogue * output / sustained_bandwidth(device);
  // A device whose memory is that slow is bound by it anyway.
  const double loop = std::max(whole - epilogue, whole / 2);
  return work * (1 + kRamp / kReference) / loop;
}

struct Choice {
  Tile tile{};
  int split = 1;
  std::int64_t tiles = 0, waves = 0;
  double compute = 0, memory = 0;  // in training; the longer of the two counts
  double rest = 0;                 // a second kernel
  double time = std::numeric_limits<double>::infinity();
};

// What a product takes with tiles and parts of k as they are given.
class Pricing {
 public:
  Pricing(const Gemm& gemm, const Device& device, const Room& room)
      : gemm_(gemm), device_(device), room_(room),
        per_processor_(main_loop_rate(gemm, device, room) / device.multiprocessors),
        bandwidth_(sustained_bandwidth(device) * room.memory),
        operands_(static_cast<double>(traffic(Op(gemm)).count)),
        elements_(static_cast<double>(gemm.batch) * static_cast<double>(gemm.m) *
                  static_cast<double>(gemm.n)),
        output_(elements_ * static_cast<double>(dtype_size(gemm.output)) *
                (gemm.accumulate ? 2 : 1)) {
    STEPCAST_CHECK(gemm.m >= 1 && gemm.n >= 1 && gemm.k >= 1 && gemm.batch >= 1,
                   "a matrix product of no size");
  }

  std::int64_t tiles(Tile tile) const {
    return ceil_divide(gemm_.m, tile.rows) * ceil_divide(gemm_.n, tile.columns) * gemm_.batch;
  }

  Choice price(Tile tile, int split) const {
    const std::int64_t count = tiles(tile);
    const double column = 2.0 * tile.rows * tile.columns / (per_processor_ * tile_share(tile));
    const std::int64_t waves = ceil_divide(count * split, room_.multiprocessors);
    const double filled =
        std::max(1.0, static_cast<double>(count * split) / room_.multiprocessors);
    const double paid = filled + device_.kernels.matrix.partial_wave *
                                     (static_cast<double>(waves) - filled);
    const double k = static_cast<double>(ceil_divide(gemm_.k, split));
    const double partial = split == 1 ? 0 : 2.0 * 4.0 * split * elements_;
    const double compute =
        paid * column * (k + kRamp) + kExposedEpilogue * (output_ + partial) / bandwidth_;
    const double memory = memory_time(operands_ + partial, device_, room_).value;
    const double rest = split > 1 ? device_.kernel_start.value : 0;
    return {tile, split, count, waves, compute, memory, rest, std::max(compute, memory) + rest};
  }

  Choice best() const {
    Choice best;
    for (const Tile tile : kTiles) {
      const std::int64_t count = tiles(tile);
      for (const int split : kSplits) {
        if (split > 1 && count >= room_.multiprocessors) break;
        const Choice one = price(tile, split);
        if (one.time < best.time) best = one;
      }
    }
    return best;
  }

 private:
  const Gemm& gemm_;
  const Device& device_;
  const Room& room_;
  double per_processor_, bandwidth_, operands_, elements_, output_;
};

Choice choose(const Gemm& gemm, const Device& device, const Room& room) {
  const Pricing pricing(gemm, device, room);
  if (!gemm.grouped || device.kernels.fusion.groups) return pricing.best();
  Gemm alone = gemm;
  alone.batch = 1;
  const Choice one = Pricing(alone, device, room).best();
  Choice all = pricing.price(one.tile, one.split);
  all.rest += device.kernel_start.value * static_cast<double>(gemm.batch - 1);
  all.time += device.kernel_start.value * static_cast<double>(gemm.batch - 1);
  return all;
}

// Of what keeps the matrix units busy for `sustained` in training: its time on a rested device. Its
// clocks are faster until the power limit acts, so with u = MatrixKernels::burst_time the rate is
// that of training times 1 + (burst - 1) / (1 + (t / u)^2). Increasing in `sustained`.
Seconds burst_time(Seconds sustained, const MatrixKernels& matrix) {
  if (matrix.burst <= 1) return sustained;
  const double ratio = sustained / matrix.burst_time;
  return sustained / (1 + (matrix.burst - 1) / (1 + ratio * ratio));
}

}  // namespace

FlopRate matrix_rate(Dtype dtype, const Device& device) {
  const auto known = [&](Dtype d) { return device.matrix_rate.find(d); };
  const auto end = device.matrix_rate.end();
  if (const auto it = known(dtype); it != end) return it->second;
  if (dtype == Dtype::kFp8) {
    if (const auto it = known(Dtype::kBf16); it != end) return it->second;
    if (const auto it = known(Dtype::kFp16); it != end) return it->second;
  }
  if (const auto it = known(Dtype::kFp32); it != end) return it->second;
  return device.vector_rate;
}

// Hockney's n_1/2 (Hockney and Jesshope, "Parallel Computers 2", 1988): a stream of x bytes runs at
// x / (x + n_1/2) of the long-stream rate; by Little's law n_1/2 = latency x bandwidth. 0.7 us is
// an assumption near the loaded latency of HBM; on an H100 it gives 0.73 of the data sheet at
// 10 MB, where calculon-ai/calculon (systems/h100_80g_nvl8.json) has 0.75.
Seconds memory_time(double bytes, const Device& device, const Room& room) {
  const double half = device.memory_bandwidth.value * kMemoryLatency;
  return Seconds((bytes + half) / (sustained_bandwidth(device) * room.memory));
}

Seconds gemm_time(const Gemm& gemm, const Device& device, const Room& room) {
  const Choice choice = choose(gemm, device, room);
  if (!room.rested) return Seconds(choice.time);
  const Seconds compute = burst_time(Seconds(choice.compute), device.kernels.matrix);
  return Seconds(std::max(compute.value, choice.memory) + choice.rest);
}

GemmFill gemm_fill(const Gemm& gemm, const Device& device) {
  const Choice choice = choose(gemm, device, {device.multiprocessors, 1, false});
  GemmFill fill;
  fill.tile_rows = choice.tile.rows;
  fill.tile_columns = choice.tile.columns;
  fill.split = choice.split;
  fill.tiles = choice.tiles;
  fill.waves = choice.waves;
  const double area = static_cast<double>(choice.tiles) * choice.tile.rows * choice.tile.columns;
  fill.tile_efficiency = static_cast<double>(gemm.batch) * static_cast<double>(gemm.m) *
                         static_cast<double>(gemm.n) / area;
  fill.wave_efficiency = static_cast<double>(choice.tiles) * choice.split /
                         (static_cast<double>(choice.waves) * device.multiprocessors);
  return fill;
}

}  // namespace stepcast

// Products of tensor cores: C (16, 8) += A (16, 16) B (16, 8), bf16 in, fp32 accumulated, by one
// warp (mma.sync.m16n8k16, compute capability 8.0 and later), and ldmatrix, which brings tiles of
// shared memory into the registers that the product reads. Which lane holds which element is fixed
// by the PTX ISA ("Matrix fragments for mma.m16n8k16", "ldmatrix") and written down here once, as
// functions; the emulated product reads them, and tests hold them against a plain product.
//
// With g = lane / 4 and q = lane % 4, a lane holds
//   A  register r: row g + 8 (r % 2),  columns 2 q + 8 (r / 2) and the one after
//   B  register r: column g,           rows    2 q + 8 r       and the one after
//   C  element  i: row g + 8 (i / 2),  column  2 q + i % 2
// so two C side by side, rounded to bf16, are an A: a product of a product needs no memory between.
#pragma once

#include "execute/cuda/storage.h"

// GCC takes an int that counts an array's elements, known only in the instance, for a conversion.
#if defined(__GNUC__) && !defined(__CUDACC__)
#define STEPCAST_ELEMENT_COUNTS_BEGIN \
  _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wsign-conversion\"")
#define STEPCAST_ELEMENT_COUNTS_END _Pragma("GCC diagnostic pop")
#else
#define STEPCAST_ELEMENT_COUNTS_BEGIN
#define STEPCAST_ELEMENT_COUNTS_END
#endif

STEPCAST_ELEMENT_COUNTS_BEGIN

namespace stepcast::cuda {

struct Cell {
  int row = 0, column = 0;
};

// Of A, B and C: the cell of half `half` (0: the lower 16 bits) of register r; of element i.
STEPCAST_HD constexpr Cell cell_of_a(int lane, int r, int half) {
  return {lane / 4 + 8 * (r % 2), 2 * (lane % 4) + 8 * (r / 2) + half};
}
STEPCAST_HD constexpr Cell cell_of_b(int lane, int r, int half) {
  return {2 * (lane % 4) + 8 * r + half, lane / 4};
}
STEPCAST_HD constexpr Cell cell_of_c(int lane, int i) {
  return {lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2};
}

struct FragmentA {
  std::uint32_t registers[4];
};
struct FragmentB {
  std::uint32_t registers[2];
};
struct FragmentC {
  float elements[4];
};

#if !defined(__CUDA_ARCH__)
// One lane's part of the product: what it needs of A and B lies with other lanes, who hand it in.
inline void multiply_emulated(const Thread& t, FragmentC& c, const FragmentA& a,
                              const FragmentB& b) {
  struct Both {
    FragmentA a;
    FragmentB b;
  };
  const Both mine = {a, b};
  const unsigned char* all = host_lanes()->gather(Meeting::kMultiply, &mine, sizeof mine);
  const auto at = [&](int lane) {
    const auto index = static_cast<std::size_t>(lane);
    return reinterpret_cast<const Both*>(all + index * HostLanes::kSlotBytes);
  };
  const auto half_of = [](std::uint32_t pair, int half) {
    return widen(Bf16{static_cast<std::uint16_t>(pair >> (16 * half))});
  };
  for (int i = 0; i < 4; ++i) {
    const Cell cell = cell_of_c(t.lane(), i);
    float sum = 0;
    for (int k = 0; k < 16; ++k) {
      // The inverses of cell_of_a and cell_of_b.
      const int lane_a = cell.row % 8 * 4 + k % 8 / 2, r_a = cell.row / 8 + k / 8 * 2;
      const int lane_b = cell.column * 4 + k % 8 / 2, r_b = k / 8;
      sum += half_of(at(lane_a)->a.registers[r_a], k % 2) *
             half_of(at(lane_b)->b.registers[r_b], k % 2);
    }
    c.elements[i] += sum;
  }
}

inline FragmentA load_matrices_emulated(const void* row, bool transposed, const Thread& t) {
  const auto address = reinterpret_cast<std::uintptr_t>(row);
  const unsigned char* all = host_lanes()->gather(Meeting::kLoadMatrices, &address, sizeof address);
  FragmentA out{};
  for (int matrix = 0; matrix < 4; ++matrix) {
    for (int half = 0; half < 2; ++half) {
      const int major = t.lane() / 4, minor = 2 * (t.lane() % 4) + half;
      const int from_row = transposed ? minor : major, from_column = transposed ? major : minor;
      std::uintptr_t from;
      const auto slot = static_cast<std::size_t>(matrix * 8 + from_row);
      std::memcpy(&from, all + slot * HostLanes::kSlotBytes, sizeof from);
      const std::uint32_t bits = reinterpret_cast<const Bf16*>(from)[from_column].bits;
      out.registers[matrix] |= bits << (16 * half);
    }
  }
  return out;
}
#endif

STEPCAST_HD void multiply([[maybe_unused]] const Thread& t, FragmentC& c, const FragmentA& a,
                          const FragmentB& b) {
#if defined(__CUDA_ARCH__)
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c.elements[0]), "+f"(c.elements[1]), "+f"(c.elements[2]), "+f"(c.elements[3])
      : "r"(a.registers[0]), "r"(a.registers[1]), "r"(a.registers[2]), "r"(a.registers[3]),
        "r"(b.registers[0]), "r"(b.registers[1]));
#else
  multiply_emulated(t, c, a, b);
#endif
}

// Four matrices of 8 x 8 bf16: lane l names the row l % 8 of matrix l / 8, 16 bytes in shared
// memory. Register r of a lane holds of matrix r the elements (g, 2 q) and (g, 2 q + 1), or if
// `kTransposed` (2 q, g) and (2 q + 1, g).
template <bool kTransposed>
STEPCAST_HD FragmentA load_matrices([[maybe_unused]] const Thread& t, const void* row) {
#if defined(__CUDA_ARCH__)
  FragmentA out;
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out.registers[0]), "=r"(out.registers[1]), "=r"(out.registers[2]),
                   "=r"(out.registers[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out.registers[0]), "=r"(out.registers[1]), "=r"(out.registers[2]),
                   "=r"(out.registers[3])
                 : "r"(address)
                 : "memory");
  }
  return out;
#else
  return load_matrices_emulated(row, kTransposed, t);
#endif
}

// Rows of kDim bf16 in shared memory. The 16-byte chunks of a row are permuted by its number, so
// that eight rows of one column of chunks lie in different banks: what ldmatrix reads at once.
template <int kDim>
struct SharedTile {
  static constexpr int kChunks = kDim / 8;
  static_assert(kChunks % 8 == 0, "a row fills the 32 banks");
  Bf16* data = nullptr;

  STEPCAST_HD Bf16* chunk(int row, int chunk) const {
    return data + row * kDim + ((chunk & ~7) | ((chunk ^ row) & 7)) * 8;
  }
};

// The A of rows first_row .. + 15, columns 16 k .. + 15 of a tile.
template <int kDim>
STEPCAST_HD FragmentA load_a(const Thread& t, SharedTile<kDim> tile, int first_row, int k) {
  return load_matrices<false>(t, tile.chunk(first_row + t.lane() % 16, 2 * k + t.lane() / 16));
}

// C (16 kTiles, 8 kColumns) += A B^T: A's rows from first_row on, B's rows 0 .. 8 kColumns - 1, the
// sum over kDim, in which both are contiguous. Each B is loaded once for all tiles of rows.
template <int kTiles, int kColumns, int kDim, class LoadA>
STEPCAST_HD void multiply_rows(const Thread& t, FragmentC (&c)[kTiles][kColumns], LoadA load,
                               SharedTile<kDim> b) {
  STEPCAST_UNROLL for (int k = 0; k < kDim / 16; ++k) {
    FragmentA a[kTiles];
    STEPCAST_UNROLL for (int i = 0; i < kTiles; ++i) a[i] = load(i, k);
    STEPCAST_UNROLL for (int n = 0; n < kColumns; n += 2) {
      const int row = n * 8 + t.lane() / 16 * 8 + t.lane() % 8;
      const FragmentA two = load_matrices<false>(t, b.chunk(row, 2 * k + t.lane() / 8 % 2));
      const FragmentB low = {{two.registers[0], two.registers[1]}};
      const FragmentB high = {{two.registers[2], two.registers[3]}};
      STEPCAST_UNROLL for (int i = 0; i < kTiles; ++i) {
        multiply(t, c[i][n], a[i], low);
        multiply(t, c[i][n + 1], a[i], high);
      }
    }
  }
}

// The A of columns 16 k .. + 15 of what a product left in C.
template <int kColumns>
STEPCAST_HD FragmentA round_to_a(const FragmentC (&c)[kColumns], int k) {
  const float *left = c[2 * k].elements, *right = c[2 * k + 1].elements;
  return {{round_pair(left[0], left[1]), round_pair(left[2], left[3]),
           round_pair(right[0], right[1]), round_pair(right[2], right[3])}};
}

// C (16 kTiles, kDim) += P B, P (16 kTiles, 8 kColumns) a product's C, B's rows from 0 on.
template <int kTiles, int kColumns, int kDim>
STEPCAST_HD void multiply_columns(const Thread& t, FragmentC (&c)[kTiles][kDim / 8],
                                  const FragmentC (&p)[kTiles][kColumns], SharedTile<kDim> b) {
  STEPCAST_UNROLL for (int k = 0; k < kColumns / 2; ++k) {
    FragmentA a[kTiles];
    STEPCAST_UNROLL for (int i = 0; i < kTiles; ++i) a[i] = round_to_a(p[i], k);
    const int row = k * 16 + t.lane() % 16;
    STEPCAST_UNROLL for (int n = 0; n < kDim / 8; n += 2) {
      const FragmentA two = load_matrices<true>(t, b.chunk(row, n + t.lane() / 16));
      const FragmentB low = {{two.registers[0], two.registers[1]}};
      const FragmentB high = {{two.registers[2], two.registers[3]}};
      STEPCAST_UNROLL for (int i = 0; i < kTiles; ++i) {
        multiply(t, c[i][n], a[i], low);
        multiply(t, c[i][n + 1], a[i], high);
      }
    }
  }
}

}  // namespace stepcast::cuda

STEPCAST_ELEMENT_COUNTS_END

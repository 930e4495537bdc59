// Mesh: the ranks of a training job as a grid of named axes.
//
// A rank is one device's share of the work. Its coordinates on the axes say what it holds:
//   tensor    which slice of every matrix            (tensor parallelism, Megatron-LM)
//   context   which slice of the sequence            (context parallelism)
//   expert    which experts                          (expert parallelism)
//   data      which part of the batch; training state is sharded along it (ZeRO, FSDP)
//   replica   which copy of the sharded state        (hybrid sharding; 1 without it)
//   pipeline  which layers                           (a coordinate here is a *stage*)
// Axis order is inner to outer: ranks that differ only on the innermost axis are neighbours, so
// they sit in one node. rank = sum over axes of coordinate * stride.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace stepcast {

enum class Axis : std::uint8_t { kTensor, kContext, kExpert, kData, kReplica, kPipeline };
inline constexpr int kAxes = 6;
inline constexpr int kRanksMax = 1 << 20;

std::string_view axis_name(Axis axis);  // "tensor", ...

// A set of axes; the group of a rank on a set is all ranks that differ from it only on those axes.
struct AxisSet {
  std::uint8_t bits = 0;

  constexpr AxisSet() = default;
  constexpr AxisSet(Axis axis) : bits(static_cast<std::uint8_t>(1u << static_cast<int>(axis))) {}

  constexpr bool operator==(const AxisSet&) const = default;
  constexpr bool has(Axis axis) const { return (bits >> static_cast<int>(axis)) & 1u; }
  constexpr AxisSet operator|(AxisSet o) const {
    AxisSet s;
    s.bits = static_cast<std::uint8_t>(bits | o.bits);
    return s;
  }
  constexpr bool empty() const { return bits == 0; }
};
constexpr AxisSet operator|(Axis a, Axis b) { return AxisSet(a) | AxisSet(b); }

std::string axis_set_name(AxisSet set);  // "tensor", "data+replica"; "none" if empty

struct Mesh {
  std::array<int, kAxes> degrees = {1, 1, 1, 1, 1, 1};  // indexed by Axis; each >= 1
  std::array<Axis, kAxes> order = {Axis::kTensor, Axis::kContext, Axis::kExpert,
                                   Axis::kData,   Axis::kReplica, Axis::kPipeline};

  bool operator==(const Mesh&) const = default;

  int degree(Axis axis) const { return degrees[static_cast<std::size_t>(axis)]; }
  int& degree(Axis axis) { return degrees[static_cast<std::size_t>(axis)]; }
  int ranks() const;                       // product of the degrees
  int stride(Axis axis) const;             // product of the degrees of the axes inside it
  int coordinate(int rank, Axis axis) const;
  int stages() const { return degree(Axis::kPipeline); }
  int stage(int rank) const { return coordinate(rank, Axis::kPipeline); }
  int group_size(AxisSet set) const;       // product of the degrees of the set
  // The index of a rank's group among the ranks() / group_size(set) groups of that set.
  int group_index(int rank, AxisSet set) const;
  // The index of a rank among the ranks of its group, ascending.
  int index_in_group(int rank, AxisSet set) const;
  // The rank that is `step` further on the axis; wraps around.
  int neighbour(int rank, Axis axis, int step) const;
};

}  // namespace stepcast

// Mesh arithmetic: a rank is a number in a mixed radix whose digits are its coordinates, the inner
// axis being the lowest digit. Every function is O(kAxes).

#include "sim/program/mesh.h"

#include "sim/base/error.h"

namespace stepcast {

std::string_view axis_name(Axis axis) {
  switch (axis) {
    case Axis::kTensor: return "tensor";
    case Axis::kContext: return "context";
    case Axis::kExpert: return "expert";
    case Axis::kData: return "data";
    case Axis::kReplica: return "replica";
    case Axis::kPipeline: return "pipeline";
  }
  return "?";
}

std::string axis_set_name(AxisSet set) {
  std::string text;
  for (int i = 0; i < kAxes; ++i) {
    const Axis axis = static_cast<Axis>(i);
    if (!set.has(axis)) continue;
    if (!text.empty()) text += '+';
    text += axis_name(axis);
  }
  return text.empty() ? "none" : text;
}

int Mesh::ranks() const {
  int product = 1;
  for (int degree : degrees) product *= degree;
  return product;
}

int Mesh::stride(Axis axis) const {
  int stride = 1;
  for (Axis inner : order) {
    if (inner == axis) return stride;
    stride *= degree(inner);
  }
  STEPCAST_CHECK(false, "a mesh's order names every axis once");
  return 0;
}

int Mesh::coordinate(int rank, Axis axis) const { return rank / stride(axis) % degree(axis); }

int Mesh::group_size(AxisSet set) const {
  int product = 1;
  for (Axis axis : order) {
    if (set.has(axis)) product *= degree(axis);
  }
  return product;
}

// A group is what its ranks have in common: the digits of the axes outside the set.
int Mesh::group_index(int rank, AxisSet set) const {
  AxisSet others;
  others.bits = static_cast<std::uint8_t>(~set.bits);
  return index_in_group(rank, others);
}

// The digits of the axes in the set, read as a number of their own.
int Mesh::index_in_group(int rank, AxisSet set) const {
  int index = 0;
  int weight = 1;
  for (Axis axis : order) {
    const int digit = rank % degree(axis);
    rank /= degree(axis);
    if (!set.has(axis)) continue;
    index += digit * weight;
    weight *= degree(axis);
  }
  return index;
}

int Mesh::neighbour(int rank, Axis axis, int step) const {
  const int size = degree(axis);
  const int from = coordinate(rank, axis);
  const int to = ((from + step % size) % size + size) % size;
  return rank + (to - from) * stride(axis);
}

}  // namespace stepcast

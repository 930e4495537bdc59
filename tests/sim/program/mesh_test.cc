#include "sim/program/mesh.h"

#include <vector>

#include <gtest/gtest.h>

namespace stepcast {
namespace {

Mesh mesh_2x3x4() {
  Mesh mesh;
  mesh.degree(Axis::kTensor) = 2;
  mesh.degree(Axis::kData) = 3;
  mesh.degree(Axis::kPipeline) = 4;
  return mesh;
}

// rank = tensor + 2 data + 6 stage: 17 = 1 + 2 * 2 + 6 * 2.
TEST(Mesh, ReadsCoordinatesFromARankInnerAxisFirst) {
  const Mesh mesh = mesh_2x3x4();
  EXPECT_EQ(mesh.ranks(), 24);
  EXPECT_EQ(mesh.stride(Axis::kTensor), 1);
  EXPECT_EQ(mesh.stride(Axis::kData), 2);
  EXPECT_EQ(mesh.stride(Axis::kPipeline), 6);
  EXPECT_EQ(mesh.coordinate(17, Axis::kTensor), 1);
  EXPECT_EQ(mesh.coordinate(17, Axis::kData), 2);
  EXPECT_EQ(mesh.stage(17), 2);
  EXPECT_EQ(mesh.coordinate(17, Axis::kExpert), 0);
}

// With pipeline innermost: rank = stage + 4 tensor + 8 data: 17 = 1 + 4 * 0 + 8 * 2.
TEST(Mesh, FollowsAnotherOrderOfItsAxes) {
  Mesh mesh = mesh_2x3x4();
  mesh.order = {Axis::kPipeline, Axis::kTensor, Axis::kData,
                Axis::kContext,  Axis::kExpert, Axis::kReplica};
  EXPECT_EQ(mesh.stage(17), 1);
  EXPECT_EQ(mesh.coordinate(17, Axis::kTensor), 0);
  EXPECT_EQ(mesh.coordinate(17, Axis::kData), 2);
}

TEST(Mesh, CutsItsRanksIntoGroupsOfEqualSize) {
  const Mesh mesh = mesh_2x3x4();
  for (int bits = 0; bits < 1 << kAxes; ++bits) {
    AxisSet set;
    set.bits = static_cast<std::uint8_t>(bits);
    std::vector<int> members(static_cast<std::size_t>(mesh.ranks() / mesh.group_size(set)));
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      ++members.at(static_cast<std::size_t>(mesh.group_index(rank, set)));
    }
    for (int count : members) EXPECT_EQ(count, mesh.group_size(set)) << axis_set_name(set);
  }
}

TEST(Mesh, NumbersTheRanksOfAGroupInAscendingOrder) {
  Mesh mesh = mesh_2x3x4();
  mesh.order = {Axis::kPipeline, Axis::kTensor, Axis::kData,
                Axis::kContext,  Axis::kExpert, Axis::kReplica};
  const AxisSet set = Axis::kData | Axis::kPipeline;
  std::vector<int> seen(2, 0);
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    int& next = seen.at(static_cast<std::size_t>(mesh.group_index(rank, set)));
    EXPECT_EQ(mesh.index_in_group(rank, set), next++);
  }
}

TEST(Mesh, KeepsRanksThatDifferOnlyOnTheSetInOneGroup) {
  const Mesh mesh = mesh_2x3x4();
  const AxisSet set = Axis::kTensor | Axis::kPipeline;
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    for (Axis axis : {Axis::kTensor, Axis::kPipeline}) {
      EXPECT_EQ(mesh.group_index(mesh.neighbour(rank, axis, 1), set), mesh.group_index(rank, set));
    }
    EXPECT_NE(mesh.group_index(mesh.neighbour(rank, Axis::kData, 1), set),
              mesh.group_index(rank, set));
  }
}

// Stage 3 of 4 is ranks 18..23; one further is stage 0, one back from stage 0 is stage 3.
TEST(Mesh, WrapsNeighboursAround) {
  const Mesh mesh = mesh_2x3x4();
  EXPECT_EQ(mesh.neighbour(19, Axis::kPipeline, 1), 1);
  EXPECT_EQ(mesh.neighbour(1, Axis::kPipeline, -1), 19);
  EXPECT_EQ(mesh.neighbour(1, Axis::kPipeline, -9), 19);
  EXPECT_EQ(mesh.neighbour(1, Axis::kExpert, 1), 1);
}

TEST(Mesh, NamesSetsOfAxes) {
  EXPECT_EQ(axis_set_name(Axis::kData | Axis::kReplica), "data+replica");
  EXPECT_EQ(axis_set_name(Axis::kTensor), "tensor");
  EXPECT_EQ(axis_set_name({}), "none");
}

}  // namespace
}  // namespace stepcast

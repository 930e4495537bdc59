#include "sim/program/charged.h"

#include <gtest/gtest.h>

namespace stepcast {
namespace {

Axis charged(AxisSet axes, TransferKind kind = TransferKind::kAllReduce,
             Stream stream = Stream::kData) {
  return charged_axis(stream, {kind, axes, false, Bytes(1)});
}

TEST(ChargedAxis, PutsScalarsOfAllRanksOnThePipelinesAccount) {
  EXPECT_EQ(charged(Axis::kContext), Axis::kContext);
  EXPECT_EQ(charged(Axis::kTensor | Axis::kContext), Axis::kContext);
  EXPECT_EQ(charged(Axis::kReplica | Axis::kData), Axis::kData);
  EXPECT_EQ(charged(Axis::kData | Axis::kPipeline), Axis::kPipeline);
}

// State that is no expert's adds up over expert ranks as it does over data ranks.
TEST(ChargedAxis, TakesExpertRanksForDataRanksUnlessTheyExchangeTokens) {
  EXPECT_EQ(charged(Axis::kContext | Axis::kExpert), Axis::kData);
  EXPECT_EQ(charged(Axis::kReplica | Axis::kExpert), Axis::kReplica);
  for (const AxisSet axes :
       {AxisSet(Axis::kTensor), AxisSet(Axis::kExpert), Axis::kContext | Axis::kExpert}) {
    EXPECT_EQ(charged(axes, TransferKind::kAllToAll), Axis::kExpert);
    EXPECT_EQ(charged(axes, TransferKind::kAllGather, Stream::kExpert), Axis::kExpert);
  }
  EXPECT_EQ(charged(Axis::kContext, TransferKind::kAllToAll, Stream::kContext), Axis::kContext);
}

}  // namespace
}  // namespace stepcast

// What runs beside each other, worked out by hand.
#include "sim/engine/beside.h"

#include <gtest/gtest.h>

namespace stepcast {
namespace {

// One op (row 0) and one transfer (row 1); stream registers 2 (data) and 4 (tensor), since in 3, 5.
// Beside data, the op takes 1.5 times as long and a transfer twice; beside tensor, 2 and 1 times.
struct BesideExample {
  Code code;
  std::vector<Instant> clocks = std::vector<Instant>(6);
  Breakdown parts = {};

  BesideExample() {
    code.busy = {{2, Part::kData}, {4, Part::kTensor}};
    code.beside = {0.5, 1.0, 1.0, 0.0};
  }
  void data(std::int64_t since, std::int64_t until) {
    clocks[3] = Instant(since);
    clocks[2] = Instant(until);
  }
  void tensor(std::int64_t since, std::int64_t until) {
    clocks[5] = Instant(since);
    clocks[4] = Instant(until);
  }
  Instant kernel(std::int64_t begin, std::int64_t duration) {
    return kernel_end(code, clocks.data(), 0, Instant(begin), Duration(duration), parts);
  }
  Duration lost_to(Part part) const { return parts[static_cast<std::size_t>(part)]; }
};

TEST(Beside, AKernelAloneTakesItsTime) {
  BesideExample e;
  e.data(0, 1000);
  EXPECT_EQ(e.kernel(1000, 300), Instant(1300));
  EXPECT_EQ(e.lost_to(Part::kData), Duration(0));
}

// All of it beside data: 300 x 1.5.
TEST(Beside, AKernelIsSlowedWhileAStreamIsBusy) {
  BesideExample e;
  e.data(0, 10000);
  EXPECT_EQ(e.kernel(1000, 300), Instant(1450));
  EXPECT_EQ(e.lost_to(Part::kData), Duration(150));
}

// Until 1150 the kernel does 100 of its 300 (150 / 1.5); the other 200 alone.
TEST(Beside, AKernelRunsFreelyOnceTheStreamIsIdle) {
  BesideExample e;
  e.data(0, 1150);
  EXPECT_EQ(e.kernel(1000, 300), Instant(1350));
  EXPECT_EQ(e.lost_to(Part::kData), Duration(50));
}

// Free until 1200 (200 done), then beside data: 100 x 1.5.
TEST(Beside, AStreamThatBecomesBusyLaterSlowsTheRest) {
  BesideExample e;
  e.data(1200, 5000);
  EXPECT_EQ(e.kernel(1000, 300), Instant(1350));
  EXPECT_EQ(e.lost_to(Part::kData), Duration(50));
}

// Beside both 1 + 0.5 + 1 = 2.5 times as long: 300 x 2.5 = 750, of 450 lost a third to data.
TEST(Beside, CostsOfStreamsAddUpAndAreSharedOut) {
  BesideExample e;
  e.data(0, 9000);
  e.tensor(0, 9000);
  EXPECT_EQ(e.kernel(1000, 300), Instant(1750));
  EXPECT_EQ(e.lost_to(Part::kData), Duration(150));
  EXPECT_EQ(e.lost_to(Part::kTensor), Duration(300));
}

// Two flows on one link get half each: beside a message until 1100, 100 of a tensor transfer's time
// moves 50; the other 150 follow alone. A stream on another port costs nothing, nor does its own.
TEST(Beside, ATransferSharesItsPortWithThoseBeforeIt) {
  BesideExample e;
  Micro micro;
  micro.detail = 1;
  micro.stream = 4;
  micro.duration = Duration(200);
  e.data(0, 1100);
  e.tensor(0, 1000);
  EXPECT_EQ(transfer_end(e.code, e.clocks.data(), micro, Instant(1000)), Instant(1250));
  micro.stream = 2;
  EXPECT_EQ(transfer_end(e.code, e.clocks.data(), micro, Instant(1000)), Instant(1200));
}

}  // namespace
}  // namespace stepcast

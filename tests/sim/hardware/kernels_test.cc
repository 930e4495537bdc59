#include "sim/hardware/kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/base/error.h"
#include "sim/hardware/hardware.h"

namespace stepcast {
namespace {

// What a data sheet gives.
Device plain_device() {
  Device device;
  device.kernels.memory = 0.9;
  device.kernels.matrix.efficiency = 0.8;
  device.kernels.attention["generic"] = {0.7, 0.5};
  device.kernels.usual_attention = "generic";
  device.node_latency = microseconds(3);
  device.node_bandwidth_efficiency = 0.8;
  return device;
}

Device with(const std::string& text) {
  Device device = plain_device();
  const Document document = parse_json(text, "profile.json");
  read_kernels(Object(document), Basis::kFitted, device);
  return device;
}

std::string fault(const std::string& text) {
  try {
    with(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Kernels, WhatIsLeftOutStaysAsTheDataSheetHasIt) {
  const Device device = with(R"({"matrix": {"partial_wave": 0.6}})");
  EXPECT_EQ(device.kernels.matrix.efficiency, 0.8);
  EXPECT_EQ(device.kernels.matrix.partial_wave, 0.6);
  EXPECT_EQ(device.kernels.matrix.basis, Basis::kFitted);
  EXPECT_EQ(device.kernels.memory, 0.9);
  EXPECT_EQ(device.kernels.memory_basis, Basis::kDatasheet);
  EXPECT_EQ(device.kernels.usual().basis, Basis::kDatasheet);
  EXPECT_EQ(device.kernels.collectives.basis, Basis::kDatasheet);
}

TEST(Kernels, ANewImplementationOfAttentionStartsFromTheUsualOne) {
  const Device device = with(
      R"({"attention": {"flash9": {"forward": 0.75, "causal_keys": 400}},
          "usual_attention": "flash9"})");
  EXPECT_EQ(device.kernels.usual().forward, 0.75);
  EXPECT_EQ(device.kernels.usual().backward, 0.5);
  EXPECT_EQ(device.kernels.usual().causal_keys, 400);
  EXPECT_EQ(device.kernels.usual().basis, Basis::kFitted);
  EXPECT_EQ(device.kernels.attention.size(), 2u);
}

TEST(Kernels, CollectivesSetTheBoxToo) {
  const Device device = with(
      R"({"collectives": {"start": "20 us", "nvls": 0.9, "ring_copy": 0.4, "node_latency": "7 us",
          "node_bandwidth_efficiency": 0.7}})");
  EXPECT_DOUBLE_EQ(device.kernels.collectives.start.value, 20e-6);
  EXPECT_EQ(device.kernels.collectives.ring_copy, 0.4);
  EXPECT_DOUBLE_EQ(device.node_latency.value, 7e-6);
  EXPECT_EQ(device.node_bandwidth_efficiency, 0.7);
}

TEST(Kernels, WhatIsWrittenReadsBackTheSame) {
  const Device device = with(
      R"({"memory": 0.85,
          "matrix": {"efficiency": 0.49, "burst": 1.26, "burst_time": "275.8 us", "fp8": 0.9},
          "attention": {"flash2": {"forward": 0.72, "narrow": 26.8, "sustained": 0.93}},
          "usual_attention": "flash2",
          "collectives": {"start": "21.6 us", "ring_copy": 0.4, "node_latency": "7.991 us"}})");
  const Json written = kernels_json(device, Basis::kFitted);
  EXPECT_EQ(kernels_json(with(written.dump()), Basis::kFitted), written);
  EXPECT_EQ(written["attention"]["flash2"]["sustained"], 0.93);
  EXPECT_TRUE(kernels_json(plain_device(), Basis::kFitted).empty());
}

TEST(Kernels, SaysWhereANumberIsWrong) {
  EXPECT_THAT(fault(R"({"matrix": {"eficiency": 0.5}})"), ::testing::HasSubstr("efficiency"));
  EXPECT_THAT(fault(R"({"matrix": {"efficiency": 1.5}})"),
              ::testing::HasSubstr("profile.json:1: matrix.efficiency"));
  EXPECT_THAT(fault(R"({"matrix": {"burst": 0.5}})"), ::testing::HasSubstr("matrix.burst"));
  EXPECT_THAT(fault(R"({"collectives": {"start": "-1 us"}})"),
              ::testing::HasSubstr("collectives.start"));
  EXPECT_THAT(fault(R"({"attention": {"flash2": {"sustained": 1.1}}})"),
              ::testing::HasSubstr("profile.json:1: attention.flash2.sustained"));
  EXPECT_THAT(fault(R"({"usual_attention": "flash7"})"),
              ::testing::HasSubstr("names no implementation"));
}

}  // namespace
}  // namespace stepcast

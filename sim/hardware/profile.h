// Profile: what was measured, as the forecast reads it back.
//
// It is the only way from measurements into a forecast, and a file that a person can read and edit:
//
//   {"format": "stepcast.profile/1", "name": "dgx-h100", "description": "...",
//    "device": "h100-sxm", "basis": "measured",
//    "provenance": {"nccl": "2.29.2", "date": "2026-08-01"},          // free; for people
//    "wires": [{"collective": "all-reduce", "ranks": 8, "nodes": 1,
//               "points": [{"bytes": "1 MiB", "seconds": "37 us"}],   // ascending
//               "samples": 3, "spread": 0.02}],
//    "memory": [...], "launch": {...}, "beside": [...],            // sim/hardware/probes.h
//    "machine": {"processor": "...", "onednn": "2.6.0"},   // of whom "work" is true
//    "work": [{"ranks": 2, "threads": 1, "kernels": [...], "transfers": [...]}],  // work.h
//    "kernels": {"matrix": {"efficiency": 0.5, ...}, ...},            // sim/hardware/kernels.h
//    "residuals": [{"rows": "gemm", "count": 336, "median_absolute_error": 0.05, ...}]}
//
// A curve of `wires` is one collective by size, over one group that has its nodes to itself or,
// with "groups_per_node", over so many groups a node at once, each with members of its own. Bytes
// count as Transfer::bytes does (sim/program/program.h), which is nccl-tests' "size". How times
// between and beyond the points follow is sim/network/measured.h's business.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/json.h"
#include "sim/base/units.h"
#include "sim/hardware/hardware.h"
#include "sim/hardware/probes.h"
#include "sim/hardware/work.h"

namespace stepcast {

struct WirePoint {
  Bytes bytes;    // > 0
  Seconds time;   // > 0, finite
  bool operator==(const WirePoint&) const = default;
};

struct WireCurve {
  std::string collective;         // one of collective_names()
  int ranks = 2;                  // of the group
  int nodes = 1;                  // that it spans
  std::vector<WirePoint> points;  // at least one; bytes ascend
  int samples = 1;                // measurements behind a point, the most of all points
  double spread = 0;              // largest (max - min) / median of a point's measurements
  int groups_per_node = 1;        // of its kind, all at once
  bool operator==(const WireCurve&) const = default;
};

// How well the kernels meet a group of the rows that they were fitted to, as relative errors of
// times (forecast / measured - 1); and how well they meet rows that the fit has not seen.
struct Residual {
  std::string rows;               // "gemm", "attention flash2", "collective"
  std::int64_t count = 0;
  double median_absolute_error = 0, mean_absolute_error = 0, p90_absolute_error = 0;
  double signed_bias = 0;         // mean
  std::int64_t left_out_count = 0;  // 0: too few rows to leave any out
  double left_out_median_absolute_error = 0, left_out_signed_bias = 0;
  bool operator==(const Residual&) const = default;
};

struct Profile {
  std::string name;
  std::string description;
  std::string device;             // Device::name of what was measured
  // Or kFitted: the points are a fit's, not a clock's. Or kInterpolated, which no file says: they
  // are another machine's, taken for this one because somebody asked for it.
  Basis basis = Basis::kMeasured;
  std::map<std::string, std::string> provenance;  // date, command, library versions, source files
  // What has to be the same for times of `work` to be this machine's: processor, cores, the
  // libraries' versions. A key that only one side knows does not count.
  std::map<std::string, std::string> machine;
  std::vector<TimedWork> work;    // no two of as many ranks
  std::vector<WireCurve> wires;   // no two of the same collective, ranks, nodes and groups
  Probes probes;
  Json kernels;                   // null: none; as read_kernels() reads it
  std::vector<Residual> residuals;
  std::string file;               // where it was read, for errors
};

// "all-reduce", "all-gather", "reduce-scatter", "broadcast", "all-to-all", "send-receive": the
// names of TransferKind with dashes.
const std::vector<std::string>& collective_names();

// Throws Error for an unknown key, a collective that is none, bytes that do not ascend, a time that
// is not finite and positive, a group of fewer ranks than nodes, a curve that is there twice.
Profile read_profile(const Document& document);

// Throws Error (place: `place`) if the profile is of another kind of device.
void check_device(const Profile& profile, std::string_view device, std::string_view place);

// The first thing in which the profile's machine is not `here`, "its onednn is 2.6.0, here it is
// 3.1.0"; "" where there is none.
std::string machine_difference(const Profile& profile,
                               const std::map<std::string, std::string>& here);

// The work timed with so many ranks, else with the nearest number; null if there is none.
const TimedWork* work_of(const Profile& profile, int ranks);

// Sets the device's kernels to the profile's, if it has any, and what probes say of it (these are
// interpolated where they were measured: they price kernels that were not). Throws Error (place:
// the profile).
void use_kernels(const Profile& profile, Device& device);

// Sets the kernels of a device to what the profile knows of `die`, which has the same die: shares
// of a peak are shares of the device's own. Of its collectives nothing, where the links of the two
// boxes are of different kinds. Throws Error (place: the profile).
void use_die(const Profile& profile, const Device& die, Device& device);

// Reads back to the same.
Json write_profile(const Profile& profile);

// From now on the cluster's transfers are looked up in `profile` first. Throws Error (place: where
// the profile was asked for) if it is of another kind of device.
void use_profile(Cluster& cluster, std::shared_ptr<const Profile> profile, std::string_view place);

}  // namespace stepcast

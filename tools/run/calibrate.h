// Calibrate: the distinct work of plans, timed on this machine, as a profile that `simulate` takes.
//
// Each plan's ring (models/lower.h) runs in slices (calibrate/measure.h) after its kernels were
// held against double precision. The file is written after each slice, whole or not at all, so that
// what was measured survives whatever ends the command; `--resume` goes on from there.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "calibrate/measure.h"
#include "calibrate/probe.h"
#include "sim/hardware/profile.h"

namespace stepcast {

struct CalibrateArguments {
  std::string device = "cpu";        // --device cpu|cuda
  std::vector<std::string> configs;  // --for CONFIG, again and again
  std::vector<std::string> sets;     // --set path=value, of all of them
  std::string out;                   // --out PROFILE
  std::string launch = "threads";    // --launch threads|mpi
  bool resume = false;               // --resume
  std::int64_t repeat = 0;           // --repeat: slices of each plan; 0: as many as 10 s hold,
                                     // eight at least
};
int calibrate_command(const CalibrateArguments& arguments);

// The command as it can be given again, for a profile's provenance.
std::string command_of(const CalibrateArguments& arguments);

// Rounds of a ring's step: what is passed differs between them.
inline constexpr std::int64_t kRingRounds = 2;

// What the sentinels of a run of slices say: the first, the last, and how far they lie apart.
class SentinelLog {
 public:
  void add(const MeasuredSlice& slice);
  Seconds first() const { return first_; }
  Seconds last() const { return last_; }
  double drift() const;  // (longest - shortest) / mean

 private:
  Seconds first_, last_, shortest_, longest_, sum_;
  std::int64_t count_ = 0;
};

// The measurements that a profile holds, by number of ranks; threads of each rank beside them.
struct Calibration {
  std::map<int, Measurements> by_ranks;
  std::map<int, int> threads;
  Probed probed;  // of a GPU
  SentinelLog sentinel;
};

// What "provenance" says of a command: itself, as it can be given again, the date, the host, and
// how ranks were launched.
std::map<std::string, std::string> provenance_of(const CalibrateArguments& arguments);

// Throws Error (place: the file) if it was measured on another machine than `here` (Profile::
// machine) or another way.
Calibration resume_from(const Profile& profile, const std::string& launch,
                        const std::map<std::string, std::string>& here);

// A CPU's, if nothing is set after; `provenance` as this command knows it; the sentinel's part is
// added.
Profile profile_of(const Calibration& calibration, const std::string& name,
                   std::map<std::string, std::string> provenance);

}  // namespace stepcast

// `stepcast calibrate --device cuda`: the rings of plans, and what probes tell, on this machine's
// GPUs.
//
// Of each plan first the probes (calibrate/probe.h), then its ring (models/lower.h) in some runs of
// a few steps. Where there are fewer GPUs than the plan has ranks, one rank of each stage runs by
// itself, with what the others would have sent made up: all but the wires is measured.
#pragma once

#include <cstdint>
#include <string>

#include "tools/run/calibrate.h"

namespace stepcast {

// Throws Error saying what is missing where there is no GPU.
int calibrate_on_gpus(const CalibrateArguments& arguments);

// What probes say, for people: a line for memory, one for launches, one for each kernel beside a
// collective.
std::string to_text(const Probed& probed);

// How many steps a ring's next run has: `wanted` in all (0: as many as 10 s hold, 8 to 200), of
// which `done` are known. The first of a run warms up and does not count here. `seconds` a step; 0:
// not known yet, so that a few will tell.
std::int64_t next_steps(std::int64_t wanted, std::int64_t done, double seconds);

// Devices a node, where each rank's process shares its machine with `here` processes. Throws Error
// where these differ, or where ranks are no whole number of nodes. Every rank calls it.
int devices_per_node(Transport& control, int here, int ranks);

}  // namespace stepcast

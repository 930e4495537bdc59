// Compile: a Job and its prices as flat arrays that the event loop walks.
//
// Every body becomes a run of micro-instructions: what takes no time is dropped, durations,
// registers, channels and groups are looked up once. A rank's state is a file of registers:
//   0 host, 1 the compute stream, then Job::events events, then the other streams in use, each
//   followed by the begin of the stretch of work that its clock is the end of. On a device of one
//   stream the compute stream's register is that of all.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/base/units.h"
#include "sim/engine/simulate.h"
#include "sim/program/mesh.h"
#include "sim/program/program.h"
#include "sim/result/result.h"

namespace stepcast {

inline constexpr std::size_t kHostRegister = 0;
inline constexpr std::size_t kComputeRegister = 1;
inline constexpr std::size_t kFirstEventRegister = 2;

enum class MicroKind : std::uint8_t {
  kCompute,      // detail: Basis, other: row of Code::beside
  kLocal,        // a collective of one member: work on its stream; detail: row of Code::beside
  kMeet,         // a collective with others; other: index of Code::meetings, detail: as kLocal
  kSend,         // other: index of Code::channels, detail: as kLocal
  kReceive,      // other: index of Code::channels, detail: index of Code::causes
  kRecord,       // other: the event's register
  kWait,         // other: the event's register
  kSynchronize,  // the host waits for all of Code::streams
  kHostWait,     // the host waits; other: the event's register
  kPass,         // the host prepares a pass for `duration`; no instruction of the Job
  kSegment,      // other: index of Code::segments; what follows may be remembered
  kSegmentEnd,   // other: the same
  kEnd,          // of the body
};

// What the host takes to issue an instruction: index into Code::host.
enum HostTime : std::uint8_t {
  kIssued,       // by itself
  kFilled,       // the fill of a new tensor: part of another kernel's call
  kWithAnother,  // a further piece: in no time more than the first one
  kGrouped,      // the products of a rank's experts, each a kernel of its own
  kRouted,       // a router, and what goes with it
};
inline constexpr std::size_t kHostTimes = 5;

struct Micro {
  MicroKind kind = MicroKind::kEnd;
  Part part = Part::kOther;        // what the work counts as if it is on the compute stream
  std::uint16_t stream = 0;        // register
  std::int32_t other = 0;
  std::int32_t detail = 0;
  std::uint32_t instruction : 29 = 0;  // index into the body's code
  std::uint32_t host : 3 = kIssued;    // HostTime
  Duration duration;
};
static_assert(sizeof(Micro) == 24);

// Why an event comes late: up to `wire` of the wait is kPipeline, the rest `part`.
struct Cause {
  Part part = Part::kOther;
  Duration wire;
};

// Groups of ranks that meet: those of one set of axes, or the first and last stages.
struct MeetingKind {
  AxisSet axes;
  bool ends_only = false;
  std::int32_t members = 1;
};

// Messages to the rank `step` (0 .. stages - 1) further, in the order in which they were sent.
struct ChannelKind {
  std::int32_t step = 0;
  Stream lane = Stream::kSendForward;  // the sender's stream
};

// A stretch of micro-instructions that meets no other rank, so that what it does is a function of
// the registers alone (segment.cc, memo.h).
struct Segment {
  struct Key {
    std::int32_t reg = 0;
    bool clamped = false;     // only how far it lies after the base matters
    bool with_cause = false;  // an event that compute waits for
  };
  struct Bound {
    std::int32_t reg = 0;
    Duration slack;           // the host cannot bind if host <= register + slack
  };
  struct Out {
    std::int32_t reg = 0;
    std::int32_t cause = -1;  // of an event; -1: unchanged
  };
  std::int32_t end = 0;       // index of its kSegmentEnd
  Duration issue;             // of all its instructions
  std::vector<Key> keys;
  std::vector<Bound> bounds;
  std::vector<Out> outs;
  std::array<Duration, kBases> basis = {};
};

// A stream whose transfers slow what runs beside them.
struct Busy {
  std::size_t reg = 0;    // its register; reg + 1: since when it is busy
  Part part = Part::kOther;
};

struct Code {
  std::vector<Micro> micros;
  std::vector<std::int32_t> entries;        // of each body, in micros; then again of later ones:
  std::size_t later = 0;                    // added to a body for micro-batches after the first
  std::vector<std::int64_t> timed;          // instructions of each body that take part in time
  std::vector<Cause> causes;                // by Stream first, then of the distinct receives
  std::vector<MeetingKind> meetings;
  std::vector<ChannelKind> channels;
  std::vector<Segment> segments;
  std::vector<Stream> streams;              // in use, compute first
  std::vector<std::int32_t> stream_registers;  // of each of `streams`
  std::vector<bool> receiving;              // by register: a stream with a Receive
  std::vector<std::int32_t> first_causes;   // by register
  std::array<Duration, kHostTimes> host;    // by HostTime
  Duration graph;              // the host's clock when the step begins
  bool one_stream = false;     // all on the compute register
  std::vector<Busy> busy;      // streams that slow others
  std::vector<double> beside;  // (ops then transfers, busy): factor - 1 on the time

  std::size_t registers() const { return first_causes.size(); }
};

// A forward or backward pass, or its first part: what a framework's host begins by itself
// (Prices::pass).
bool is_pass(const Body& body);

// `mesh` is that of the simulated ranks: Job::mesh, or its pipeline axis alone. `memoise` marks the
// segments. Cost: linear in the text of the bodies.
Code compile(const Job& job, const Prices& prices, const Mesh& mesh, bool memoise);

// Puts kSegment and kSegmentEnd around every stretch that is worth remembering.
void mark_segments(Code& code);

}  // namespace stepcast

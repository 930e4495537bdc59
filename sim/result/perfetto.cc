// Perfetto's TrackEvent protobuf, written by hand: the wire format needs varints and lengths only,
// and the dozen messages used here keep their field numbers by protobuf's rules. The numbers are
// those of protos/perfetto/trace/*.proto in google/perfetto, named at each constant below.
//
// What a slice would repeat thousands of times is said once: every (rank, stream) is a packet
// sequence of its own, with its track as the sequence's default and with interned names (a name is
// spelled in the packet that first uses it, a number from then on). Cost: one stable sort of the
// spans by track, then linear.
#include "sim/result/perfetto.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <fmt/format.h>

#include "sim/base/error.h"

namespace stepcast {
namespace {

using Field = std::uint32_t;

constexpr Field kTracePacket = 1;  // Trace
// TracePacket
constexpr Field kPacketTimestamp = 8;
constexpr Field kPacketSequence = 10;  // trusted_packet_sequence_id
constexpr Field kPacketEvent = 11;
constexpr Field kPacketInterned = 12;
constexpr Field kPacketFlags = 13;  // sequence_flags
constexpr Field kPacketDefaults = 59;
constexpr Field kPacketDescriptor = 60;
constexpr std::uint64_t kStateCleared = 1;  // SEQ_INCREMENTAL_STATE_CLEARED
constexpr std::uint64_t kNeedsState = 2;    // SEQ_NEEDS_INCREMENTAL_STATE
// TracePacketDefaults, TrackEventDefaults
constexpr Field kDefaultsEvent = 11;
constexpr Field kDefaultsTrack = 11;
// TrackEvent
constexpr Field kEventCategory = 3;
constexpr Field kEventAnnotation = 4;
constexpr Field kEventType = 9;
constexpr Field kEventName = 10;
constexpr std::uint64_t kSliceBegin = 1;
constexpr std::uint64_t kSliceEnd = 2;
// DebugAnnotation
constexpr Field kAnnotationName = 1;
constexpr Field kAnnotationInt = 4;
// InternedData; each entry has iid = 1, name = 2
constexpr Field kInternedCategory = 1;
constexpr Field kInternedEventName = 2;
constexpr Field kInternedAnnotationName = 3;
constexpr Field kEntryNumber = 1;
constexpr Field kEntryName = 2;
// TrackDescriptor, ProcessDescriptor, ThreadDescriptor
constexpr Field kTrackUuid = 1;
constexpr Field kTrackName = 2;
constexpr Field kTrackProcess = 3;
constexpr Field kTrackThread = 4;
constexpr Field kTrackParent = 5;
constexpr Field kProcessPid = 1;
constexpr Field kProcessName = 6;
constexpr Field kThreadPid = 1;
constexpr Field kThreadTid = 2;
constexpr Field kThreadName = 5;

// Interned numbers of the two annotations; 0 means "none" to Perfetto.
constexpr std::uint64_t kMicroBatch = 1;
constexpr std::uint64_t kChunk = 2;

constexpr std::uint32_t kDescriptorSequence = 1;  // the sequence of all descriptors

// Wire type 0 is a varint, 2 a length and that many bytes.
void put_varint(std::string& out, std::uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
}

void put_number(std::string& out, Field field, std::uint64_t value) {
  put_varint(out, field << 3);
  put_varint(out, value);
}

void put_bytes(std::string& out, Field field, std::string_view bytes) {
  put_varint(out, (field << 3) | 2);
  put_varint(out, bytes.size());
  out.append(bytes);
}

void put_entry(std::string& interned, Field field, std::uint64_t number, std::string_view name) {
  std::string entry;
  put_number(entry, kEntryNumber, number);
  put_bytes(entry, kEntryName, name);
  put_bytes(interned, field, entry);
}

std::uint64_t whole(std::int32_t value) {
  STEPCAST_CHECK(value >= 0, "negative number in a span");
  return static_cast<std::uint64_t>(value);
}

std::uint64_t nanoseconds(Instant instant) {
  STEPCAST_CHECK(instant.picoseconds >= 0, "span before the step");
  return static_cast<std::uint64_t>(instant.picoseconds / 1000);
}

// Categories are numbered once for the whole file: phases, then kinds of transfer.
std::uint64_t category(Phase phase) { return 1 + static_cast<std::uint64_t>(phase); }
std::uint64_t category(TransferKind kind) {
  return 1 + kPhases + static_cast<std::uint64_t>(kind);
}

// One stream of one rank. Numbers 0 are kept free: process 0 is the idle task to Perfetto, track 0
// the trace's own.
struct Track {
  std::int32_t rank = 0;
  Stream stream = Stream::kCompute;

  bool operator==(const Track&) const = default;
  std::uint64_t process() const { return whole(rank) + 1; }
  std::uint64_t process_uuid() const { return whole(rank) * (kStreams + 1) + 1; }
  std::uint64_t uuid() const { return process_uuid() + 1 + static_cast<std::uint64_t>(stream); }
};

Track track_of(const Span& span) { return Track{span.rank, span.stream}; }

// What a span shows, looked up in the job.
struct Look {
  Label label;
  Phase phase = Phase::kForward;
  bool transfers = false;
  TransferKind kind = TransferKind::kSendReceive;
};

Look look_up(const Job& job, const Span& span) {
  const Body& body = job.bodies.at(static_cast<std::size_t>(span.body));
  const auto kind = [&job](TransferId id) {
    return job.transfers.at(static_cast<std::size_t>(id)).kind;
  };
  return match(
      body.code.at(static_cast<std::size_t>(span.instruction)),
      [](const Compute& c) { return Look{c.label, c.phase, false, {}}; },
      [&](const Collective& c) { return Look{c.label, c.phase, true, kind(c.transfer)}; },
      [&](const Send& s) { return Look{s.label, body.phase, true, kind(s.transfer)}; },
      [&](const Receive& r) { return Look{r.label, body.phase, true, kind(r.transfer)}; },
      [](const auto&) -> Look {
        STEPCAST_CHECK(false, "a span of an instruction that takes no time");
      });
}

// Writes the packets of one sequence.
class Sequence {
 public:
  Sequence(std::string& out, std::uint32_t number) : out_(out), number_(number) {}

  // Opens the sequence: from here on its packets belong to `track` unless they say otherwise.
  void open(const Track& track) {
    std::string event_defaults, defaults, interned;
    put_number(event_defaults, kDefaultsTrack, track.uuid());
    put_bytes(defaults, kDefaultsEvent, event_defaults);
    for (int i = 0; i < kPhases; ++i) {
      const auto phase = static_cast<Phase>(i);
      put_entry(interned, kInternedCategory, category(phase), phase_name(phase));
    }
    for (int i = 0; i <= static_cast<int>(TransferKind::kSendReceive); ++i) {
      const auto kind = static_cast<TransferKind>(i);
      put_entry(interned, kInternedCategory, category(kind), transfer_name(kind));
    }
    put_entry(interned, kInternedAnnotationName, kMicroBatch, "micro_batch");
    put_entry(interned, kInternedAnnotationName, kChunk, "chunk");
    start(kStateCleared);
    put_bytes(packet_, kPacketDefaults, defaults);
    put_bytes(packet_, kPacketInterned, interned);
    finish();
  }

  void open() {
    start(kStateCleared);
    finish();
  }

  void describe(std::string_view descriptor) {
    start(0);
    put_bytes(packet_, kPacketDescriptor, descriptor);
    finish();
  }

  void slice(const Job& job, const Span& span, bool chunks) {
    const std::uint64_t begin = nanoseconds(span.begin), end = nanoseconds(span.end);
    STEPCAST_CHECK(last_ <= span.begin && span.begin <= span.end,
                   "spans of one stream overlap or are out of order");
    last_ = span.end;
    const Look look = look_up(job, span);

    event_.clear();
    put_number(event_, kEventType, kSliceBegin);
    put_number(event_, kEventCategory, category(look.phase));
    if (look.transfers) put_number(event_, kEventCategory, category(look.kind));
    start(kNeedsState);
    put_number(packet_, kPacketTimestamp, begin);
    put_number(event_, kEventName, intern(job, look.label));
    annotate(kMicroBatch, span.micro_batch);
    if (chunks) annotate(kChunk, span.chunk);
    put_bytes(packet_, kPacketEvent, event_);
    finish();

    event_.clear();
    put_number(event_, kEventType, kSliceEnd);
    start(kNeedsState);  // the default track is part of the state
    put_number(packet_, kPacketTimestamp, end);
    put_bytes(packet_, kPacketEvent, event_);
    finish();
  }

 private:
  void start(std::uint64_t flags) {
    packet_.clear();
    put_number(packet_, kPacketSequence, number_);
    if (flags != 0) put_number(packet_, kPacketFlags, flags);
  }

  void finish() { put_bytes(out_, kTracePacket, packet_); }

  void annotate(std::uint64_t name, std::int32_t value) {
    annotation_.clear();
    put_number(annotation_, kAnnotationName, name);
    put_number(annotation_, kAnnotationInt, whole(value));
    put_bytes(event_, kEventAnnotation, annotation_);
  }

  // The label's number; spells it in the current packet if this sequence meets it first.
  std::uint64_t intern(const Job& job, Label label) {
    const auto key = (static_cast<std::uint32_t>(static_cast<std::uint16_t>(label.name)) << 16) |
                     static_cast<std::uint16_t>(label.layer);
    const auto [entry, fresh] = names_.try_emplace(key, names_.size() + 1);
    if (fresh) {
      std::string interned;
      put_entry(interned, kInternedEventName, entry->second, label_text(job, label));
      put_bytes(packet_, kPacketInterned, interned);
    }
    return entry->second;
  }

  std::string& out_;
  std::uint32_t number_;
  Instant last_;
  std::unordered_map<std::uint32_t, std::uint64_t> names_;
  std::string packet_, event_, annotation_;  // kept for their memory
};

std::string process_descriptor(const Job& job, const Track& track) {
  const std::string name = fmt::format("stage {} rank {}", job.mesh.stage(track.rank), track.rank);
  std::string process, descriptor;
  put_number(process, kProcessPid, track.process());
  put_bytes(process, kProcessName, name);
  put_number(descriptor, kTrackUuid, track.process_uuid());
  put_bytes(descriptor, kTrackName, name);
  put_bytes(descriptor, kTrackProcess, process);
  return descriptor;
}

// Threads are numbered after all processes, so that no number means two things.
std::string thread_descriptor(const Job& job, const Track& track) {
  const auto ranks = static_cast<std::uint64_t>(job.mesh.ranks());
  const std::uint64_t number =
      1 + ranks + whole(track.rank) * kStreams + static_cast<std::uint64_t>(track.stream);
  std::string thread, descriptor;
  put_number(thread, kThreadPid, track.process());
  put_number(thread, kThreadTid, number);
  put_bytes(thread, kThreadName, stream_name(track.stream));
  put_number(descriptor, kTrackUuid, track.uuid());
  put_number(descriptor, kTrackParent, track.process_uuid());
  put_bytes(descriptor, kTrackName, stream_name(track.stream));
  put_bytes(descriptor, kTrackThread, thread);
  return descriptor;
}

// The spans' indices by rank, then stream; in the trace's order within a track.
std::vector<std::size_t> by_track(const std::vector<Span>& spans) {
  std::vector<std::size_t> order(spans.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return track_of(spans[a]).uuid() < track_of(spans[b]).uuid();
  });
  return order;
}

}  // namespace

std::string write_perfetto(const Job& job, const Trace& trace) {
  const std::vector<Span>& spans = trace.spans;
  const std::vector<std::size_t> order = by_track(spans);
  const bool chunks =
      std::any_of(spans.begin(), spans.end(), [](const Span& span) { return span.chunk > 0; });
  const auto starts_track = [&](std::size_t i) {
    return i == 0 || track_of(spans[order[i]]) != track_of(spans[order[i - 1]]);
  };

  std::string out;
  out.reserve(spans.size() * 48 + 4096);
  Sequence descriptors(out, kDescriptorSequence);
  descriptors.open();  // also makes an empty trace a file that Perfetto opens
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (!starts_track(i)) continue;
    const Track track = track_of(spans[order[i]]);
    if (i == 0 || spans[order[i - 1]].rank != track.rank) {
      descriptors.describe(process_descriptor(job, track));
    }
    descriptors.describe(thread_descriptor(job, track));
  }

  std::uint32_t number = kDescriptorSequence;
  for (std::size_t i = 0; i < order.size();) {
    Sequence sequence(out, ++number);
    sequence.open(track_of(spans[order[i]]));
    do {
      sequence.slice(job, spans[order[i]], chunks);
    } while (++i < order.size() && !starts_track(i));
  }
  return out;
}

}  // namespace stepcast

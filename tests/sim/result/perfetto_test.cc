// The writer is held against a decoder of its own: protobuf's wire format in its general form, and
// Perfetto's rules of sequences, defaults and interning. Field numbers stand here as literals, from
// protos/perfetto/trace/ in google/perfetto, so that a wrong constant in the writer shows.
#include "sim/result/perfetto.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/sim/result/small_job.h"

namespace stepcast {
namespace {

// ---------------------------------------------------------------------------- wire format

std::uint64_t take_varint(std::string_view& in) {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (in.empty()) throw std::runtime_error("truncated varint");
    const auto byte = static_cast<unsigned char>(in.front());
    in.remove_prefix(1);
    value |= std::uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
  throw std::runtime_error("endless varint");
}

struct Item {
  std::uint64_t field = 0;
  std::uint64_t number = 0;  // wire type 0
  std::string_view bytes;    // wire type 2
};

struct Message {
  std::vector<Item> items;

  explicit Message(std::string_view in) {
    while (!in.empty()) {
      const std::uint64_t tag = take_varint(in);
      Item item{tag >> 3, 0, {}};
      const std::uint64_t value = take_varint(in);
      if ((tag & 7) == 0) {
        item.number = value;
      } else if ((tag & 7) == 2 && value <= in.size()) {
        item.bytes = in.substr(0, value);
        in.remove_prefix(value);
      } else {
        throw std::runtime_error("bad wire type or length");
      }
      items.push_back(item);
    }
  }
  const Item* find(std::uint64_t field) const {
    for (const Item& item : items) {
      if (item.field == field) return &item;
    }
    return nullptr;
  }
  std::uint64_t number(std::uint64_t field) const {
    const Item* item = find(field);
    if (item == nullptr) throw std::runtime_error("no field " + std::to_string(field));
    return item->number;
  }
  std::string text(std::uint64_t field) const {
    const Item* item = find(field);
    if (item == nullptr) throw std::runtime_error("no field " + std::to_string(field));
    return std::string(item->bytes);
  }
  std::vector<std::uint64_t> numbers(std::uint64_t field) const {
    std::vector<std::uint64_t> result;
    for (const Item& item : items) {
      if (item.field == field) result.push_back(item.number);
    }
    return result;
  }
};

// ------------------------------------------------------------------------ Perfetto's rules

struct Slice {
  std::string name;
  std::vector<std::string> categories;
  std::map<std::string, std::int64_t> annotations;
  std::uint64_t begin = 0, end = 0;
};

struct DecodedTrack {
  std::string name;
  std::uint64_t parent = 0;
  std::uint64_t pid = 0, tid = 0;
  std::string process_name, thread_name;
  std::vector<Slice> slices;
};

struct State {
  bool valid = false;
  std::uint64_t track = 0;
  std::map<std::uint64_t, std::string> categories, names, annotations;
};

struct Decoded {
  std::size_t packets = 0, spelled_names = 0;
  std::map<std::uint64_t, DecodedTrack> tracks;

  const DecodedTrack& track(std::uint64_t pid, std::string_view thread) const {
    for (const auto& [uuid, track] : tracks) {
      if (track.pid == pid && track.thread_name == thread) return track;
    }
    throw std::runtime_error("no such track");
  }
};

void decode_descriptor(const Message& descriptor, Decoded& decoded) {
  DecodedTrack track;
  track.name = descriptor.text(2);
  if (const Item* parent = descriptor.find(5)) track.parent = parent->number;
  if (const Item* process = descriptor.find(3)) {
    track.pid = Message(process->bytes).number(1);
    track.process_name = Message(process->bytes).text(6);
  }
  if (const Item* thread = descriptor.find(4)) {
    track.pid = Message(thread->bytes).number(1);
    track.tid = Message(thread->bytes).number(2);
    track.thread_name = Message(thread->bytes).text(5);
  }
  if (!decoded.tracks.emplace(descriptor.number(1), track).second) {
    throw std::runtime_error("a track described twice");
  }
}

void decode_interned(const Message& interned, State& state, Decoded& decoded) {
  for (const Item& item : interned.items) {
    const Message entry(item.bytes);
    if (entry.number(1) == 0) throw std::runtime_error("iid 0 means none");
    if (item.field == 1) state.categories[entry.number(1)] = entry.text(2);
    if (item.field == 3) state.annotations[entry.number(1)] = entry.text(2);
    if (item.field != 2) continue;
    ++decoded.spelled_names;
    if (!state.names.emplace(entry.number(1), entry.text(2)).second) {
      throw std::runtime_error("an iid used twice");
    }
  }
}

void decode_event(const Message& event, std::uint64_t timestamp, const State& state,
                  std::map<std::uint64_t, std::optional<Slice>>& open, Decoded& decoded) {
  const std::uint64_t uuid = event.find(11) ? event.number(11) : state.track;
  DecodedTrack& track = decoded.tracks.at(uuid);
  if (event.number(9) == 2) {
    Slice slice = open.at(uuid).value();
    open[uuid].reset();
    slice.end = timestamp;
    track.slices.push_back(slice);
    return;
  }
  if (event.number(9) != 1 || open[uuid]) throw std::runtime_error("slices nest or are unknown");
  Slice slice;
  slice.name = state.names.at(event.number(10));
  slice.begin = timestamp;
  for (std::uint64_t iid : event.numbers(3)) slice.categories.push_back(state.categories.at(iid));
  for (const Item& item : event.items) {
    if (item.field != 4) continue;
    const Message annotation(item.bytes);
    slice.annotations[state.annotations.at(annotation.number(1))] =
        static_cast<std::int64_t>(annotation.number(4));
  }
  open[uuid] = slice;
}

Decoded decode(std::string_view bytes) {
  Decoded decoded;
  std::map<std::uint64_t, State> states;
  std::map<std::uint64_t, std::optional<Slice>> open;
  for (const Item& item : Message(bytes).items) {
    if (item.field != 1) throw std::runtime_error("not a packet");
    const Message packet(item.bytes);
    ++decoded.packets;
    if (packet.number(10) == 0) throw std::runtime_error("sequence 0 is invalid");
    State& state = states[packet.number(10)];
    const std::uint64_t flags = packet.find(13) ? packet.number(13) : 0;
    if (flags & 1) state = State{true, 0, {}, {}, {}};
    if ((flags & 2) && !state.valid) throw std::runtime_error("dropped: no incremental state");
    if (const Item* defaults = packet.find(59)) {
      state.track = Message(Message(defaults->bytes).text(11)).number(11);
    }
    if (const Item* interned = packet.find(12)) {
      decode_interned(Message(interned->bytes), state, decoded);
    }
    if (const Item* descriptor = packet.find(60)) {
      decode_descriptor(Message(descriptor->bytes), decoded);
    }
    if (const Item* event = packet.find(11)) {
      if (!(flags & 2)) throw std::runtime_error("interned data without the flag");
      decode_event(Message(event->bytes), packet.number(8), state, open, decoded);
    }
  }
  for (const auto& [uuid, slice] : open) {
    if (slice) throw std::runtime_error("a slice without end");
  }
  return decoded;
}

// ----------------------------------------------------------------------------------- tests

Trace small_trace() {
  return {{span(0, kForwardBody, 0, Stream::kCompute, 0, 5'000'000),
           span(0, kForwardBody, 1, Stream::kTensor, 5'000'000, 7'000'000),
           span(0, kForwardBody, 0, Stream::kCompute, 7'000'000, 12'000'000, 1),
           span(0, kForwardBody, 3, Stream::kSendForward, 7'500'000, 8'500'999, 1),
           span(3, kBackwardBody, 0, Stream::kReceiveBackward, 1'000, 2'000, 2),
           span(3, kBackwardBody, 1, Stream::kCompute, 2'000, 3'000, 2),
           span(3, kOptimizerBody, 0, Stream::kCompute, 4'000, 9'000)}};
}

TEST(Perfetto, NamesAProcessForARankAndAThreadForAStream) {
  const Job job = small_job();
  const Decoded decoded = decode(write_perfetto(job, small_trace()));

  std::vector<std::string> processes, threads;
  std::map<std::uint64_t, int> tids;
  for (const auto& [uuid, track] : decoded.tracks) {
    EXPECT_NE(uuid, 0u);
    EXPECT_NE(track.pid, 0u) << "process 0 is the idle task";
    if (!track.process_name.empty()) {
      processes.push_back(track.process_name);
      EXPECT_EQ(track.name, track.process_name);
      continue;
    }
    threads.push_back(track.thread_name);
    ++tids[track.tid];
    EXPECT_EQ(track.name, track.thread_name);
    EXPECT_EQ(decoded.tracks.at(track.parent).pid, track.pid);
  }
  // rank 3 = tensor 1 + 2 x stage 1
  EXPECT_EQ(processes, (std::vector<std::string>{"stage 0 rank 0", "stage 1 rank 3"}));
  EXPECT_EQ(threads, (std::vector<std::string>{"compute", "tensor", "send_forward", "compute",
                                               "receive_backward"}));
  EXPECT_EQ(tids.size(), threads.size()) << "no two threads share a number";
}

TEST(Perfetto, KeepsEverySpanWithItsLabelPhaseAndMicroBatch) {
  const Decoded decoded = decode(write_perfetto(small_job(), small_trace()));

  const auto& compute = decoded.track(1, "compute").slices;
  ASSERT_EQ(compute.size(), 2u);
  EXPECT_EQ(compute[0].name, "layer3.qkv");
  EXPECT_EQ(compute[0].categories, std::vector<std::string>{"forward"});
  EXPECT_EQ(compute[0].begin, 0u);
  EXPECT_EQ(compute[0].end, 5'000u);
  EXPECT_EQ(compute[1].begin, 7'000u);
  EXPECT_EQ(compute[1].annotations, (std::map<std::string, std::int64_t>{{"micro_batch", 1}}));

  const auto& tensor = decoded.track(1, "tensor").slices;
  ASSERT_EQ(tensor.size(), 1u);
  EXPECT_EQ(tensor[0].name, "layer3.gather");
  EXPECT_EQ(tensor[0].categories, (std::vector<std::string>{"forward", "all_gather"}));

  const auto& send = decoded.track(1, "send_forward").slices;
  ASSERT_EQ(send.size(), 1u);
  EXPECT_EQ(send[0].name, "hidden");
  EXPECT_EQ(send[0].categories, (std::vector<std::string>{"forward", "send_receive"}));
  EXPECT_EQ(send[0].begin, 7'500u);
  EXPECT_EQ(send[0].end, 8'500u);

  const auto& last = decoded.track(4, "compute").slices;
  ASSERT_EQ(last.size(), 2u);
  EXPECT_EQ(last[0].categories, std::vector<std::string>{"recompute"});
  EXPECT_EQ(last[1].name, "adamw");
  EXPECT_EQ(last[1].categories, std::vector<std::string>{"optimizer"});
}

TEST(Perfetto, TellsTheChunkWhereThereIsMoreThanOne) {
  Trace trace = small_trace();
  trace.spans[2].chunk = 1;
  const Decoded decoded = decode(write_perfetto(small_job(), trace));
  const auto& compute = decoded.track(1, "compute").slices;
  EXPECT_EQ(compute.at(0).annotations.at("chunk"), 0);
  EXPECT_EQ(compute.at(1).annotations.at("chunk"), 1);
}

// Picoseconds  [400, 1999) [1999, 1999) [1999, 2000) [2000, 2999) [2999, 1e13)
// nanoseconds  [0, 1)      [1, 1)       [1, 2)       [2, 2)       [2, 1e10)
TEST(Perfetto, RoundsBothEndsDownSoThatNoSliceOverlapsOrIsNegative) {
  const std::vector<std::int64_t> edges = {400, 1'999, 1'999, 2'000, 2'999, 10'000'000'000'000};
  Trace trace;
  for (std::size_t i = 0; i + 1 < edges.size(); ++i) {
    trace.spans.push_back(
        span(0, kForwardBody, 0, Stream::kCompute, edges[i], edges[i + 1]));
  }
  const Decoded decoded = decode(write_perfetto(small_job(), trace));
  std::vector<std::pair<std::uint64_t, std::uint64_t>> slices;
  for (const Slice& slice : decoded.track(1, "compute").slices) {
    slices.emplace_back(slice.begin, slice.end);
  }
  const std::vector<std::pair<std::uint64_t, std::uint64_t>> expected = {
      {0, 1}, {1, 1}, {1, 2}, {2, 2}, {2, 10'000'000'000}};
  EXPECT_EQ(slices, expected);
}

// Begin: packet 2, timestamp 6, sequence 2, flags 2, event 2 + type 2 + category 2 + name 2 +
// annotation 6 = 26 bytes; end: 2 + 6 + 2 + 2 + 2 + 2 = 16. A two-byte micro-batch adds one. 43.
TEST(Perfetto, SpellsEachNameOnceAndSpendsAbout40BytesASlice) {
  Trace trace;
  constexpr std::int32_t kSpans = 20'000;
  for (std::int32_t i = 0; i < kSpans; ++i) {
    const std::int64_t begin = 1'000'000'000'000 + i * std::int64_t{1'000'000};
    trace.spans.push_back(
        span(0, kForwardBody, 0, Stream::kCompute, begin, begin + 900'000, i % 512));
  }
  const std::string bytes = write_perfetto(small_job(), trace);
  const Decoded decoded = decode(bytes);
  EXPECT_EQ(decoded.spelled_names, 1u);
  EXPECT_EQ(decoded.track(1, "compute").slices.size(), std::size_t{kSpans});
  EXPECT_LE(bytes.size(), std::size_t{kSpans} * 43 + 1'000);
}

TEST(Perfetto, DoesNotCareHowTheRanksOfATraceInterleave) {
  const Job job = small_job();
  const Trace trace = small_trace();
  const Trace mixed{{trace.spans[4], trace.spans[0], trace.spans[5], trace.spans[1],
                     trace.spans[2], trace.spans[3], trace.spans[6]}};
  EXPECT_EQ(write_perfetto(job, mixed), write_perfetto(job, trace));
}

TEST(Perfetto, WritesAnEmptyTraceAsAFileWithOnePacketAndNoTrack) {
  const Decoded decoded = decode(write_perfetto(small_job(), Trace{}));
  EXPECT_EQ(decoded.packets, 1u);
  EXPECT_TRUE(decoded.tracks.empty());
}

TEST(PerfettoDeathTest, RefusesSpansOfOneStreamThatOverlap) {
  const Trace trace{{span(0, kForwardBody, 0, Stream::kCompute, 0, 5'000),
                     span(0, kForwardBody, 0, Stream::kCompute, 4'999, 6'000)}};
  EXPECT_DEATH(write_perfetto(small_job(), trace), "overlap");
}

TEST(PerfettoDeathTest, RefusesASpanOfAnInstructionThatTakesNoTime) {
  const Trace trace{{span(0, kForwardBody, 2, Stream::kCompute, 0, 5'000)}};
  EXPECT_DEATH(write_perfetto(small_job(), trace), "takes no time");
}

}  // namespace
}  // namespace stepcast

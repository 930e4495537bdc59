// Job: one training step as a text that every reader shares.
//
// models/ writes a Job; simulate() gives it a meaning in time, account() in memory, execute() in
// truth. No reader has an idea of its own of a schedule, of a buffer's life or of a message.
//
//   Job      = mesh + one Program a pipeline stage + the tables that they share
//   Program  = the calls of bodies in the order in which a rank of that stage issues them
//   Body     = a straight list of Instructions ("forward of 10 layers", "optimizer")
//   Call     = body + chunk + micro-batch: 512 micro-batches do not repeat the text
//
// A rank's host issues its instructions in order, ahead of the device, except past a Synchronize or
// a HostWait. Those on one stream run in order; streams run side by side; Record and Wait tie them
// together as events do in CUDA. Bodies name tensors by number; which *instance* is meant follows
// from the Call, by the tensor's Scope. So stages and virtual stages (chunks) that hold the same
// kind of layers share one body.
//
// Messages: a Send never blocks its rank's other streams; between two neighbours, messages of one
// stream arrive in the order in which they were sent (FIFO), and each meets exactly one Receive.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sim/base/units.h"
#include "sim/program/mesh.h"
#include "sim/program/op.h"

namespace stepcast {

using TensorId = std::int32_t;    // index into Job::tensors
using OpId = std::int32_t;        // index into Job::ops
using TransferId = std::int32_t;  // index into Job::transfers
using BodyId = std::int32_t;      // index into Job::bodies
using EventId = std::int16_t;     // a rank's event, 0 .. Job::events - 1

// What something is called: an interned name and, where it belongs to one, a layer of its chunk.
struct Label {
  std::int16_t name = 0;    // index into Job::names
  std::int16_t layer = -1;  // -1: none
  bool operator==(const Label&) const = default;
};

enum class Category : std::uint8_t {
  kWeights, kGradients, kMasterWeights, kOptimizer, kActivations, kBuffers
};
inline constexpr int kCategories = 6;
std::string_view category_name(Category category);  // "weights", "master_weights", ...

// Which calls share an instance of a tensor.
enum class Scope : std::uint8_t {
  kRank,        // one a rank
  kChunk,       // one a chunk of a rank (weights of its layers)
  kMicroBatch,  // one a chunk and micro-batch (activations)
};

struct Shape {
  std::array<std::int64_t, 4> sizes = {1, 1, 1, 1};
  std::int8_t rank = 0;

  constexpr Shape() = default;
  constexpr Shape(std::initializer_list<std::int64_t> list) {
    for (std::int64_t size : list) sizes[static_cast<std::size_t>(rank++)] = size;
  }
  constexpr bool operator==(const Shape&) const = default;
  constexpr std::int64_t elements() const { return sizes[0] * sizes[1] * sizes[2] * sizes[3]; }
};

// How a weight, and its gradient, is cut over the tensor axis: not, so that every tensor rank holds
// all of it; by rows (the outputs of a layer); or by columns (its inputs).
enum class Cut : std::uint8_t { kWhole, kRows, kColumns };
std::string_view cut_name(Cut cut);  // "whole", "rows", "columns"

inline constexpr std::size_t kPartsMax = 3;

struct Tensor {
  Label label;
  Shape shape;
  Dtype dtype = Dtype::kBf16;
  Category category = Category::kActivations;
  Scope scope = Scope::kMicroBatch;
  Cut cut = Cut::kWhole;
  // Cut by rows: how many rows each of the matrices packed in it has here (queries, keys, values; a
  // gate and its partner). Each is cut by itself, in the order of the ranks. All 0: it is but one.
  std::array<std::int64_t, kPartsMax> parts = {};
  // Of how many experts it holds the matrices (rows, columns), one behind the other; 0: it belongs
  // to none. `cut` and `parts` are then those of each by itself. Which experts follows from the
  // rank's place on Job::experts, in order.
  std::int64_t experts = 0;
  bool operator==(const Tensor&) const = default;
  Bytes bytes() const { return Bytes(shape.elements() * dtype_size(dtype)); }
};

// One queue of work on a device. Everything on one stream runs in the order of issue.
enum class Stream : std::uint8_t {
  kCompute, kTensor, kContext, kExpert, kData, kReplica, kGlobal,
  kSendForward, kReceiveForward,    // activations, to the next and from the previous stage
  kSendBackward, kReceiveBackward,  // their gradients, to the previous and from the next stage
  kHostCopy
};
inline constexpr int kStreams = 12;
std::string_view stream_name(Stream stream);

enum class TransferKind : std::uint8_t {
  kAllReduce, kAllGather, kReduceScatter, kBroadcast, kAllToAll, kSendReceive
};
std::string_view transfer_name(TransferKind kind);  // "all_reduce", ...

// What an all-reduce or reduce-scatter does with the ranks' elements.
enum class Reduction : std::uint8_t { kSum, kMaximum };

// A message or collective as a value: what it costs follows from this and the cluster alone.
// A Collective of kSendReceive is a shift: each member sends what it reads to the next of its group
// and writes what comes from the one before, the last to the first, all at once.
// `bytes`: all-reduce, broadcast, send: the tensors; all-gather: all that is gathered (the output);
// reduce-scatter: all that is reduced (the input); all-to-all: what one rank holds before.
struct Transfer {
  TransferKind kind = TransferKind::kAllReduce;
  AxisSet axes;
  bool ends_only = false;  // axes is {pipeline}: only the first and the last stage take part
  Bytes bytes;
  Reduction reduction = Reduction::kSum;
  bool operator==(const Transfer&) const = default;
};

// Bytes that one member of a group of n sends (ring algorithms; the minimum for any algorithm of
// the same kind): all-reduce 2 (n-1)/n, all-gather and reduce-scatter (n-1)/n, all-to-all (n-1)/n,
// broadcast (n-1)/n on average, send 1. Rounded up.
Bytes sent_bytes(const Transfer& transfer, const Mesh& mesh);

enum class Phase : std::uint8_t { kForward, kBackward, kRecompute, kOptimizer };
inline constexpr int kPhases = 4;
std::string_view phase_name(Phase phase);

// The operands of an instruction: `reads` then `writes` ids in Body::operands from `first` on.
// In-place operands stand in both.
struct Operands {
  std::int32_t first = 0;
  std::int32_t reads = 0;
  std::int32_t writes = 0;
  bool operator==(const Operands&) const = default;
};

struct Compute {
  OpId op = 0;
  Operands operands;
  Label label;
  Phase phase = Phase::kForward;
  bool operator==(const Compute&) const = default;
};
// In n pieces, n > 1: moved beside the matrix product next to it in the body, whose rows are worked
// out in n parts, so that part and piece are in flight at once (Wang et al. 2023, "Overlap
// Communication with Dependent Computation"; Transformer Engine's userbuffers, PyTorch's
// asynchronous tensor parallelism). What is moved and worked out is the same.
//   An all-gather: the product is the first one behind it, and reads what it writes. Its first part
//     is of the rank's own rows, which are there; n - 1 pieces come in, each for one part.
//   A reduce-scatter: the product is the last one before it, and writes what it reads. n pieces
//     leave, each as soon as its part is worked out.
// The body's Record and Wait stay as they are without pieces: they tell when all of it is there.
struct Collective {
  TransferId transfer = 0;
  Operands operands;
  Label label;
  Stream stream = Stream::kTensor;
  Phase phase = Phase::kForward;
  std::int16_t pieces = 1;
  bool operator==(const Collective&) const = default;
};
// To, or from, the rank `step` further on the pipeline axis (wrapping around).
struct Send {
  TransferId transfer = 0;
  TensorId tensor = 0;
  Label label;
  Stream stream = Stream::kSendForward;
  std::int8_t step = 1;
  bool operator==(const Send&) const = default;
};
struct Receive {
  TransferId transfer = 0;
  TensorId tensor = 0;
  Label label;
  Stream stream = Stream::kReceiveForward;
  std::int8_t step = -1;
  bool operator==(const Receive&) const = default;
};
struct Alloc { TensorId tensor = 0; bool operator==(const Alloc&) const = default; };
struct Free { TensorId tensor = 0; bool operator==(const Free&) const = default; };
// The event is set to the moment when all that the stream holds so far is done.
struct Record {
  Stream stream = Stream::kCompute;
  EventId event = 0;
  bool operator==(const Record&) const = default;
};
// Nothing later on the stream starts before the event's latest Record.
struct Wait {
  Stream stream = Stream::kCompute;
  EventId event = 0;
  bool operator==(const Wait&) const = default;
};
// The host issues nothing later before all that the rank's streams hold so far is done: the queues
// are empty then, as after cudaDeviceSynchronize. It orders nothing that Record and Wait do not.
struct Synchronize { bool operator==(const Synchronize&) const = default; };
// The host issues nothing later before the event's latest Record, as after cudaEventSynchronize. It
// orders nothing that Record and Wait do not.
struct HostWait {
  EventId event = 0;
  bool operator==(const HostWait&) const = default;
};
// No work: names what follows, for people ("layer 3").
struct Mark { Label label; bool operator==(const Mark&) const = default; };

using Instruction = std::variant<Compute, Collective, Send, Receive, Alloc, Free, Record, Wait,
                                 Synchronize, HostWait, Mark>;

struct Body {
  std::string name;                     // "forward", "backward last", "optimizer"
  Phase phase = Phase::kForward;
  std::vector<Instruction> code;
  std::vector<TensorId> operands;       // pool for Operands
  bool later = false;                   // of a pass in parts: not the first of them
  bool operator==(const Body&) const = default;
};

struct Call {
  BodyId body = 0;
  std::int32_t chunk = 0;        // 0 .. virtual stages - 1
  std::int32_t micro_batch = 0;
  bool operator==(const Call&) const = default;
};

// Tensors that exist before the step and after it, by chunk. Input data counts as written.
struct Resident {
  std::int32_t set = 0;          // index into Job::resident_sets
  std::int32_t chunk = 0;
  bool operator==(const Resident&) const = default;
};

struct Program {
  std::vector<Resident> residents;
  std::vector<Call> schedule;
  bool operator==(const Program&) const = default;
};

// What the step trains on. Rows of tokens are ordered sequence first, row = position * micro_batch
// + sequence. A tensor of fewer rows than the micro-batch has tokens is the tensor rank's share of
// them, in the order of the ranks (sequence parallelism). Token ids of a chunk (int64 residents)
// hold, in each call, those of the call's micro-batch: what a Gather reads is the text, what a Loss
// reads is the text one token further.
// Over a context axis of c ranks each sequence is cut into 2 c equal stretches, of which rank i has
// numbers i and 2 c - 1 - i, one behind the other: a causal mask then leaves all ranks the same
// work (NVIDIA/TransformerEngine, PyTorch). "The micro-batch's tokens" of a rank are those.
// The loss is the mean over all tokens of the global batch: d_logits is divided by their number,
// sequence_length * micro_batch * micro_batches * expert * data * replica: expert ranks are data
// ranks for all but the experts; the number of a rank's sequences counts expert before data. Ids
// are below `vocabulary`; rows of a table and columns of logits beyond it are padding, which no
// token has and no softmax counts.
struct Batch {
  std::int64_t sequence_length = 0;  // all four are 0 where the Job does not say
  std::int64_t micro_batch = 0;      // sequences that a rank works on at once
  std::int64_t micro_batches = 0;    // of one data rank in a step
  std::int64_t vocabulary = 0;
  bool operator==(const Batch&) const = default;
};

// The axes over which weights are copies and gradients add up: data ranks see other sequences,
// context ranks other tokens of the same. ZeRO shards the state over all of them.
// So do expert ranks, but for experts: those are copies over a part of these axes only.
inline constexpr AxisSet kStateAxes =
    AxisSet(Axis::kContext) | AxisSet(Axis::kExpert) | AxisSet(Axis::kData);

// Tensors that are laid end to end, in this order, where state is sharded over `axes`: one array of
// n elements, of which each of d ranks has ceil(n / d), the last ones padded.
//   * A reduce-scatter or all-gather over these axes takes the `whole` tensors of a flat as that
//     array; with several flats, each is cut by itself. Where no tensors of their own hold the
//     shares, the rank's share lies in place, and the rest of the array is not to be relied on.
//   * An all-reduce of fewer bytes than its operands hold works on the rank's share of each.
//   * An Update of fewer elements than its tensors hold works on the rank's share of them.
struct Flat {
  std::vector<TensorId> whole;
  std::vector<TensorId> shares;  // tensors that hold one rank's share, of weights or of gradients
  AxisSet axes = kStateAxes;
  bool operator==(const Flat&) const = default;
};

// Dropout zeroes each element with probability `dropout` and scales the others by 1 / (1 - dropout)
// (Srivastava et al. 2014), of all dropouts of a Job alike. Which elements goes by where they stand
// in the model and in the global batch: the dropout, its layer, the sequence, the position, the
// head, the column. So every layout of a model drops the same ones, and so does recomputation.
// Which dropout it is, the label of what it leaves for backward tells, up to its last dot: of the
// mask ("attention.add.mask"), or of fused attention's lse ("attention.lse").
//
// Stage i's chunk c is part c p + i of the model: its layers come after those of the parts before.
struct Job {
  Mesh mesh;
  Batch batch;
  double dropout = 0;                              // its rate; 0: none, or the Job does not say
  AxisSet experts;                                 // the axes over which experts are spread
  std::vector<Program> programs;                   // one a stage
  std::vector<Body> bodies;
  std::vector<Tensor> tensors;
  std::vector<Op> ops;                             // distinct
  std::vector<Transfer> transfers;                 // distinct
  std::vector<std::vector<TensorId>> resident_sets;
  std::vector<Flat> flats;                         // no tensor stands in two
  std::vector<std::string> names;                  // for Label
  int events = 0;
  bool operator==(const Job&) const = default;
};

inline constexpr std::int64_t kInstructionsMax = 50'000'000;  // in the bodies of one Job
inline constexpr std::int64_t kCallsMax = 10'000'000;         // in the schedules of one Job

std::string label_text(const Job& job, Label label);  // "layer3.qkv"

template <class... F> struct Overloaded : F... { using F::operator()...; };
template <class... F> Overloaded(F...) -> Overloaded<F...>;

// std::visit with the cases first to last: match(instruction, [](const Compute& c) {...}, ...).
template <class Variant, class... F>
decltype(auto) match(Variant&& variant, F&&... cases) {
  return std::visit(Overloaded{std::forward<F>(cases)...}, std::forward<Variant>(variant));
}

// The Job as text, one line an instruction, and back. parse_job(print_job(j)) == j.
// parse_job throws Error with "FILE:LINE".
std::string print_job(const Job& job);
Job parse_job(std::string_view text, std::string_view file);

// Proves that the Job means something (all of it, on every stage):
//   * numbers are in range; operands fit their op's arity; no schedule is empty
//   * every tensor instance is allocated before it is written, written before it is read (also
//     across streams: the reader's stream has waited for the writer), freed once, and not while
//     resident; what is allocated in the step is freed by its end (a Free does not wait for a Send
//     that still reads: the memory is given back when the message has left, as with record_stream)
//   * a stream, or the host, waits only for events that were recorded
//   * every Send meets its Receive in order, with equal bytes and the same chunk-to-chunk
//     hop and micro-batch; members of a group issue the same collectives in the same order
//   * no deadlock: with every Receive and every collective across stages blocking in program order,
//     and every Synchronize until the messages sent before it are being received, all programs run
//     to their end (not proved: that a message leaves for which compute waits, or with it the host)
// Returns "" or the first fault, naming stage, body and instruction. Cost: linear in the text of
// the bodies plus the number of calls, not in their product.
std::string verify(const Job& job);

}  // namespace stepcast

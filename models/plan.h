// Plan: how a training step is split over ranks, and with which memory savings.
//
// A plan is legal or not whatever it costs: legality against a model is checked here, fitting a
// device is a question for the simulator. Names follow the what-if file.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/model.h"
#include "sim/base/json.h"
#include "sim/program/mesh.h"
#include "sim/program/op.h"

namespace stepcast {

enum class PipelineSchedule : std::uint8_t { kGpipe, k1f1b, kInterleaved };
// How layers are laid on chunks.
enum class StageLayout : std::uint8_t {
  kEven,      // equal counts; the earlier stages take one more where layers do not divide
              // (refused when interleaved)
  kBalanced,  // the slowest chunk as fast as possible, embedding and head counted by their FLOPs
  kGiven,     // Plan::stages
};
// How the ranks of a context axis see each other's keys and values.
enum class ContextExchange : std::uint8_t {
  kRing,       // block by block round a ring, each beside attention on the block before (Liu et al.
               // 2023, "Ring Attention"; Transformer Engine's p2p)
  kAllGather,  // gathered before attention, their gradients reduced and scattered behind it
               // (Llama 3, section 3.3.2; Transformer Engine's all_gather)
  kAllToAll,   // none: each has whole sequences of its share of the heads (DeepSpeed-Ulysses;
               // Transformer Engine's a2a)
};
// How tokens reach the ranks of their experts.
enum class ExpertExchange : std::uint8_t {
  kAllToAll,   // each row to the rank of its expert, and back
  kAllGather,  // all ranks of the experts gather all their tokens, of which each takes those of its
               // own experts; what they make of them is summed and scattered
};
enum class Recompute : std::uint8_t {
  kNone,
  kFull,       // keep each layer's input, run its forward again (every = 1), or each k layers';
               // of all layers, or of the first of each chunk (layers)
  kSelective,  // run the attention core again: scores, softmax, dropout, their product with v
  kModules,    // run the named modules of each layer again
  kPerOp,      // keep attention and every second product of a layer's weights, run the rest again
};

// How operands of 8-bit products are scaled; products of the layers' weights are the only ones that
// run in 8 bits: attention, embedding, head, norms and all sums stay in 16.
enum class Scaling : std::uint8_t {
  kNone,     // no 8-bit products
  kDelayed,  // one scale a tensor, from its largest values in the steps before
  kTensor,   // one scale a tensor, from its largest value now: one more read (current scaling)
  kBlock,    // 1 x 128 of activations and gradients, 128 x 128 of weights (DeepSeek-V3)
  kMx,       // 1 x 32 with a scale of one byte (OCP MX; Blackwell)
};

// Which 8-bit copies there are (NVIDIA/TransformerEngine, pytorch/tensor/float8_tensor.py and
// mxfp8_tensor.py).
struct EightBit {
  Scaling scaling = Scaling::kNone;
  bool transposes = true;   // products read both operands along k only (Hopper): a matrix that is
                            // read along its other side as well is kept transposed, too
  bool weights = false;     // the weights themselves are held, and gathered, in 8 bits; else an
                            // 8-bit copy stands beside those of 16 bits

  bool operator==(const EightBit&) const = default;
  bool on() const { return scaling != Scaling::kNone; }
  // A block's scale holds along one side only, so the other side needs a copy of its own.
  bool blocks() const { return scaling == Scaling::kBlock || scaling == Scaling::kMx; }
  bool two_copies() const { return blocks() || transposes; }
};

// Whose cross-entropy over the logits (tokens, vocabulary) it is. It says what is kept of them, and
// in how many passes over memory it is worked out (sim/hardware/kernels.h, LossKernels).
enum class CrossEntropy : std::uint8_t {
  kParallel,           // one kernel a part; fp32 probabilities beside the logits
  kTorch,              // PyTorch's, on an fp32 copy; fp32 probabilities and their gradient besides
  kMegatron,           // Megatron-LM's vocab_parallel_cross_entropy, as written, on such a copy
  kMegatronFused,      // its fusion (core/fusions/fused_cross_entropy.py), compiled by parts: an
                       // fp32 copy of the logits, and fp32 probabilities beside it
  kTransformerEngine,  // one kernel a direction; probabilities and gradient overwrite the logits
};

// The kernels of unfused attention's softmax over the scores (softmax_is_fused).
enum class SoftmaxKernels : std::uint8_t {
  kFused,         // one a direction, which scales and masks, too
  kMegatron,      // Megatron-LM's FusedScaleMaskSoftmax: one, or PyTorch's in fp32 with a copy, the
                  // scale, the mask and a copy back
  kMegatronCore,  // Megatron-Core's: one, or PyTorch's in the compute type with a mask
};

// Whose results a framework makes as uninitialised tensors (torch.empty and its kin). PyTorch fills
// those before anything is written to them where algorithms have to be deterministic
// (torch.utils.deterministic.fill_uninitialized_memory, on since PyTorch 2.1): a launch and a write
// of the whole tensor more. What ATen's structured kernels make is not filled (they allocate with
// at::detail::empty_cuda, under the dispatcher), so it takes the framework's sources to know.
enum Filled : std::uint16_t {
  kFilledNone = 0,
  kFilledProduct = 1,  // products of a layer's weights; and their weight gradients, where these
                       // are written before they are added to their buffer
  kFilledNorm = 2,
  kFilledAttention = 4,   // fused
  kFilledSoftmax = 8,     // of unfused attention
  kFilledDropout = 16,    // of unfused attention
  kFilledLoss = 32,       // the fp32 copy of the logits, the gradient of the logits
  kFilledCopy = 64,       // in another type, transposed, or of a slice
  kFilledExchange = 128,  // what a layer's tensor ranks gather, or reduce and scatter
  kFilledMessage = 256,   // what a stage receives
};

struct Plan {
  // batch, in sequences
  std::int64_t sequence_length = 0;
  std::int64_t document_length = 0;    // sequences are packed of documents of this many tokens, and
                                       // attention stays within one; 0: a sequence is one document
  std::int64_t micro_batch = 1;        // sequences a rank works on at once
  std::int64_t global_batch = 0;       // sequences a step; micro_batch * data * micro_batches()

  // parallel
  std::int64_t tensor = 1;
  bool sequence_parallel = false;      // norms and dropouts split along the sequence (Korthikanti)
  bool tensor_overlap = true;          // backward's tensor collectives run beside weight gradients
  bool batch_first = false;            // activations are (batch, sequence, hidden): what tensor
                                       // ranks gather or scatter along the sequence is copied to be
                                       // in order, unless it is moved in pieces
  bool gather_again = true;            // sequence parallelism keeps shards, backward gathers them
                                       // once more (Megatron-LM); else what was gathered is kept
  std::int64_t tensor_pieces = 1;      // a layer's exchanges are moved in so many pieces beside the
                                       // product that takes or makes them
  std::int64_t context = 1;            // ranks that share a sequence
  ContextExchange context_exchange = ContextExchange::kRing;
  std::int64_t expert = 1;             // ranks that share a layer's experts: all tensor ranks (if
                                       // expert_tensor is 1) x all context ranks x some data ranks
  std::int64_t expert_tensor = 1;      // 1, or tensor: each expert is cut over the tensor ranks
  ExpertExchange expert_exchange = ExpertExchange::kAllToAll;
  bool expert_overlap = false;         // experts' exchanges of one micro-batch's forward run beside
                                       // the work of another's backward, and the other way round
  double capacity_factor = 1;          // an expert takes up to this times a rank's tokens x k / E
  std::int64_t data = 1;               // all data-parallel ranks (shards x replicas)
  std::int64_t pipeline = 1;
  std::int64_t virtual_stages = 1;     // chunks a stage (interleaved)
  PipelineSchedule schedule = PipelineSchedule::k1f1b;
  bool pipeline_overlap = true;        // compute does not wait for its sends
  bool scatter_gather = true;          // what every tensor rank holds whole crosses to the next
                                       // stage once: 1/t each, gathered there (SC21, section 4.1)
  StageLayout layout = StageLayout::kEven;  // key "stages": "even", "balanced" or a list
  std::vector<std::int64_t> stages;    // kGiven: layers of each chunk in model order, p * v entries
  std::vector<Axis> order;             // inner to outer; empty: the mesh's default

  // sharding
  int zero = 0;                        // 0 plain data parallel, 1-3 ZeRO stages (3 = FSDP)
  Bytes bucket = Bytes(200'000'000);   // gradients reduced (and, in ZeRO-3, units gathered) at once
  bool all_reduce = false;             // ZeRO-1: whole gradients reach every rank, though it
                                       // updates a share only; else their share (reduce-scatter)
  bool overlap = true;                 // gradient reduction beside backward, gathers beside compute
  std::int64_t prefetch = 1;           // ZeRO-3: units gathered ahead
  bool flat_weights = true;            // ZeRO-3: used where they were gathered; else (FSDP2) each
                                       // copied out of there first
  std::int64_t shard_group = 0;        // hybrid sharding: data ranks that share one copy (with
                                       // their context ranks); 0: all of data
  bool reshard_after_forward = true;   // ZeRO-3: gather again in backward; false: gathered once a
                                       // step and whole until the last backward

  // recompute
  Recompute recompute = Recompute::kNone;
  bool recompute_early_stop = false;   // of kFull: up to the last thing that backward needs only
  std::int64_t recompute_every = 1;
  std::int64_t recompute_layers = 0;   // of kFull: the first layers of each chunk only; 0: all
  std::vector<std::string> recompute_modules;  // of kRecomputeModules

  // precision
  Dtype compute = Dtype::kBf16;        // weights in use, activations
  Dtype gradients = Dtype::kBf16;      // gradient buffers and their reduction
  bool master = true;                  // fp32 master weights (false: the weights are the master)
  Dtype moments = Dtype::kFp32;
  bool gradient_copy = false;          // an fp32 copy of the gradients for the update
  EightBit eight_bit;                  // key compute "fp8": then `compute` above is bf16

  std::int64_t vocabulary_multiple = 1;  // the vocabulary is rounded up to that times tensor

  bool fused_qkv = true;               // one product makes queries, keys and values (so it is taken
                                       // to be between context ranks); else three
  bool fused_gate_up = true;           // one makes both branches of a gated MLP; else two
  bool fused_attention = true;         // false keeps scores, softmax and mask in memory
  SoftmaxKernels softmax = SoftmaxKernels::kFused;  // of unfused attention
  CrossEntropy loss = CrossEntropy::kParallel;
  bool dropout = false;                // the model's dropout is active
  double dropout_rate = kDropoutRate;  // with this probability; costs nothing, changes the numbers
  bool clip_gradients = true;          // global norm: all ranks all-reduce before the update
  bool scan_layers = false;            // the layers are one loop over stacked tensors: what one of
                                       // them saves is copied into its stack (stack.h)

  // Bit for bit the same again: new tensors are filled before they are written, those of `filled`
  // (of Filled; left out, PyTorch's own). What is computed is the same in any case.
  bool deterministic = false;
  std::uint16_t filled = kFilledNorm | kFilledAttention | kFilledDropout | kFilledLoss |
                         kFilledCopy | kFilledExchange | kFilledMessage;

  // host: where it waits until the device has done all that it has issued, or what it has to read
  bool p2p_sync = false;               // at every message of the pipeline (Megatron-Core's
                                       // batch_p2p_sync)
  bool pass_sync = false;              // when a forward or a backward pass is issued, before what
                                       // it sends (Megatron-LM's timers until August 2022)
  bool route_sync = false;             // at every router, forward: for the number of rows that each
                                       // expert gets (Megatron-Core, unless places are padded)
  bool optimizer_sync = false;         // before the updates: it reads the norm, or whether a loss
                                       // scale was too large
  bool launch_blocking = false;        // at everything that it issues (CUDA_LAUNCH_BLOCKING=1)

  // allocator
  bool expandable_segments = false;    // of PyTorch's caching allocator: less cut-off memory
  std::optional<Bytes> blas_workspace; // CUBLAS_WORKSPACE_CONFIG, a host thread; none: the device's

  // buffers: what the framework keeps beside the training state (buffers.h)
  bool weight_gradient_placeholders = false;
  bool gather_buffer = false;
  bool score_buffer = false;
  std::int64_t deferred_head = 0;      // micro-batches
  Bytes kernel_workspace = Bytes(0);

  bool operator==(const Plan&) const = default;
  std::int64_t replicas() const { return shard_group > 0 ? data / shard_group : 1; }
  // Where experts' exchanges run beside another pass, that pass's products are issued before the
  // host waits (Megatron-Core's model_chunk_schedule_plan.py): it is ahead by then.
  bool host_reads_counts() const { return route_sync && !expert_overlap; }
  bool host_waits_for_messages() const { return (p2p_sync || launch_blocking) && pipeline > 1; }
  // Over what a copy of the state may be sharded: kStateAxes (sim/program/program.h).
  std::int64_t shards() const { return context * (shard_group > 0 ? shard_group : data); }
  // One shard is no sharding, whatever the stage is called.
  int effective_zero() const { return shards() > 1 ? zero : 0; }
  // What one token attends to at most, and how many such stretches a micro-batch has.
  std::int64_t attended() const { return document_length > 0 ? document_length : sequence_length; }
  std::int64_t documents() const { return micro_batch * (sequence_length / attended()); }
  // How many data ranks share a layer's experts: the degree of the mesh's expert axis.
  std::int64_t expert_data() const {
    const std::int64_t inner = context * (expert_tensor == 1 ? tensor : 1);
    return std::max<std::int64_t>(expert / inner, 1);
  }
  // The axes over which experts are spread; none where each rank has all of them.
  AxisSet expert_axes() const;
  // Over what one expert's state may be sharded: its copies.
  std::int64_t expert_shards() const {
    return shards() / (expert > 1 ? context * expert_data() : 1);
  }
  // Of a micro-batch, on one rank.
  std::int64_t tokens() const { return sequence_length / context * micro_batch; }
  // Whether context ranks share out heads rather than keys and values.
  bool shares_heads() const {
    return context > 1 && context_exchange == ContextExchange::kAllToAll;
  }
  std::int64_t micro_batches() const { return global_batch / (micro_batch * data); }
  bool fills(Filled what) const { return deterministic && (filled & what) != 0; }
  // Of what most matrix products read.
  Dtype product() const { return eight_bit.on() ? Dtype::kFp8 : compute; }
  // Never more than kRanksMax + 1, which stands for whatever is beyond. REQUIRES: degrees up to
  // kRanksMax.
  std::int64_t ranks() const;
  Mesh mesh() const;
};

// What "recompute": {"modules": [...]} may name.
//   attention_core  scores, softmax, their product with v (fused attention too)
//   norm            both norms of a layer
//   activation      the MLP's GELU or gate
//   mlp             the whole MLP
//   attention       the whole attention block
//   projection      attention's output projection and the residual sum behind it
//   up              the MLP's first matrix product
//   qkv             the product that makes queries, keys and values, their norm and rotation
//   latent_up       of latent attention: queries, keys and values made again of the latents
//   quantize        8-bit copies that products read; context: the result of a listed attention_core
extern const std::vector<std::string> kRecomputeModules;

// Rows of the embedding table and of the head: the vocabulary, rounded up to a multiple of
// vocabulary_multiple x tensor. (Megatron-LM rounds up to 128 tensor; a preset whose vocabulary is
// 51,200 has done that already.)
std::int64_t padded_vocabulary(const Model& model, const Plan& plan);

// Whether the softmax of unfused attention is one kernel on a rank's scores. Megatron-LM's
// (megatron/model/fused_softmax.py, v2.4 to v3.0, and megatron/core/fusions/fused_softmax.py:
// is_kernel_available) serves scores of 16 bits; 17 to 2,048 columns (Core: 4,096), a multiple of
// 4; and a multiple of 4 of sequences times heads, of 8 up to 128 columns: what a block takes
// (megatron/fused_kernels/scaled_masked_softmax.h, get_batch_per_block). v3.0 asks for up to 4,096
// columns, too, but its causal kernel refuses more than 2,048.
bool softmax_is_fused(const Plan& plan, const Model& model);

// How many of its tokens a rank gives to one expert at most: its share of a micro-batch's, times
// capacity_factor x k / E, rounded up; never more than it has. REQUIRES: model.experts > 0.
std::int64_t expert_capacity(const Model& model, const Plan& plan);

// "tensor 2 x context 4 x pipeline 8": the degrees besides data that are told of.
std::string model_degrees_text(const Plan& plan);

// Why a plan is not legal: the key to change, and the numbers with the nearest legal choice.
struct PlanTrouble {
  std::string section;  // "parallel"; "": the what-if itself
  std::string key;      // "tensor"
  std::string what;
};

// Experts are spread, but the model has none.
std::optional<PlanTrouble> no_experts_trouble(const Plan& plan, const Model& model);

// The first rule that a plan breaks by itself: its batch, its pipeline, its sharding.
std::optional<PlanTrouble> trouble_alone(const Plan& plan);

// The first rule that it breaks against a model. REQUIRES: no trouble alone.
//   heads, key-value heads, ffn   are multiples of tensor
//   sequence_length               fits learned positions
//   experts                       are a multiple of expert; their width, of expert_tensor
//   widths, with compute fp8      are multiples of 16 on each rank (cuBLASLt's rule)
//   layers                        "even": at least one a chunk, and equal counts if v > 1;
//                                 "balanced": at most the last chunk has none (the head alone);
//                                 a list: sums to the layers, 0 only for the first and last chunk
std::optional<PlanTrouble> trouble_with(const Plan& plan, const Model& model);

// Reads "batch", "parallel", "sharding", "recompute", "recompute_early_stop", "precision",
// "vocabulary_multiple", "capacity_factor", "fused_qkv", "fused_gate_up", "attention", "softmax",
// "loss", "dropout", "dropout_rate", "clip_gradients", "scan_layers", "deterministic", "filled",
// "allocator",
// "buffers" of a what-if, "host" but for its launch, and leaves its other keys to others. With
// `devices` > 0 a data degree that is left out is derived and has to match; 0 takes any. Required
// is batch.sequence_length alone; the rest defaults to the members above, global to micro * data,
// the schedule to 1f1b, or interleaved where virtual_stages > 1, gradients to the compute type,
// dropout and its rate to the model's. With fp32 weights there is no further master copy, with
// fp32 gradients no further copy of those, whatever is asked.
// Throws Error at the key's place for whatever is not legal, alone or with the model.
Plan read_plan(const Object& what_if, const Model& model, std::int64_t devices);

// Throws Error (place "plan: parallel.tensor") for the trouble of a plan alone or with the model.
void check_plan(const Plan& plan, const Model& model);

// The "batch" ... members of the resolved what-if, every default filled in; read_plan reads it back
// equal.
Json write_plan(const Plan& plan);

}  // namespace stepcast

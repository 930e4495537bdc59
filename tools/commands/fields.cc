// The what-if file's half of the table. The limits are those of the readers; a test steps over each
// of them.
#include "tools/commands/fields.h"

#include "sim/program/mesh.h"
#include "sim/program/pieces.h"
#include "tools/commands/field_makers.h"

namespace stepcast {
namespace {

constexpr Limits kDegree{1, kRanksMax};
constexpr Limits kLayers{0, 10'000};

void append(std::vector<Field>& all, std::vector<Field> more) {
  all.insert(all.end(), more.begin(), more.end());
}

std::vector<Field> cluster_fields() {
  return {
      field(Form::kNameOrObject, "cluster", "",
            "The machine: DEVICE-NODESxDEVICES for standard boxes (h100-sxm-128x8), a name "
            "(`stepcast list clusters`), a path, or an object of the keys below."),
      field(Form::kText, "cluster.name", "DEVICE-NODESxDEVICES",
            "What the report calls the cluster."),
      field(Form::kText, "cluster.device", "",
            "The kind of device: a name (`stepcast list devices`) or a path.",
            "Rates, memory and launch times."),
      count("cluster.nodes", "1", {1, kRanksMax}, "Boxes."),
      count("cluster.devices_per_node", "the device's standard box", {1, kRanksMax},
            "Devices in one box.", "Groups within a box talk at node_bandwidth, others by NICs."),
      field(Form::kObject, "cluster.fabric", "the device's standard box",
            "Links inside a box and between boxes."),
      field(Form::kBandwidth, "cluster.fabric.node_bandwidth", "the device's",
            "One device to the others of its box, each direction, nominal.",
            "Tensor parallelism, where it stays in a box."),
      field(Form::kNumber, "cluster.fabric.node_bandwidth_efficiency", "the device's",
            "Share of node_bandwidth that collectives reach, above 0 to 1."),
      field(Form::kTime, "cluster.fabric.node_latency", "the device's", "One hop inside a box."),
      count("cluster.fabric.nics_per_node", "the device's share of its standard box", {0, 1024},
            "Network cards of a box, shared evenly by its devices; none is for one box alone."),
      field(Form::kBandwidth, "cluster.fabric.nic_bandwidth", "the device's",
            "One network card, each direction, nominal.",
            "Data and pipeline parallelism between boxes."),
      field(Form::kNumber, "cluster.fabric.nic_efficiency", "the device's",
            "Share of nic_bandwidth that collectives reach, above 0 to 1."),
      field(Form::kTime, "cluster.fabric.nic_latency", "the device's", "One hop between boxes."),
      field(Form::kSwitch, "cluster.fabric.rails", "false",
            "Rail-optimised: NIC 0 of every box on one leaf, NIC 1 on another, and so on.",
            "Groups that stay on their rail need no spine within nodes_per_leaf."),
      count("cluster.fabric.nodes_per_leaf", "0", {0, kRanksMax},
            "Boxes that share leaf switches; 0 is one switch for all.",
            "Which groups cross uplinks."),
      field(Form::kNumber, "cluster.fabric.oversubscription", "1.0",
            "What NICs can send into a leaf over what its uplinks carry, 1 to 1000.",
            "Divides the bandwidth of groups that cross leaves, not of those inside one."),
      count("cluster.fabric.spines", "1", {1, 4096},
            "Switches above the leaves, each with an even share of every leaf's uplinks."),
      field(Form::kObject, "cluster.box", "the device's standard box",
            "What is in a box besides devices and NICs."),
      word("cluster.box.links", "the device's", "switch direct pairs pcie",
           "How devices reach each other: through switches (NVSwitch), by a link to each other "
           "device, by a bridge in pairs and PCIe beyond, or by PCIe alone.",
           "With direct, a group of q of d devices has (q - 1) / (d - 1) of node_bandwidth."),
      field(Form::kSwitch, "cluster.box.peer_to_peer", "true",
            "Devices and NICs reach each other over PCIe without passing the host's memory."),
      count("cluster.box.sockets", "the device's", {1, 64}, "CPUs, which share out the slots."),
      count("cluster.box.pcie_switches", "the device's", {0, 1024},
            "PCIe switches, which share out the slots; 0: each slot is a port of a CPU."),
      field(Form::kBandwidth, "cluster.box.pcie_bandwidth", "the device's",
            "One slot and a PCIe switch's way to its CPU, each direction, nominal."),
      field(Form::kNumber, "cluster.box.pcie_efficiency", "the device's",
            "Share of pcie_bandwidth that is reached, above 0 to 1."),
      field(Form::kBandwidth, "cluster.box.socket_bandwidth", "null",
            "Between two CPUs, each direction; left out, it is never the bottleneck."),
      field(Form::kBandwidth, "cluster.box.host_bandwidth", "null",
            "A CPU's memory, each direction; left out, it is never the bottleneck.",
            "Without peer_to_peer all traffic over PCIe passes it."),
      count("cluster.box.cores", "the device's", {0, 1 << 16},
            "Of devices that are the box's own cores, how many there are; 0: they are no cores.",
            "Ranks beyond them take turns: everything takes that much longer."),
      field(Form::kList, "cluster.slow_devices", "[]", "Devices that compute slower than the rest.",
            "With any, every rank is simulated, and the slowest one holds up its groups."),
      count("cluster.slow_devices[].device", "", {0, kRanksMax - 1}, "Its number, from 0."),
      field(Form::kNumber, "cluster.slow_devices[].factor", "",
            "Its compute takes this many times as long, 1 to 1000000."),
      field(Form::kList, "cluster.slow_links", "[]",
            "Links that are slower than the rest, or dead.",
            "Groups that use one go at its pace; what a dead one carried goes round it."),
      field(Form::kText, "cluster.slow_links[].from", "",
            "One end, named as `stepcast show cluster` does: node3/nic2."),
      field(Form::kText, "cluster.slow_links[].to", "", "The other end: leaf0."),
      field(Form::kNumber, "cluster.slow_links[].speed", "",
            "The share of its bandwidth that is left, 0 (dead) to 1."),
      input_only(field(Form::kText, "cluster.source", "none", "Where the numbers come from.")),
      input_only(field(Form::kText, "cluster.description", "none", "Words for people."))};
}

std::vector<Field> profile_fields() {
  return {
      field(Form::kText, "profile", "null",
            "Measured times that go before the models': a name (`stepcast list profiles`) or a "
            "path to what `stepcast import` or `stepcast calibrate` wrote; it must be of the "
            "cluster's device.",
            "Transfers over groups of the measured size, and kernels that were timed, take the "
            "measured time."),
      word("profile_basis", "\"measured\"", "measured interpolated",
           "How times of a profile count: as measured, which refuses what was timed on another "
           "machine or with another library; or as interpolated, which takes them from anywhere.",
           "The report's basis, and its range.")};
}

std::vector<Field> batch_and_parallel_fields() {
  return {
      field(Form::kObject, "batch", "", "How much a step works on, in sequences."),
      count("batch.sequence_length", "", {1, 1 << 24}, "Tokens of one sequence.",
            "Attention costs its square; activations grow with it."),
      count("batch.document_length", "0", {0, 1 << 24},
            "Sequences are packed of documents of this many tokens (fine-tuning, document masks); "
            "attention stays within one. 0: a sequence is one document.",
            "Attention costs its square, for each document."),
      count("batch.micro", "1", {1, 1 << 20}, "Sequences that a rank works on at once.",
            "More fill the kernels better and keep more activations alive."),
      count("batch.global", "micro x data: one micro-batch", {1, INT32_MAX},
            "Sequences of one step, over all ranks: micro x data x micro-batches.",
            "More micro-batches shrink the pipeline's bubble, (p - 1) / (m + p - 1)."),
      field(Form::kObject, "parallel", "{}", "How the work is split over the ranks."),
      count("parallel.tensor", "1", kDegree,
            "Ranks that share every matrix of a layer (Megatron-LM).",
            "Two all-reduces a layer and direction, exposed; keep it inside a box."),
      field(Form::kSwitch, "parallel.sequence_parallel", "false",
            "Norms and dropouts are split along the sequence between tensor ranks.",
            "Divides the activations that tensor leaves whole; same traffic."),
      field(Form::kSwitch, "parallel.tensor_overlap", "true",
            "Backward's tensor collectives run beside the weight gradients.",
            "Hides a part of tensor_exposed."),
      field(Form::kSwitch, "parallel.gather_again", "true",
            "Sequence parallelism keeps shards, which backward gathers again (Megatron-LM); else "
            "what was gathered is kept.",
            "Inputs of a layer's products, tensor times as large, for a gather less of each."),
      field(Form::kSwitch, "parallel.batch_first", "false",
            "Activations are (batch, sequence, hidden), as PyTorch's DTensor has them: what "
            "sequence parallelism gathers and scatters is copied to be in order, unless moved in "
            "pieces.",
            "One more read and write for each exchange of a layer."),
      count("parallel.tensor_pieces", "1", {1, kPiecesMax},
            "A layer's gathers and forward's reduce-scatters are moved in so many pieces beside "
            "the product that takes or makes them (tp_comm_overlap of Transformer Engine, "
            "asynchronous tensor parallelism of PyTorch). Needs sequence_parallel.",
            "Hides most of what tensor_exposed has left; smaller products are slower."),
      count("parallel.context", "1", kDegree,
            "Ranks that share every sequence: each has two stretches of it (of 2 x context), the "
            "i-th first and the i-th last. Only attention needs the others' keys and values.",
            "Divides activations; context_exposed. Weights are copies, as among data ranks: "
            "sharding divides by both."),
      word("parallel.context_exchange", "ring", "ring all_gather all_to_all",
           "How context ranks see each other's keys and values: block by block round a ring, each "
           "beside attention on the block before (Transformer Engine's p2p), gathered before "
           "attention (Llama 3, PyTorch), or not: each takes whole sequences of its share of the "
           "heads (DeepSpeed-Ulysses; Transformer Engine's a2a).",
           "A ring hides most bytes, in smaller kernels; all_to_all sends queries and results, "
           "too, but each once: fewer bytes where ranks are many. It needs as many key-value "
           "heads."),
      count("parallel.expert", "1", kDegree,
            "Ranks that share the experts of a layer: all tensor ranks (where expert_tensor is 1) "
            "and context ranks, and some of the data ranks.",
            "Divides the experts' state; each token's row goes to its experts and back."),
      count("parallel.expert_tensor", "1", kDegree,
            "1: each expert is whole on its rank; tensor: it is cut over the tensor ranks.",
            "Smaller products, and an exchange between tensor ranks; Megatron-Core's default is "
            "tensor."),
      word("parallel.expert_exchange", "all_to_all", "all_to_all all_gather",
           "How tokens reach the ranks of their experts: each row to its expert's and back, or all "
           "tokens to all of them, whose results are summed and scattered (Megatron-Core's "
           "allgather dispatcher).",
           "With few ranks, or many experts a token, gathering moves no more rows."),
      field(Form::kSwitch, "parallel.expert_overlap", "false",
            "Experts' exchanges of one micro-batch's forward run beside another's backward, and "
            "the other way round (Megatron-Core's overlap_moe_expert_parallel_comm).",
            "expert_exposed. With pipeline > 1 it needs virtual stages."),
      count("parallel.pipeline", "1", kDegree, "Stages: each holds a stretch of the layers.",
            "Divides weights; costs a bubble, and activations of up to p micro-batches."),
      count("parallel.virtual_stages", "1", {1, 10'000},
            "Stretches of layers (chunks) that a stage holds, interleaved.",
            "Divides the bubble by it; multiplies the messages between stages."),
      count("parallel.data", "what the cluster leaves: devices / (tensor x context x pipeline)",
            kDegree, "Ranks that work on different sequences; they reduce their gradients.",
            "data_exposed, and what sharding divides by."),
      word("parallel.schedule", "1f1b; interleaved with virtual_stages > 1",
           "gpipe 1f1b interleaved", "The order of forward and backward calls on a stage.",
           "gpipe keeps all micro-batches' activations, 1f1b at most p."),
      word("parallel.stages", "\"even\"", "even balanced",
           "How layers are laid on the chunks; or a list, the layers of each chunk in order.",
           "The slowest stage sets the pace; balanced counts embedding and head.",
           Form::kWordOrCounts),
      field(Form::kSwitch, "parallel.pipeline_overlap", "true",
            "Compute does not wait for its sends."),
      field(Form::kSwitch, "parallel.scatter_gather", "true",
            "Without sequence_parallel, each tensor rank sends 1/t of an activation to the next "
            "stage, where it is gathered.",
            "Pipeline traffic, which it divides by tensor."),
      word("parallel.order",
           "[\"tensor\",\"context\",\"expert\",\"data\",\"replica\",\"pipeline\"]",
           "tensor context expert data replica pipeline",
           "Axes from inner to outer: ranks that differ on the first are neighbours in a box.",
           "Which groups stay inside a box.", Form::kWords)};
}

std::vector<Field> memory_fields() {
  return {
      field(Form::kObject, "sharding", "{}",
            "How data and context ranks share the training state."),
      count("sharding.zero", "0", {0, 3},
            "What is sharded: 1 optimizer state, 2 also gradients, 3 also weights (FSDP).",
            "Memory divided by data x context; 3 gathers weights in forward and backward."),
      field(Form::kBytes, "sharding.bucket", "\"200 MB\"",
            "Gradients that are reduced at once, and with zero 3 weights gathered at once.",
            "Large buckets use the links better, small ones start earlier."),
      field(Form::kSwitch, "sharding.all_reduce", "false",
            "With zero 1: gradients are all-reduced, though each rank updates its share only "
            "(DeepSpeed's BF16_Optimizer); else reduce-scattered.",
            "Half as much again of gradient traffic, where both have the same type."),
      field(Form::kSwitch, "sharding.overlap", "true",
            "Gradients are reduced beside backward, weights gathered beside compute.",
            "Without it all of that is in data_exposed."),
      count("sharding.prefetch", "1", {0, 64}, "With zero 3: units gathered ahead of their use.",
            "More hide more and hold more buffers."),
      field(Form::kSwitch, "sharding.flat_weights", "true",
            "With zero 3: gathered weights are used where they came; else each is copied out first "
            "(FSDP2).",
            "One more read and write of every gathered byte, unhidden."),
      count("sharding.shard_group", "0", {0, kRanksMax},
            "Hybrid sharding: ranks that share one copy of the state; 0 means all of data.",
            "Gathers stay within the group; gradients are also reduced between copies."),
      field(Form::kSwitch, "sharding.reshard_after_forward", "true",
            "With zero 3: weights are dropped after forward and gathered again in backward."),
      word("recompute", "\"none\"", "none full selective per_op",
           "What backward computes again instead of keeping it: full keeps each layer's input "
           "only, selective drops the attention core, per_op keeps attention and every second "
           "product of a layer (PyTorch's selective activation checkpointing, in torchtitan).",
           "Fewer activations for up to a third more compute.", Form::kWordOrObject),
      input_only(count("recompute.every", "not given", {1, 10'000},
                       "Keep the input of each group of this many layers, run the group again.")),
      input_only(count("recompute.layers", "not given", {1, 10'000},
                       "Full recomputation of the first layers of each chunk only (Megatron-LM: "
                       "--recompute-method block).")),
      input_only(word("recompute.modules", "not given",
                      "attention_core norm activation mlp attention projection up qkv quantize "
                      "context latent_up",
                      "Run these parts of each layer again.", "", Form::kWords)),
      field(Form::kSwitch, "recompute_early_stop", "false",
            "Full recomputation ends when backward has all that it needs (PyTorch since 2.1): a "
            "layer's last product is not run again.",
            "Up to a quarter of recomputation."),
      field(Form::kObject, "precision", "{}", "The types in which numbers are held."),
      word("precision.compute", "\"bf16\"", "fp32 bf16 fp16 fp8",
           "Weights in use, and activations. With fp8 the products of the layers' weights run in 8 "
           "bits; attention, embedding, head and all that lies between stay in bf16.",
           "The rate of the matrix units; bytes of activations."),
      word("precision.scaling", "\"tensor\" with compute fp8, else \"none\"",
           "none delayed tensor block mx",
           "How 8-bit operands are scaled: one scale a tensor, from its past (delayed) or from one "
           "more read (tensor: current scaling); one for each block of 128 (block) or 32 (mx).",
           "Kernels that quantise; copies for both sides of a matrix."),
      field(Form::kSwitch, "precision.fp8_transposes", "what the device needs",
            "8-bit products read their operands along k only, as on Hopper: what is read along its "
            "other side as well is kept transposed, too. Of one scale a tensor; blocks always are.",
            "A byte more for each weight of a layer."),
      field(Form::kSwitch, "precision.fp8_weights", "false",
            "Weights of the layers are held and gathered in 8 bits only, beside their fp32 masters "
            "(fp8 primary weights, --fp8-param-gather); else an 8-bit copy stands beside them.",
            "Two bytes less for each of these weights, half of their gathers."),
      word("precision.gradients", "the compute type", "fp32 bf16 fp16",
           "Gradient buffers and their reduction.", "Memory, and bytes of gradient reduction."),
      word("precision.master", "\"fp32\"", "fp32 none",
           "Master weights that the optimizer updates; none where the weights are their own.",
           "4 bytes a parameter, sharded from zero 1 on."),
      word("precision.moments", "\"fp32\"", "fp32 bf16 fp16", "The two moments of Adam.",
           "8 bytes a parameter in fp32, sharded from zero 1 on."),
      word("precision.gradient_copy", "\"none\"", "fp32 none",
           "An fp32 copy of the gradients for the update, as Megatron-LM's fp16 mode has.",
           "4 bytes a parameter."),
      count("vocabulary_multiple", "1", {1, 1 << 16},
            "The vocabulary is rounded up to a multiple of this times tensor (Megatron-LM: 128).",
            "Rows of the embedding and of the head."),
      field(Form::kNumber, "capacity_factor", "1",
            "An expert takes up to this times its equal share of a rank's tokens; those beyond "
            "are dropped. 1 is the load of experts in balance; experts / experts_per_token or more "
            "drops nobody.",
            "Time, traffic and memory of the experts."),
      field(Form::kSwitch, "fused_qkv", "true",
            "One matrix product makes queries, keys and values; else three, as in Hugging Face's "
            "and Meta's models.",
            "Times of the products; in backward two sums of their input's gradients."),
      field(Form::kSwitch, "fused_gate_up", "true",
            "One matrix product makes both branches of a gated MLP; else two."),
      word("attention", "\"fused\"", "fused unfused",
           "Fused (flash) attention, or scores and softmax in memory.",
           "Unfused keeps 5 b s s a bytes a layer (2 without dropout)."),
      word("softmax", "\"fused\"", "fused megatron megatron_core",
           "The softmax of unfused attention: one kernel; or Megatron-LM's or Megatron-Core's, "
           "which gives way to PyTorch's where a rank's sequences times heads are no multiple of 4 "
           "(8 up to 128 tokens) or the sequence is beyond 2,048 (Core: 4,096) tokens.",
           "Four more kernels over fp32 scores forward, five backward (Core: one and two)."),
      field(Form::kText, "attention_kernel", "null",
            "The implementation of fused attention, one that the device's profile describes: "
            "flash1, flash2, flash3, cudnn ...; null: its usual one.",
            "Its speed, as it was measured."),
      word("loss", "\"parallel\"", "parallel torch megatron megatron_fused transformer_engine",
           "Whose cross-entropy: one kernel a part; PyTorch's or Megatron-LM's unfused one on an "
           "fp32 copy of the logits; Megatron-LM's fusion; Transformer Engine's, in place.",
           "16, 48, 52, 52 or 10 bytes a logit over the memory bus, on the last stage. Beside the "
           "logits it keeps 4 bytes a token and word of the vocabulary; megatron_fused and torch "
           "8, torch 12 in backward, transformer_engine none."),
      field(Form::kSwitch, "dropout", "the model's", "The model's dropout is active.",
            "Masks are kept for backward."),
      field(Form::kNumber, "dropout_rate", "the model's",
            "The probability that dropout drops an element.",
            "What is trained; no time and no memory."),
      field(Form::kSwitch, "clip_gradients", "true",
            "Clip by the global norm: all ranks reduce it before the update."),
      field(Form::kSwitch, "scan_layers", "false",
            "The layers are one loop (jax.lax.scan): what one saves, masks, 8-bit copies and full "
            "recomputation's inputs apart, is copied into its stack."),
      field(Form::kSwitch, "deterministic", "false",
            "Deterministic algorithms (Megatron-LM's --deterministic-mode): PyTorch fills new "
            "tensors before they are written, and attention's backward adds up in one order.",
            "A launch and a write more for each result of what `filled` names; flash2's backward "
            "leaves multiprocessors idle."),
      word("filled",
           "[\"norm\",\"attention\",\"dropout\",\"loss\",\"copy\",\"exchange\",\"message\"]",
           "product norm attention softmax dropout loss copy exchange message",
           "Whose results the framework makes as uninitialised tensors, which deterministic runs "
           "fill: products of layers' weights, norms, fused attention, softmax and dropout of "
           "unfused attention, the loss's tensors of the logits' size, casts, what tensor ranks "
           "exchange, what stages receive. Left out: PyTorch's own.",
           "", Form::kWords),
      field(Form::kObject, "fusion", "{}",
            "What the framework has fused; what it has not passes through memory once more."),
      field(Form::kSwitch, "fusion.bias_gradients", "true",
            "Bias gradients come with the weight gradients, not by a kernel of their own."),
      field(Form::kSwitch, "fusion.accumulation", "true",
            "Weight gradients are added to their buffer as they are made, not afterwards.",
            "10 bytes a weight and micro-batch with fp32 gradients, 6 with 16 bits, unhidden."),
      field(Form::kSwitch, "fusion.accumulation_cast", "true",
            "What is added to a buffer of another type is not first copied to that type.",
            "8 bytes more a weight and micro-batch, where accumulation is not fused."),
      field(Form::kSwitch, "fusion.norm_gradients", "true",
            "The weight gradients of a norm come with its input gradient; PyTorch's do not.",
            "Else norms are plain kernels, which reach 0.62 of a long stream's rate."),
      field(Form::kSwitch, "fusion.flat_gradients", "true",
            "A shard group's gradients are made side by side, not copied there afterwards (FSDP)."),
      field(Form::kSwitch, "fusion.qkv_gradients", "true",
            "Fused attention makes d_q, d_k and d_v side by side; no copy behind it joins them."),
      field(Form::kSwitch, "fusion.norms", "true",
            "RMSNorm is one kernel; else PyTorch's operations in fp32, one by one."),
      field(Form::kSwitch, "fusion.rotary", "true",
            "Queries and keys are rotated by one kernel; else by three, in fp32."),
      field(Form::kSwitch, "fusion.gates", "true",
            "A gated MLP's activation and product are one kernel."),
      field(Form::kSwitch, "fusion.update", "true",
            "The update is one kernel; else fp32 gradients are unscaled, clipped, copied."),
      field(Form::kSwitch, "fusion.lookups", "true",
            "The embedding is looked up; JAX may multiply a one-hot matrix with the table."),
      field(Form::kSwitch, "fusion.biases", "true",
            "A bias is added as its product is made, not by a pass over the result (XLA)."),
      field(Form::kSwitch, "fusion.softmax", "true",
            "Unfused attention's softmax is one kernel a direction; XLA has three and two."),
      field(Form::kSwitch, "fusion.heads", "true",
            "Products of unfused attention take tokens as they lie, not one matrix a head (XLA)."),
      field(Form::kSwitch, "fusion.norm_sums", "true",
            "A norm is one kernel a direction; XLA reads its fp32 input for each sum and result."),
      field(Form::kSwitch, "fusion.gelu", "true",
            "The gradient of gelu needs its input only, not the fp32 tanh in it, too (XLA)."),
      field(Form::kSwitch, "fusion.dropout", "true",
            "Dropout draws its random bits as it uses them; XLA writes and reads 4 bytes each."),
      field(Form::kSwitch, "fusion.groups", "true",
            "Products of a rank's experts are one kernel; Transformer Engine launches one each."),
      field(Form::kSwitch, "fusion.permutes", "true",
            "Tokens go to experts' slots and back by one kernel (moe_permute_fusion)."),
      field(Form::kSwitch, "fusion.routers", "true",
            "A router's choice is one kernel a direction (moe_router_fusion); else a dozen."),
      field(Form::kSwitch, "fusion.expert_biases", "true",
            "Biases of experts' second products are one kernel; Megatron-Core's are fp32 loops."),
      field(Form::kSwitch, "fusion.scaled_rotary", "true",
            "A rotation with a factor (model.rotary_attention_factor) is one kernel; "
            "Megatron-Core's is six operations."),
      field(Form::kSwitch, "fusion.limits", "true",
            "gpt-oss's SwiGLU limits its input itself; Megatron-Core copies it to do so."),
      field(Form::kSwitch, "fusion.casts", "false",
            "8-bit operands are cast as their input is made (XLA), not by kernels that read it."),
      field(Form::kObject, "host", "{}", "The framework's host side."),
      field(Form::kSwitch, "host.p2p_sync", "false",
            "The host waits for the whole device at every message between stages (Megatron-Core's "
            "batch_p2p_sync); needs pipeline_overlap false.",
            "The launches behind a message are exposed, in other."),
      field(Form::kSwitch, "host.pass_sync", "false",
            "It does so at the end of every forward and backward pass (Megatron-LM until 2022).",
            "Each pass begins with exposed launches, in other."),
      field(Form::kSwitch, "host.route_sync", "false",
            "At every router, forward, the host waits for the number of tokens that each expert "
            "gets (Megatron-Core, unless experts' places are padded); without effect beside "
            "parallel.expert_overlap, where it has issued another pass's work before.",
            "The launches behind a router are exposed, in other."),
      field(Form::kSwitch, "host.optimizer_sync", "false",
            "It reads the norm, or whether a loss scale was too large, before the update.",
            "The update's launches are exposed, in other."),
      field(Form::kSwitch, "host.launch_blocking", "false",
            "The host waits for the device at every kernel, collective and message "
            "(CUDA_LAUNCH_BLOCKING=1); needs pipeline_overlap false and a model without experts.",
            "Nothing runs beside anything, and each kernel's launch is exposed, in other."),
      field(Form::kTime, "host.launch", "the device's",
            "Host time to issue one kernel, collective or message.",
            "The pace of small models, whatever the device."),
      field(Form::kTime, "host.pass", "the device's, or 0",
            "Host time before each forward or backward pass of a chunk's micro-batch: schedule, "
            "batch, autograd's start.",
            "Many small passes (virtual stages) wait for the host."),
      field(Form::kTime, "host.route", "\"0 us\"",
            "Host time, forward and again backward, that a layer with experts takes besides its "
            "kernels: router, counts, where each token goes.",
            "Small models of experts wait for the host."),
      field(Form::kSwitch, "host.graphs", "false",
            "A step is captured once as a CUDA graph and launched whole (execute --cuda-graphs); "
            "launch, pass and route then cost nothing.",
            "Small kernels follow each other without a gap; the host must not wait inside."),
      field(Form::kObject, "allocator", "{}", "PyTorch's caching allocator."),
      field(Form::kSwitch, "allocator.expandable_segments", "false",
            "One growing segment a stream (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True).",
            "Less reserved memory, where many sizes leave gaps."),
      field(Form::kBytes, "allocator.blas_workspace", "null",
            "Workspace of the matrix product library for each host thread "
            "(CUBLAS_WORKSPACE_CONFIG): \"32 MiB\" for :4096:8, which deterministic runs set."),
      field(Form::kObject, "buffers", "{}", "What the framework keeps beside the training state."),
      field(Form::kSwitch, "buffers.weight_gradient_placeholders", "false",
            "A tensor of each shape of a layer's matrices stays, which autograd takes for the "
            "weight gradient (Transformer Engine with fused accumulation).",
            "One layer's matrices in the compute type, more memory."),
      field(Form::kSwitch, "buffers.gather_buffer", "false",
            "The head's gathered input lies in a buffer that stays (Megatron-LM with sequence "
            "parallelism), as do the tokens that ranks of experts gather.",
            "Tokens x hidden x 2 bytes on the last stage; of gathered tokens, on each."),
      field(Form::kSwitch, "buffers.score_buffer", "false",
            "A buffer of the shape of unfused attention's scores stays (Megatron-LM's own "
            "attention).",
            "Heads x sequence x sequence x 2 bytes, once."),
      count("buffers.deferred_head", "0", {0, INT32_MAX},
            "Micro-batches whose logits' gradients wait for the end of the step, where the head's "
            "weight gradient is made of them (Megatron-LM's wgrad_deferral_limit).",
            "Tokens x vocabulary x 2 bytes for each on the last stage."),
      field(Form::kBytes, "buffers.kernel_workspace", "\"0 MB\"",
            "A workspace that a kernel library keeps besides: Transformer Engine has \"32 MiB\" "
            "from Hopper on, \"4 MiB\" before; with experts, whose products run on four streams, "
            "five times that.")};
}

std::vector<Field> question_fields() {
  return {
      field(Form::kObject, "expect", "{}", "Limits that the forecast is held against."),
      field(Form::kTimeLimit, "expect.step_time", "null", "The step must take at most this.",
            "Otherwise the exit code is 1."),
      field(Form::kByteLimit, "expect.peak_memory", "null",
            "The device's total must be at most this.",
            "Otherwise the exit code is 1."),
      field(Form::kObject, "train", "{}", "A whole training run."),
      field(Form::kCountOrText, "train.tokens", "null",
            "Tokens to train on: a count, or text with k, M, B or T, such as \"15T\".",
            "Adds time_to_train to the report.")};
}

}  // namespace

std::vector<Field> what_if_fields() {
  std::vector<Field> all = {field(Form::kText, "name", "MODEL on CLUSTER",
                                  "What the report calls the question."),
                            field(Form::kText, "framework", "null",
                                  "Whose defaults fill in what is not said here: a name "
                                  "(`stepcast list frameworks`) or a path.",
                                  "Fusions, overlap, types, host time; no speed of a device.")};
  append(all, model_fields());
  append(all, cluster_fields());
  append(all, profile_fields());
  append(all, batch_and_parallel_fields());
  append(all, memory_fields());
  append(all, question_fields());
  return all;
}

std::vector<Field> all_fields() {
  std::vector<Field> all = what_if_fields();
  append(all, report_fields());
  append(all, terms());
  return all;
}

}  // namespace stepcast

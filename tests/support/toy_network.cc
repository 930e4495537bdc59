#include "tests/support/toy_network.h"

namespace stepcast {

Network state_network(std::int64_t elements, const Plan& plan) {
  constexpr std::int64_t kColumns = 1000;
  Block block;
  block.name = "state";
  ValueId ids = block.data("ids", {1}, Dtype::kInt64);
  ValueId table = block.weight("table", {elements / kColumns, kColumns}, plan.compute);
  ValueId y = block.activation("y", {1, kColumns}, plan.compute);
  block.add("lookup", Gather{Pass::kForward, 1, kColumns, elements / kColumns, plan.compute,
                             plan.gradients},
            {ids, table}, {y});
  ValueId maximum = block.activation("maximum", {1}, Dtype::kFp32);
  ValueId sums = block.activation("sums", {1, 2}, Dtype::kFp32);
  ValueId loss = block.activation("loss", {1}, Dtype::kFp32);
  ValueId probabilities = block.activation("probabilities", {1, kColumns}, Dtype::kFp32);
  Loss op{LossPart::kMaximum, 1, kColumns, plan.compute, Dtype::kFp32};
  block.add("maximum", op, {y}, {maximum});
  op.part = LossPart::kSums;
  block.add("sums", op, {y, ids, maximum}, {sums});
  op.part = LossPart::kFinish;
  block.add("loss", op, {y, maximum, sums, ids}, {loss, probabilities});
  Network network;
  network.kinds.push_back(std::move(block));
  network.chain = {0};
  return network;
}

Network chain_network(std::int64_t layers, std::int64_t tokens, std::int64_t width,
                      const Plan& plan) {
  Network network;
  const Shape shape = {tokens, width};
  Block first;
  first.name = "first";
  first.numbered = false;
  ValueId ids = first.data("ids", {tokens}, Dtype::kInt64);
  ValueId table = first.weight("table", {16, width}, plan.compute);
  first.y = first.activation("first.out", shape, plan.compute);
  first.add("lookup", Gather{Pass::kForward, tokens, width, 16, plan.compute, plan.gradients},
            {ids, table}, {first.y});

  Block layer;
  layer.name = "layer";
  layer.x = layer.activation("x", shape, plan.compute);
  ValueId w = layer.weight("weight", {width, width}, plan.compute);
  layer.y = layer.activation("layer.out", shape, plan.compute);
  layer.add("product", Gemm{tokens, width, width, 1, GemmRole::kForward, plan.compute, plan.compute,
                            false, false},
            {layer.x, w}, {layer.y});

  Block last;
  last.name = "last";
  last.numbered = false;
  last.x = last.activation("x", shape, plan.compute);
  ValueId targets = last.data("targets", {tokens}, Dtype::kInt64);
  ValueId maximum = last.activation("maximum", {tokens}, Dtype::kFp32);
  ValueId sums = last.activation("sums", {tokens, 2}, Dtype::kFp32);
  ValueId loss = last.activation("loss", {tokens}, Dtype::kFp32);
  ValueId probabilities = last.activation("probabilities", shape, Dtype::kFp32);
  Loss op{LossPart::kMaximum, tokens, width, plan.compute, Dtype::kFp32};
  last.add("maximum", op, {last.x}, {maximum});
  op.part = LossPart::kSums;
  last.add("sums", op, {last.x, targets, maximum}, {sums});
  op.part = LossPart::kFinish;
  last.add("loss", op, {last.x, maximum, sums, targets}, {loss, probabilities});

  network.kinds = {first, layer, last};
  network.chain.push_back(0);
  network.chain.insert(network.chain.end(), static_cast<std::size_t>(layers), 1);
  network.chain.push_back(2);
  return network;
}

Model gpt_model(std::int64_t layers, std::int64_t hidden, std::int64_t heads,
                std::int64_t vocabulary, std::int64_t positions) {
  Model m;
  m.name = "gpt";
  m.layers = layers;
  m.hidden = hidden;
  m.heads = m.kv_heads = heads;
  m.head_dim = hidden / heads;
  m.ffn = 4 * hidden;
  m.vocabulary = vocabulary;
  m.positions = positions;
  m.norm = NormKind::kLayer;
  m.activation = Activation::kGelu;
  m.learned_positions = true;
  m.rotary = false;
  m.qkv_bias = m.attention_output_bias = m.mlp_bias = true;
  m.tied_embeddings = true;
  m.dropout = true;
  return m;
}

Model llama_model(std::int64_t layers, std::int64_t hidden, std::int64_t heads,
                  std::int64_t kv_heads, std::int64_t ffn, std::int64_t vocabulary) {
  Model m;
  m.name = "llama";
  m.layers = layers;
  m.hidden = hidden;
  m.heads = heads;
  m.kv_heads = kv_heads;
  m.head_dim = hidden / heads;
  m.ffn = ffn;
  m.vocabulary = vocabulary;
  m.positions = 131072;
  return m;
}

Plan small_plan(std::int64_t sequence, std::int64_t micro_batch, std::int64_t micro_batches) {
  Plan plan;
  plan.sequence_length = sequence;
  plan.micro_batch = micro_batch;
  plan.global_batch = micro_batch * micro_batches;
  return plan;
}

Bytes resident_bytes(const Job& job, std::size_t stage, Category category) {
  Bytes sum;
  for (const Resident& resident : job.programs[stage].residents) {
    for (TensorId id : job.resident_sets[static_cast<std::size_t>(resident.set)]) {
      const Tensor& tensor = job.tensors[static_cast<std::size_t>(id)];
      if (tensor.category == category) sum += tensor.bytes();
    }
  }
  return sum;
}

Bytes resident_bytes(const Job& job, std::size_t stage) {
  Bytes sum;
  for (Category category : {Category::kWeights, Category::kGradients, Category::kMasterWeights,
                            Category::kOptimizer}) {
    sum += resident_bytes(job, stage, category);
  }
  return sum;
}

}  // namespace stepcast

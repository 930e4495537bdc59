// One pass over the bodies. Initial values: a hash an element, and from it a normal number as Box &
// Muller (1958) make it of two uniform ones.
#include "execute/job_index.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <thread>
#include <vector>

#include "execute/hash.h"

namespace stepcast {

JobIndex::JobIndex(const Job& job)
    : flat_of_(job.tensors.size(), -1),
      share_of_(job.tensors.size(), -1),
      ends_(job.tensors.size(), false),
      gain_(job.tensors.size(), false),
      data_(job.tensors.size(), DataUse::kNone),
      masters_(job.tensors.size()),
      stages_(job.mesh.stages()) {
  for (std::size_t i = 0; i < job.flats.size(); ++i) {
    for (const TensorId id : job.flats[i].whole) flat_of_[at(id)] = static_cast<int>(i);
    for (const TensorId id : job.flats[i].shares) share_of_[at(id)] = static_cast<int>(i);
  }
  for (const Body& body : job.bodies) read_body(job, body);
  // A share of a gradient that both ends hold is held by both as well.
  for (const Flat& flat : job.flats) {
    bool both = false;
    for (const TensorId id : flat.shares) both = both || ends_[at(id)];
    for (const TensorId id : flat.whole) ends_[at(id)] = ends_[at(id)] || both;
  }
  count_layers(job);
}

void JobIndex::read_body(const Job& job, const Body& body) {
  for (const Instruction& instruction : body.code) {
    if (const auto* compute = std::get_if<Compute>(&instruction)) {
      const Op& op = job.ops[static_cast<std::size_t>(compute->op)];
      const TensorId* reads = body.operands.data() + compute->operands.first;
      const auto* norm = std::get_if<Norm>(&op);
      if (norm != nullptr && norm->pass == Pass::kForward) gain_[at(reads[1])] = true;
      if (std::holds_alternative<Gather>(op)) data_[at(reads[0])] = DataUse::kText;
      const auto* loss = std::get_if<Loss>(&op);
      if (loss != nullptr && loss->part == LossPart::kSums) data_[at(reads[1])] = DataUse::kTargets;
      const auto* update = std::get_if<Update>(&op);
      if (update != nullptr && update->part == UpdatePart::kAdamW && update->master) {
        // weights..., master, two moments
        const TensorId* writes = reads + compute->operands.reads;
        const TensorId* master = writes + compute->operands.writes - 3;
        masters_[at(*master)].assign(writes, master);
      }
    } else if (const auto* collective = std::get_if<Collective>(&instruction)) {
      if (!job.transfers[static_cast<std::size_t>(collective->transfer)].ends_only) continue;
      const TensorId* reads = body.operands.data() + collective->operands.first;
      for (int i = 0; i < collective->operands.reads; ++i) ends_[at(reads[i])] = true;
    }
  }
}

// Labels number the layers of a chunk from 0; every layer holds tensors before the step.
void JobIndex::count_layers(const Job& job) {
  for (const Program& program : job.programs) {
    for (const Resident& resident : program.residents) {
      chunks_ = std::max(chunks_, resident.chunk + 1);
    }
    for (const Call& call : program.schedule) chunks_ = std::max(chunks_, call.chunk + 1);
  }
  std::vector<std::int64_t> layers(static_cast<std::size_t>(stages_ * chunks_), 0);
  for (int stage = 0; stage < stages_; ++stage) {
    for (const Resident& resident : job.programs[static_cast<std::size_t>(stage)].residents) {
      std::int64_t& count = layers[static_cast<std::size_t>(resident.chunk * stages_ + stage)];
      for (const TensorId id : job.resident_sets[static_cast<std::size_t>(resident.set)]) {
        count = std::max<std::int64_t>(count, job.tensors[at(id)].label.layer + 1);
      }
    }
  }
  std::int64_t sum = 0;
  for (const std::int64_t count : layers) {
    first_layers_.push_back(sum);
    sum += count;
  }
}

std::int64_t JobIndex::first_layer(int stage, std::int32_t chunk) const {
  return first_layers_[static_cast<std::size_t>(chunk * stages_ + stage)];
}

// An element costs some 50 ns; a model of 10^9 of them takes all cores there are.
void InitialValues::write(TensorId weight, std::int64_t first_layer, std::int64_t begin,
                          std::int64_t count, float* out) const {
  constexpr std::int64_t kShare = 1 << 20;  // elements that a thread is worth
  const std::int64_t cores = std::max(1u, std::thread::hardware_concurrency());
  const std::int64_t shares = std::clamp<std::int64_t>(count / kShare, 1, cores);
  std::vector<std::thread> threads;
  for (std::int64_t i = 1; i < shares; ++i) {
    const std::int64_t from = count * i / shares, to = count * (i + 1) / shares;
    threads.emplace_back([=, this] {
      write_share(weight, first_layer, begin + from, to - from, out + from);
    });
  }
  write_share(weight, first_layer, begin, count / shares, out);
  for (std::thread& thread : threads) thread.join();
}

void InitialValues::write_share(TensorId weight, std::int64_t first_layer, std::int64_t begin,
                                std::int64_t count, float* out) const {
  const Tensor& tensor = job.tensors[static_cast<std::size_t>(weight)];
  if (tensor.shape.rank < 2 || index.is_gain(weight)) {
    std::fill_n(out, count, index.is_gain(weight) ? 1.0f : 0.0f);
    return;
  }
  const std::int64_t columns = tensor.shape.sizes[1];
  const std::int64_t all_columns =
      tensor.cut == Cut::kColumns ? columns * place.tensor_ranks : columns;
  const std::int64_t first_column = tensor.cut == Cut::kColumns ? columns * place.tensor_rank : 0;
  const std::int64_t matrices = std::max<std::int64_t>(tensor.experts, 1);
  const std::int64_t rows = tensor.shape.sizes[0] / matrices;
  const std::int64_t all_rows = tensor.cut == Cut::kRows ? rows * place.tensor_ranks : rows;
  const std::int64_t first_matrix = place.expert_rank * tensor.experts;
  const std::int64_t layer = tensor.label.layer < 0 ? -1 : first_layer + tensor.label.layer;
  const std::uint64_t name =
      hash(hash(seed, job.names[static_cast<std::size_t>(tensor.label.name)]),
           static_cast<std::uint64_t>(layer), 0);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t matrix = first_matrix + (begin + i) / columns / rows;
    std::int64_t row = (begin + i) / columns % rows, before = 0;
    if (tensor.cut == Cut::kRows) {
      // Row r of a part of P rows here is row (tensor rank) P + r of that part in the model.
      std::int64_t part = tensor.parts[0] > 0 ? tensor.parts[0] : rows;
      for (std::size_t p = 1; p < kPartsMax && row >= part && tensor.parts[p] > 0; ++p) {
        row -= part;
        before += part * place.tensor_ranks;
        part = tensor.parts[p];
      }
      row += before + place.tensor_rank * part;
    }
    row += matrix * all_rows;
    const std::int64_t element = row * all_columns + first_column + (begin + i) % columns;
    const std::uint64_t bits = hash(name, 1, static_cast<std::uint64_t>(element));
    const double radius = std::sqrt(-2 * std::log(1 - unit(bits)));
    out[i] =
        static_cast<float>(deviation * radius * std::cos(2 * std::numbers::pi * unit(mix(bits))));
  }
}

}  // namespace stepcast

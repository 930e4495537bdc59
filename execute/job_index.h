// JobIndex: what one rank needs to know of a Job beyond its instructions: which tensors are cut up
// together, which are held twice, what stands for the text, and where a layer is in the model.
#pragma once

#include <cstdint>
#include <vector>

#include "execute/backend.h"
#include "sim/program/program.h"

namespace stepcast {

enum class DataUse : std::uint8_t { kNone, kText, kTargets };

class JobIndex {
 public:
  explicit JobIndex(const Job& job);

  int flat_of(TensorId id) const { return flat_of_[at(id)]; }  // as a whole tensor; -1
  int flat_of_share(TensorId id) const { return share_of_[at(id)]; }
  bool at_both_ends(TensorId gradient) const { return ends_[at(gradient)]; }
  bool is_gain(TensorId weight) const { return gain_[at(weight)]; }  // of a norm: begins at one
  DataUse data_use(TensorId id) const { return data_[at(id)]; }
  // The weights that a master copy is of, as its update names them; null: it is none.
  const std::vector<TensorId>* weights_of(TensorId master) const {
    const std::vector<TensorId>& found = masters_[at(master)];
    return found.empty() ? nullptr : &found;
  }
  std::int64_t first_layer(int stage, std::int32_t chunk) const;  // of all layers of the model
  std::int32_t chunks() const { return chunks_; }

 private:
  static std::size_t at(TensorId id) { return static_cast<std::size_t>(id); }
  void read_body(const Job& job, const Body& body);
  void count_layers(const Job& job);

  std::vector<int> flat_of_, share_of_;
  std::vector<bool> ends_, gain_;
  std::vector<DataUse> data_;
  std::vector<std::vector<TensorId>> masters_;
  std::vector<std::int64_t> first_layers_;  // by part of the model
  int stages_ = 1;
  std::int32_t chunks_ = 1;
};

// Of a flat of n elements over d ranks: the stretches of whole tensors that make up one's share.
struct Piece {
  std::size_t tensor = 0;  // index into Flat::whole
  std::int64_t begin = 0;  // in that tensor
  std::int64_t at = 0;     // in the share
  std::int64_t elements = 0;
};

inline std::int64_t flat_elements(const Job& job, const Flat& flat) {
  std::int64_t sum = 0;
  for (const TensorId id : flat.whole) {
    sum += job.tensors[static_cast<std::size_t>(id)].shape.elements();
  }
  return sum;
}
inline std::int64_t share_elements(const Job& job, const Flat& flat) {
  const std::int64_t ranks = job.mesh.group_size(flat.axes);
  return (flat_elements(job, flat) + ranks - 1) / ranks;
}

template <class Function>
void for_pieces(const Job& job, const Flat& flat, std::int64_t rank, Function function) {
  const std::int64_t share = share_elements(job, flat);
  const std::int64_t first = rank * share, last = first + share;
  std::int64_t from = 0;  // of the tensor, in the flat
  for (std::size_t i = 0; i < flat.whole.size(); ++i) {
    const std::int64_t size = job.tensors[static_cast<std::size_t>(flat.whole[i])].shape.elements();
    const std::int64_t begin = first > from ? first : from;
    const std::int64_t end = last < from + size ? last : from + size;
    if (begin < end) function(Piece{i, begin - from, begin - first, end - begin});
    from += size;
  }
}

// Writes the initial values of a weight's elements [begin, begin + count): ones for a norm's gain,
// zeros for other vectors, and normal numbers of the given deviation for matrices, made from the
// weight's name, its layer in the model and the element's row and column there; those of experts as
// if all of the model's lay one behind the other. So all plans begin with the same weights.
struct InitialValues {
  const Job& job;
  const JobIndex& index;
  const Place& place;
  double deviation = 0.02;
  std::uint64_t seed = 1;

  void write(TensorId weight, std::int64_t first_layer, std::int64_t begin, std::int64_t count,
             float* out) const;

 private:
  void write_share(TensorId weight, std::int64_t first_layer, std::int64_t begin,
                   std::int64_t count, float* out) const;
};

}  // namespace stepcast

// Crossing: how activations and their gradients get from one pipeline stage to the next.
#pragma once

#include "models/body_writer.h"
#include "models/plan.h"
#include "models/sharding.h"

namespace stepcast {

class Crossing {
 public:
  Crossing(Tables& tables, const Plan& plan) : tables_(tables), plan_(plan) {}

  // What crosses in place of `tensor`, a new tensor of the Job; kNoTensor: it crosses itself.
  TensorId slice_of(TensorId tensor) const;
  // `step`: the neighbour, -1 or 1. `slice`: of the tensor, as slice_of() has it.
  void receive(BodyWriter& body, TensorId tensor, Stream stream, int step, TensorId slice) const;
  // Frees the tensor when it has left.
  void send(BodyWriter& body, TensorId tensor, Stream stream, int step, TensorId slice) const;

 private:
  Tables& tables_;
  const Plan& plan_;
};

}  // namespace stepcast

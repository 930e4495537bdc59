// Messages between neighbouring parts of the pipeline, as instructions.
#pragma once

#include "models/body_writer.h"
#include "models/plan.h"
#include "models/sharding.h"

namespace stepcast {

// What crosses: a tensor; where each tensor rank sends only its slice of the rows, that as well.
struct Crossing {
  TensorId tensor = kNoTensor;
  TensorId slice = kNoTensor;
};

// From the part `step` further on the pipeline axis; slices are gathered. Allocates the tensor.
void write_receive(BodyWriter& body, const Crossing& what, Stream stream, int step,
                   const Plan& plan);

// To the part `step` further. What is sent is freed at once for the allocator's book; its memory is
// given back when the send is done with it (as record_stream does). The host does not wait for it
// here: between neighbours that both send first neither would come to its receive.
void write_send(BodyWriter& body, const Crossing& what, Stream stream, int step, const Plan& plan);

}  // namespace stepcast

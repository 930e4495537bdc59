// A message each way, ordered against compute by events; constant cost each.
#include "models/crossing.h"

namespace stepcast {

// A tensor that all tensor ranks hold whole need not cross to the next stage t times: each rank
// sends 1 / t of its rows, and the receivers gather them (Narayanan et al. 2021, section 4.1).
TensorId Crossing::slice_of(TensorId tensor) const {
  if (plan_.tensor == 1 || plan_.sequence_parallel || !plan_.scatter_gather) return kNoTensor;
  Tensor slice = tables_.job().tensors[static_cast<std::size_t>(tensor)];
  const std::int64_t rows = slice.shape.sizes[0];
  if (slice.shape.rank != 2 || rows % plan_.tensor != 0) return kNoTensor;
  slice.shape.sizes[0] = rows / plan_.tensor;
  slice.label = tables_.label("slice", slice.label.layer);
  tables_.job().tensors.push_back(slice);
  return static_cast<TensorId>(tables_.job().tensors.size()) - 1;
}

void Crossing::receive(BodyWriter& body, TensorId tensor, Stream stream, int step,
                       TensorId slice) const {
  const TensorId sent = slice == kNoTensor ? tensor : slice;
  const Transfer transfer{TransferKind::kSendReceive, Axis::kPipeline, false, body.bytes(sent)};
  body.add(Alloc{sent});
  body.add(Receive{tables_.transfer(transfer), sent, tables_.label("receive"), stream,
                   static_cast<std::int8_t>(step)});
  if (slice == kNoTensor) {
    body.order(stream, kReceived, Stream::kCompute);
    return;
  }
  body.add(Alloc{tensor});
  body.order(stream, kReceived, Stream::kTensor);
  body.collective({TransferKind::kAllGather, Axis::kTensor, false, body.bytes(tensor)}, {slice},
                  {tensor}, tables_.label("receive.gather"), Stream::kTensor,
                  stream == Stream::kReceiveForward ? Phase::kForward : Phase::kBackward);
  body.order(Stream::kTensor, kTensorDone, Stream::kCompute);
  body.add(Free{slice});
}

// What is sent is freed at once for the allocator's book; its memory is given back when the send is
// done with it (as record_stream does).
void Crossing::send(BodyWriter& body, TensorId tensor, Stream stream, int step,
                    TensorId slice) const {
  if (slice != kNoTensor) {
    const Tensor& part = tables_.job().tensors[static_cast<std::size_t>(slice)];
    body.add(Alloc{slice});
    body.compute(Pointwise{PointwiseKind::kCast, part.shape.sizes[0], part.shape.sizes[1],
                           part.dtype, part.dtype, false},
                 {tensor}, {slice}, tables_.label("send.slice"),
                 stream == Stream::kSendForward ? Phase::kForward : Phase::kBackward);
    body.add(Free{tensor});
    tensor = slice;
  }
  const Transfer transfer{TransferKind::kSendReceive, Axis::kPipeline, false, body.bytes(tensor)};
  body.order(Stream::kCompute, kSendReady, stream);
  body.add(Send{tables_.transfer(transfer), tensor, tables_.label("send"), stream,
                static_cast<std::int8_t>(step)});
  if (!plan_.pipeline_overlap) body.order(stream, kSent, Stream::kCompute);
  body.add(Free{tensor});
}

}  // namespace stepcast

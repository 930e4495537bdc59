// A tensor that all tensor ranks hold whole need not cross to the next stage t times: each rank
// sends 1 / t of its rows, and the receivers gather them (Narayanan et al. 2021, section 4.1).
//
// Where the host waits for messages, it does so when the message is there, before it issues what
// works on it; then the compute stream has nothing to do either, so it waits for the same.
#include "models/message.h"

namespace stepcast {

void write_receive(BodyWriter& body, const Crossing& what, Stream stream, int step,
                   const Plan& plan) {
  Tables& tables = body.tables();
  const bool sliced = what.slice != kNoTensor;
  const TensorId sent = sliced ? what.slice : what.tensor;
  const Transfer transfer{TransferKind::kSendReceive, Axis::kPipeline, false, body.bytes(sent)};
  body.add(Alloc{sent});
  body.add(Receive{tables.transfer(transfer), sent, tables.label("receive"), stream,
                   static_cast<std::int8_t>(step)});
  if (!sliced || plan.p2p_sync) body.order(stream, kReceived, Stream::kCompute);
  if (plan.p2p_sync) body.add(Synchronize{});
  if (!sliced) return;
  body.add(Alloc{what.tensor});
  body.order(stream, kReceived, Stream::kTensor);
  body.collective({TransferKind::kAllGather, Axis::kTensor, false, body.bytes(what.tensor)},
                  {what.slice}, {what.tensor}, tables.label("receive.gather"), Stream::kTensor,
                  stream == Stream::kReceiveForward ? Phase::kForward : Phase::kBackward);
  body.order(Stream::kTensor, kTensorDone, Stream::kCompute);
  body.add(Free{what.slice});
}

void write_send(BodyWriter& body, const Crossing& what, Stream stream, int step, const Plan& plan) {
  Tables& tables = body.tables();
  TensorId tensor = what.tensor;
  if (what.slice != kNoTensor) {
    const Tensor& part = tables.job().tensors[static_cast<std::size_t>(what.slice)];
    body.add(Alloc{what.slice});
    body.compute(Pointwise{PointwiseKind::kCast, part.shape.sizes[0], part.shape.sizes[1],
                           part.dtype, part.dtype, false},
                 {tensor}, {what.slice}, tables.label("send.slice"),
                 stream == Stream::kSendForward ? Phase::kForward : Phase::kBackward);
    body.add(Free{tensor});
    tensor = what.slice;
  }
  const Transfer transfer{TransferKind::kSendReceive, Axis::kPipeline, false, body.bytes(tensor)};
  body.order(Stream::kCompute, kSendReady, stream);
  body.add(Send{tables.transfer(transfer), tensor, tables.label("send"), stream,
                static_cast<std::int8_t>(step)});
  if (!plan.pipeline_overlap) body.order(stream, kSent, Stream::kCompute);
  body.add(Free{tensor});
}

}  // namespace stepcast

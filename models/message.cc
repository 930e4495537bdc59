// A tensor that all tensor ranks hold whole need not cross to the next stage t times: each rank
// sends 1 / t of its rows, and the receivers gather them (Narayanan et al. 2021, section 4.1).
//
// Where the host waits for messages, it does so when the message is there, before it issues what
// works on it; then the compute stream has nothing to do either, so it waits for the same.
#include "models/message.h"

#include <string_view>

#include "models/fill.h"

namespace stepcast {

namespace {

struct FillLabel {
  std::string_view name;
  Phase phase;
};

void allocate(BodyWriter& body, TensorId tensor, Filled as, const Plan& plan,
              const FillLabel& label) {
  body.add(Alloc{tensor});
  if (!plan.fills(as)) return;
  const Tensor& made = body.tables().job().tensors[static_cast<std::size_t>(tensor)];
  const Pointwise fill = fill_of(made.shape, made.dtype);
  body.compute(fill, {}, {tensor}, body.tables().label(label.name), label.phase);
}

}  // namespace

void write_receive(BodyWriter& body, const Crossing& what, Stream stream, int step,
                   const Plan& plan) {
  Tables& tables = body.tables();
  const bool sliced = what.slice != kNoTensor;
  const TensorId sent = sliced ? what.slice : what.tensor;
  const Transfer transfer{TransferKind::kSendReceive, Axis::kPipeline, false, body.bytes(sent)};
  const Phase phase = stream == Stream::kReceiveForward ? Phase::kForward : Phase::kBackward;
  allocate(body, sent, kFilledMessage, plan, {"receive.fill", phase});
  if (plan.fills(kFilledMessage)) body.order(Stream::kCompute, kComputeReady, stream);
  body.add(Receive{tables.transfer(transfer), sent, tables.label("receive"), stream,
                   static_cast<std::int8_t>(step)});
  const bool waits = plan.host_waits_for_messages();
  if (!sliced || waits) body.order(stream, kReceived, Stream::kCompute);
  if (waits) body.add(Synchronize{});
  if (!sliced) return;
  allocate(body, what.tensor, kFilledExchange, plan, {"receive.gather.fill", phase});
  if (plan.fills(kFilledExchange)) body.order(Stream::kCompute, kComputeReady, Stream::kTensor);
  body.order(stream, kReceived, Stream::kTensor);
  body.collective({TransferKind::kAllGather, Axis::kTensor, false, body.bytes(what.tensor)},
                  {what.slice}, {what.tensor}, tables.label("receive.gather"), Stream::kTensor,
                  phase);
  body.order(Stream::kTensor, kTensorDone, Stream::kCompute);
  body.add(Free{what.slice});
}

void write_send(BodyWriter& body, const Crossing& what, Stream stream, int step, const Plan& plan) {
  Tables& tables = body.tables();
  TensorId tensor = what.tensor;
  if (what.slice != kNoTensor) {
    const Tensor& part = tables.job().tensors[static_cast<std::size_t>(what.slice)];
    const Phase phase = stream == Stream::kSendForward ? Phase::kForward : Phase::kBackward;
    allocate(body, what.slice, kFilledCopy, plan, {"send.slice.fill", phase});
    body.compute(Pointwise{PointwiseKind::kCast, part.shape.sizes[0], part.shape.sizes[1],
                           part.dtype, part.dtype, false},
                 {tensor}, {what.slice}, tables.label("send.slice"), phase);
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

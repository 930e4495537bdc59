// Graphs: what streams were given between the begin and the end of a capture, to be given again at
// each launch, on streams of the graph's own, with moments of the launch's own.
#include <algorithm>

#include "tests/support/fake_cuda/machine.h"

namespace stepcast::fake {

namespace {

Lane& lane_of(CUstream_st& stream) {
  return stream.capture->lanes[stream.capture->lane_of.at(&stream)];
}

void add_lane(const std::shared_ptr<Capture>& capture, CUstream_st& stream) {
  capture->lane_of[&stream] = capture->lanes.size();
  capture->lanes.emplace_back();
  capture->lanes.back().number = stream.number;
  stream.capture = capture;
}

void merge(std::map<std::size_t, std::size_t>& into,
           const std::map<std::size_t, std::size_t>& other) {
  for (const auto& [lane, works] : other) into[lane] = std::max(into[lane], works);
}

// All work of all lanes lies before the end of the first one's.
bool joined(const Capture& capture) {
  const Lane& origin = capture.lanes[0];
  for (std::size_t i = 1; i < capture.lanes.size(); ++i) {
    const auto found = origin.happened.find(i);
    const std::size_t seen = found == origin.happened.end() ? 0 : found->second;
    if (seen < capture.lanes[i].works) return false;
  }
  return true;
}

}  // namespace

cudaError_t wait_in_capture(CUstream_st& on, const MomentPointer& moment) {
  if (moment->capture == nullptr) {
    complain("a captured stream waits for what is not captured");
    return cudaErrorStreamCaptureIsolation;
  }
  if (on.capture == nullptr) {
    // Joins the capture. Which is that of a stream that is still being captured.
    for (const auto& one : machine().streams) {
      if (one->capture.get() != moment->capture) continue;
      add_lane(one->capture, on);
      break;
    }
  }
  if (on.capture.get() != moment->capture) {
    complain("a stream waits for an event of another capture");
    return cudaErrorStreamCaptureIsolation;
  }
  Lane& lane = lane_of(on);
  lane.nodes.push_back({nullptr, nullptr, moment});
  merge(lane.happened, moment->happened);
  return cudaSuccess;
}

void record_in_capture(CUstream_st& on, const MomentPointer& moment) {
  Lane& lane = lane_of(on);
  moment->capture = on.capture.get();
  moment->happened = lane.happened;
  moment->happened[on.capture->lane_of.at(&on)] = lane.works;
  lane.nodes.push_back({nullptr, moment, nullptr});
}

namespace {

using Fresh = std::map<const Moment*, MomentPointer>;

Attempt attempt_of(const Node& node, Fresh& fresh) {
  if (node.issue) return node.issue();
  MomentPointer& moment = fresh[(node.record ? node.record : node.wait).get()];
  if (moment == nullptr) moment = std::make_shared<Moment>();
  if (node.wait) return [moment = moment] { return moment->done; };
  return [moment = moment] { return moment->done = true; };
}

}  // namespace

void launch(const std::vector<Lane>& lanes, CUstream_st& on) {
  Machine& m = machine();
  const auto begin = std::make_shared<Moment>();
  on.queue.push_back([begin] { return begin->done = true; });
  Fresh fresh;
  std::vector<MomentPointer> ends;
  for (const Lane& lane : lanes) {
    auto stream = std::make_unique<CUstream_st>();
    stream->device = on.device;
    stream->number = lane.number;
    stream->closed = true;  // gone when its work is
    stream->queue.push_back([begin] { return begin->done; });
    for (const Node& node : lane.nodes) stream->queue.push_back(attempt_of(node, fresh));
    const MomentPointer end = ends.emplace_back(std::make_shared<Moment>());
    stream->queue.push_back([end] { return end->done = true; });
    m.streams.push_back(std::move(stream));
  }
  for (const MomentPointer& end : ends) on.queue.push_back([end] { return end->done; });
  changed();
  if (m.options.order == Order::kAtOnce) m.run([] { return false; });
}

}  // namespace stepcast::fake

using namespace stepcast::fake;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (const int bad = fault_of("cudaStreamBeginCapture")) return static_cast<cudaError_t>(bad);
  Machine& m = machine();
  const std::lock_guard lock(m.mutex);
  CUstream_st* on = stream == nullptr ? nullptr : m.find(stream, current_device());
  if (on == nullptr || on->capture || mode != cudaStreamCaptureModeThreadLocal) {
    complain("a capture of no stream, or twice, or in a mode that this machine does not know");
    return cudaErrorStreamCaptureUnsupported;
  }
  const auto capture = std::make_shared<Capture>();
  capture->origin = on;
  capture->thread = std::this_thread::get_id();
  add_lane(capture, *on);
  count_capture(1);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const int bad = fault_of("cudaStreamEndCapture");
  Machine& m = machine();
  const std::lock_guard lock(m.mutex);
  CUstream_st* on = stream == nullptr ? nullptr : m.find(stream, current_device());
  if (on == nullptr || !on->capture || on->capture->origin != on) {
    complain("an end of a capture that did not begin there");
    return cudaErrorStreamCaptureUnmatched;
  }
  const std::shared_ptr<Capture> capture = on->capture;
  for (const auto& one : m.streams) {
    if (one->capture == capture) one->capture = nullptr;
  }
  count_capture(-1);
  if (bad != 0) return static_cast<cudaError_t>(bad);
  if (!joined(*capture)) return cudaErrorStreamCaptureUnjoined;
  *graph = new CUgraph_st{std::move(capture->lanes)};
  made("graphs");
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const std::lock_guard lock(machine().mutex);
  if (graph == nullptr) return cudaErrorInvalidValue;
  delete graph;
  made("graphs", -1);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  if (const int bad = fault_of("cudaGraphInstantiate")) return static_cast<cudaError_t>(bad);
  const std::lock_guard lock(machine().mutex);
  *executable = new CUgraphExec_st{graph->lanes};
  made("executable graphs");
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  const std::lock_guard lock(machine().mutex);
  delete graph;
  made("executable graphs", -1);
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  if (const int bad = fault_of("cudaGraphLaunch")) return static_cast<cudaError_t>(bad);
  Machine& m = machine();
  const std::lock_guard lock(m.mutex);
  CUstream_st* on = m.find(stream, current_device());
  if (on == nullptr) return cudaErrorInvalidResourceHandle;
  launch(graph->lanes, *on);
  return cudaSuccess;
}

}  // extern "C"

// A lane is a stream; events stand between its batches. All lanes wait for an event behind some
// long copies, in whose time the host issues what follows, so that the device never waits for it.
#include "execute/cuda/device/bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "execute/convert.h"
#include "execute/cuda/cuda_device.h"
#include "execute/cuda/products.h"
#include "execute/hash.h"
#include "sim/base/error.h"

namespace stepcast::cuda {

namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 30;  // no cache holds a tenth of it
constexpr std::int64_t kPattern = 1 << 19;             // numbers that repeat through all memory
// The host issues a kernel in 10 us or less, the fastest memory yet (8 TB/s) copies 1 GiB in
// 0.13 ms: a copy for every 13 launches. A stream's queue holds 1,024.
constexpr std::int64_t kLaunchesACopy = 13, kQueue = 1024;
constexpr std::size_t kAlignment = 512;

// Numbers as a training's are: what a chip draws, and so its clocks, depends on the bits.
DeviceMemory filled(std::size_t bytes, const char* what) {
  DeviceMemory memory = device_memory(bytes, what);
  std::vector<float> values;
  for (std::int64_t i = 0; i < kPattern; ++i) {
    values.push_back(static_cast<float>(2 * unit(hash(5, 0, static_cast<std::uint64_t>(i))) - 1));
  }
  std::vector<std::byte> stored(static_cast<std::size_t>(kPattern * dtype_size(Dtype::kBf16)));
  from_float(values.data(), kPattern, stored.data(), Dtype::kBf16);
  for (std::size_t at = 0; at < bytes; at += stored.size()) {
    check(cudaMemcpy(memory.get() + at, stored.data(), std::min(stored.size(), bytes - at),
                     cudaMemcpyHostToDevice),
          "filling memory");
  }
  settle();
  return memory;
}

// An eighth of the device's memory at most; four tiles of 128 x 256, as the large products of
// cuBLASLt have them, for each multiprocessor.
BenchSizes sizes_of(const CudaMachine& machine) {
  BenchSizes sizes;
  std::int64_t most = kMost;
  while (most > machine.memory.count / 8) most /= 2;
  sizes.most = Bytes(most);
  const double area = 4.0 * 128 * 256 * machine.multiprocessors;
  sizes.product = static_cast<std::int64_t>(std::ceil(std::sqrt(area) / 256)) * 256;
  return sizes;
}

OwnedStream new_stream(int priority) {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority), "cudaStreamCreate");
  return OwnedStream(stream);
}

std::size_t bytes_of(Bytes bytes) { return static_cast<std::size_t>(bytes.count); }

Tensor matrix(std::int64_t rows, std::int64_t columns, Scope scope) {
  Tensor tensor;
  tensor.shape = {rows, columns};
  tensor.scope = scope;
  return tensor;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

struct CudaBench::BenchProduct {
  explicit BenchProduct(std::int64_t n)
      : size(n),
        a(matrix(n, n, Scope::kMicroBatch)),
        b(matrix(n, n, Scope::kChunk)),
        c(matrix(n, n, Scope::kMicroBatch)),
        memory(filled(3 * static_cast<std::size_t>(a.bytes().count), "a product")) {
    gemm.m = gemm.n = gemm.k = n;
    const auto step = static_cast<std::size_t>(a.bytes().count);
    const Operand reads[] = {{memory.get(), &a}, {memory.get() + step, &b}};
    const Operand writes[] = {{memory.get() + 2 * step, &c}};
    const Op op = gemm;
    products = products_of(gemm, Work{op, reads, writes, place});
  }

  std::int64_t size;
  Gemm gemm;
  Place place;
  Tensor a, b, c;
  DeviceMemory memory;
  Products products;
};

CudaBench::CudaBench(const Job* job, Transport& control, int device, const std::atomic<bool>& stop)
    : job_(job),
      control_(control),
      stop_(stop),
      sizes_((check(cudaSetDevice(device), "cudaSetDevice"), sizes_of(cuda_machine(device)))),
      streamed_(filled(bytes_of(sizes_.most), "timing memory")),
      carried_(filled(bytes_of(sizes_.most), "timing transfers")),
      scratch_(nullptr, [](std::byte*) {}),
      begin_(true),
      end_(true),
      sent_(false),
      received_(false) {
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  compute_ = new_stream(least);  // priorities as a rank's streams have them
  wires_ = new_stream(greatest);
  receives_ = new_stream(greatest);
  workspace_.bytes = workspace_bytes(cuda_machine(device).capability);
  scratch_ = device_memory(workspace_.bytes, "a workspace");
  workspace_.data = scratch_.get();
  matmul_.emplace(workspace_.data, workspace_.bytes);
  // What is loaded at its first launch may wait for the whole device, and so for a collective.
  small_kernel();
  move({true, Bytes(static_cast<std::int64_t>(6 * kAlignment))});
  check(cudaStreamSynchronize(compute_.get()), "the first kernels");
  if (job != nullptr) groups_.emplace(*job, control.rank(), control, stop_, spent_);
}

CudaBench::~CudaBench() = default;

Launch CudaBench::launch() const {
  Launch at;
  at.stream = compute_.get();
  at.scratch = workspace_;
  return at;
}

bool CudaBench::takes_part(const BenchLoad& load) const {
  const auto* wires = std::get_if<TransferLoad>(&load);
  if (wires == nullptr) return true;
  STEPCAST_CHECK(groups_.has_value(), "transfers need a Job's groups");
  const Transfer& transfer = wires->transfer;
  if (transfer.kind == TransferKind::kSendReceive) return groups_->sends(1) || groups_->receives(1);
  const Group group = group_of(job_->mesh, control_.rank(), transfer.axes, transfer.ends_only);
  return std::find(group.members.begin(), group.members.end(), control_.rank()) !=
         group.members.end();
}

cudaStream_t CudaBench::stream_of(const BenchLoad& load) const {
  return std::holds_alternative<TransferLoad>(load) ? wires_.get() : compute_.get();
}

void CudaBench::multiply(const ProductLoad& load) {
  if (product_ == nullptr || product_->size != load.size) {
    product_ = std::make_unique<BenchProduct>(load.size);
  }
  for (const Product& call : product_->products.calls) matmul_->run(call, compute_.get());
}

void CudaBench::move(const MemoryLoad& load) {
  const std::size_t tensors = load.add ? 3 : 2;
  const std::size_t each =
      static_cast<std::size_t>(load.bytes.count) / tensors / kAlignment * kAlignment;
  const std::size_t most = bytes_of(sizes_.most);
  STEPCAST_CHECK(each > 0 && tensors * each <= most, "a MemoryLoad of 1.5 kB to what is most");
  if (next_ + tensors * each > most) next_ = 0;
  std::byte* at = streamed_.get() + next_;
  next_ += tensors * each;
  const std::int64_t elements = static_cast<std::int64_t>(each) / dtype_size(Dtype::kBf16);
  if (!load.add) {
    return launch_convert({at, Dtype::kBf16, elements}, at + each, Dtype::kBf16, launch());
  }
  Pointwise add;
  add.kind = PointwiseKind::kAdd;
  add.rows = 1;
  add.columns = elements;
  const Tensor tensor = matrix(1, elements, Scope::kMicroBatch);
  const Operand reads[] = {{at, &tensor}, {at + each, &tensor}};
  const Operand writes[] = {{at + 2 * each, &tensor}};
  const Place place;
  const Op op = add;
  stepcast::cuda::launch(add, Work{op, reads, writes, place}, launch());
}

// Everything lies end to end and in place, as NCCL likes it best.
void CudaBench::transfer(const TransferLoad& load, cudaStream_t on) {
  const Transfer& transfer = load.transfer;
  STEPCAST_CHECK(transfer.bytes <= sizes_.most, "a transfer of at most what is most");
  if (transfer.kind == TransferKind::kSendReceive) return message(transfer, on);
  const Group group = group_of(job_->mesh, control_.rank(), transfer.axes, transfer.ends_only);
  const Stretch whole{carried_.get(), transfer.bytes.count / dtype_size(Dtype::kBf16),
                      Dtype::kBf16};
  const std::int64_t share = whole.elements / static_cast<std::int64_t>(group.members.size());
  const Stretch mine = whole.part(share * static_cast<std::int64_t>(group.index), share);
  Carried carried;
  switch (transfer.kind) {
    case TransferKind::kAllReduce: carried = {{}, {whole}}; break;
    case TransferKind::kReduceScatter: carried = {{whole}, {mine}}; break;
    default: carried = {{mine}, {whole}};
  }
  groups_->collective(transfer, group, load.stream, carried, on);
}

// Sends and receives at once, each on its own communicator; where nothing else runs, what arrives
// may lie where the copies are.
void CudaBench::message(const Transfer& transfer, cudaStream_t on) {
  const Stretch out{carried_.get(), transfer.bytes.count, Dtype::kUint8};
  const Stretch in{streamed_.get(), transfer.bytes.count, Dtype::kUint8};
  if (groups_->receives(1)) {
    sent_.record(on);
    sent_.hold(receives_.get());
    groups_->receive(1, in, receives_.get());
    received_.record(receives_.get());
  }
  if (groups_->sends(1)) groups_->send(1, out, on);
  if (groups_->receives(1)) received_.hold(on);
}

// One block copies one number.
void CudaBench::small_kernel() {
  launch_convert({streamed_.get(), Dtype::kBf16, 1}, streamed_.get() + kAlignment, Dtype::kBf16,
                 launch());
}

void CudaBench::issue(const BenchLoad& load, cudaStream_t on) {
  match(
      load, [&](const ProductLoad& product) { multiply(product); },
      [&](const MemoryLoad& memory) { move(memory); },
      [&](const TransferLoad& wires) { transfer(wires, on); });
}

// The device copies while the host issues.
void CudaBench::hold_back(std::int64_t launches) {
  const std::int64_t copies = std::min(launches, kQueue) / kLaunchesACopy + 2;
  const std::size_t half = bytes_of(sizes_.most) / 2;
  for (std::int64_t i = 0; i < copies; ++i) {
    check(cudaMemcpyAsync(streamed_.get() + half, streamed_.get(), half, cudaMemcpyDeviceToDevice,
                          compute_.get()),
          "holding back");
  }
}

void CudaBench::wait_for(const Event& event) {
  if (groups_) return groups_->wait_for(event, "a microbenchmark");
  await(event, "a microbenchmark", std::chrono::microseconds(20), [this] {
    if (stop_.load()) throw Error("calibrate", "another rank stopped");
  });
}

std::vector<std::vector<BenchSpan>> CudaBench::run_lanes(std::span<const BenchLane> lanes) {
  std::vector<Course> courses;
  std::int64_t launches = 0;
  for (const BenchLane& lane : lanes) {
    Course& course = courses.emplace_back();
    course.lane = &lane;
    course.stream = stream_of(lane.load);
    if (!takes_part(lane.load)) continue;
    for (int i = 0; i <= lane.batches; ++i) course.marks.emplace_back(true);
    launches += std::int64_t{lane.batches} * (lane.runs + 1);
    if (const auto* product = std::get_if<ProductLoad>(&lane.load)) multiply(*product);
  }
  hold_back(launches);
  begin_.record(compute_.get());
  begin_.hold(wires_.get());
  for (Course& course : courses) {
    if (!course.marks.empty()) course.marks[0].record(course.stream);
  }
  // Whoever is furthest behind gets its next batch, so that no lane's queue fills up alone.
  const auto share = [](const Course& course) {
    return course.marks.empty() ? 1.0 : course.done / static_cast<double>(course.lane->batches);
  };
  const auto behind = [&](const Course& a, const Course& b) { return share(a) < share(b); };
  for (;;) {
    Course& course = *std::min_element(courses.begin(), courses.end(), behind);
    if (share(course) >= 1) break;
    for (int i = 0; i < course.lane->runs; ++i) issue(course.lane->load, course.stream);
    course.marks[static_cast<std::size_t>(++course.done)].record(course.stream);
  }
  sent_.record(wires_.get());
  sent_.hold(compute_.get());
  end_.record(compute_.get());
  wait_for(end_);
  std::vector<std::vector<BenchSpan>> out;
  const auto at = [&](const Event& mark) { return to_seconds(between(begin_, mark)).value; };
  for (const Course& course : courses) {
    std::vector<BenchSpan>& spans = out.emplace_back();
    for (std::size_t i = 1; i < course.marks.size(); ++i) {
      spans.push_back({at(course.marks[i - 1]), at(course.marks[i])});
    }
  }
  return out;
}

LaunchTimes CudaBench::time_launches(int kernels) {
  LaunchTimes times;
  check(cudaStreamSynchronize(compute_.get()), "a stream");
  auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kernels; ++i) small_kernel();
  times.issue = seconds_since(begin) / kernels;
  const auto gap = [&](auto&& launch_all) {
    hold_back(kernels);
    begin_.record(compute_.get());
    launch_all();
    end_.record(compute_.get());
    wait_for(end_);
    return to_seconds(between(begin_, end_)).value / kernels;
  };
  times.gap = gap([&] {
    for (int i = 0; i < kernels; ++i) small_kernel();
  });
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t whole = nullptr;
  check(cudaStreamBeginCapture(compute_.get(), cudaStreamCaptureModeThreadLocal), "a capture");
  for (int i = 0; i < kernels; ++i) small_kernel();
  check(cudaStreamEndCapture(compute_.get(), &graph), "cudaStreamEndCapture");
  const cudaError_t made = cudaGraphInstantiate(&whole, graph, 0);
  cudaGraphDestroy(graph);
  check(made, "cudaGraphInstantiate");
  const std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, decltype(&cudaGraphExecDestroy)>
      owned(whole, &cudaGraphExecDestroy);
  check(cudaGraphLaunch(whole, compute_.get()), "cudaGraphLaunch");  // uploads it
  check(cudaStreamSynchronize(compute_.get()), "a stream");
  begin = std::chrono::steady_clock::now();
  check(cudaGraphLaunch(whole, compute_.get()), "cudaGraphLaunch");
  times.graph_issue = seconds_since(begin);
  times.graph_gap = gap([&] { check(cudaGraphLaunch(whole, compute_.get()), "cudaGraphLaunch"); });
  return times;
}

// A rank that fails ends its communicators, so that nobody waits for its kernels for ever.
std::vector<std::vector<BenchSpan>> CudaBench::run(std::span<const BenchLane> lanes) {
  try {
    return run_lanes(lanes);
  } catch (...) {
    if (groups_) groups_->abort();
    throw;
  }
}

LaunchTimes CudaBench::launches(int kernels) {
  STEPCAST_CHECK(kernels > 0 && kernels < kQueue, "as many launches as a stream's queue holds");
  return time_launches(kernels);
}

}  // namespace stepcast::cuda

namespace stepcast {

std::unique_ptr<Bench> make_cuda_bench(const Job* job, Transport& control, int device,
                                       const std::atomic<bool>& stop) {
  return std::make_unique<cuda::CudaBench>(job, control, device, stop);
}

}  // namespace stepcast

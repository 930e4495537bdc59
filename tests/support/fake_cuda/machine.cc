// One mutex for all; whoever waits for something carries out the work. Memory is mapped page by
// page, with an untouchable page on either side.
#include "tests/support/fake_cuda/machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>

namespace stepcast::fake {

namespace {

constexpr double kPatience = 10'000;  // milliseconds in which nothing at all moves
thread_local int chosen_device = 0;

}  // namespace

Machine& machine() {
  static Machine one;
  return one;
}

double now_milliseconds() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(since).count();
}

CUstream_st* Machine::find(cudaStream_t stream, int device) {
  if (stream == nullptr) return defaults[static_cast<std::size_t>(device)].get();
  for (const auto& one : streams) {
    if (one.get() == stream && !one->closed) return stream;
  }
  complaints.emplace_back("a stream that is none");
  return nullptr;
}

void Machine::append(CUstream_st& stream, const Issue& issue) {
  if (stream.capture) {
    Lane& lane = stream.capture->lanes[stream.capture->lane_of.at(&stream)];
    lane.nodes.push_back({issue, nullptr, nullptr});
    ++lane.works;
    return;
  }
  stream.queue.push_back(issue());
  ++progress;
  moved.notify_all();
  if (options.order == Order::kAtOnce) run([] { return false; });
}

void Machine::protect(int device, bool yes) {
  char& is_open = open[static_cast<std::size_t>(device)];
  if ((is_open == 0) == yes) return;
  is_open = yes ? 0 : 1;
  for (const auto& [address, one] : memory) {
    if (one.device != device) continue;
    mprotect(const_cast<unsigned char*>(address), one.mapped_bytes,
             yes ? PROT_NONE : PROT_READ | PROT_WRITE);
  }
}

std::vector<CUstream_st*> Machine::candidates() {
  std::vector<CUstream_st*> out;
  for (const auto& list : {&defaults, &streams}) {
    for (const auto& one : *list) {
      if (!one->queue.empty()) out.push_back(one.get());
    }
  }
  if (options.order == Order::kAtOnce) return out;
  std::shuffle(out.begin(), out.end(), random);
  const auto first = [&](const CUstream_st* one) {
    return (one->number == options.stream) == (options.order == Order::kEarly);
  };
  if (options.order != Order::kRandom) std::stable_partition(out.begin(), out.end(), first);
  return out;
}

bool Machine::idle(int device) const {
  const auto busy = [&](const auto& one) { return one->device == device && !one->queue.empty(); };
  return std::none_of(streams.begin(), streams.end(), busy) &&
         std::none_of(defaults.begin(), defaults.end(), busy);
}

bool Machine::step() {
  for (CUstream_st* stream : candidates()) {
    bool done = true;
    try {
      done = stream->queue.front()();
    } catch (const std::exception& error) {
      complaints.emplace_back(error.what());
    }
    if (!done) continue;
    stream->queue.pop_front();
    ++progress;
    moved.notify_all();
    return true;
  }
  return false;
}

bool Machine::run(const std::function<bool()>& done) {
  if (done()) return true;
  bool reached = false;
  while (!reached && step()) reached = done();
  for (int device = 0; device < options.devices; ++device) protect(device, true);
  std::erase_if(streams, [](const auto& one) { return one->closed && one->queue.empty(); });
  return reached;
}

Allocation* Machine::allocation(const void* address, std::size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(address);
  auto it = memory.upper_bound(at);
  if (it == memory.begin()) return nullptr;
  --it;
  const auto offset = static_cast<std::size_t>(at - it->first);
  return offset + bytes <= it->second.bytes ? &it->second : nullptr;
}

std::size_t Machine::used(int device) const {
  std::ptrdiff_t sum = held[static_cast<std::size_t>(device)];
  for (const auto& [address, one] : memory) {
    if (one.device == device) sum += static_cast<std::ptrdiff_t>(one.bytes);
  }
  return static_cast<std::size_t>(sum);
}

void Machine::release(std::map<const unsigned char*, Allocation>::iterator it) {
  munmap(it->second.mapped, it->second.mapped_bytes + 2 * kPage);
  memory.erase(it);
}

void Machine::reset(const MachineOptions& from) {
  constexpr std::ptrdiff_t kContext = 4 << 20;
  while (!memory.empty()) release(memory.begin());
  options = from;
  random.seed(options.seed);
  const auto devices = static_cast<std::size_t>(options.devices);
  streams.clear();
  defaults.clear();
  for (std::size_t i = 0; i < devices; ++i) {
    defaults.push_back(std::make_unique<CUstream_st>());
    defaults[i]->device = static_cast<int>(i);
    defaults[i]->number = -1;
  }
  next_number.assign(devices, 0);
  held.assign(devices, kContext);
  under_way.assign(devices, 0);
  open.assign(devices, 0);
  loaded.clear();
  living.clear();
  call_counts.clear();
  device_calls.clear();
  complaints.clear();
  work = 0;
  seen = -1;
  chosen_device = 0;
}

void start(const MachineOptions& options) {
  const std::lock_guard lock(machine().mutex);
  machine().reset(options);
}

std::vector<std::string> complaints() {
  const std::lock_guard lock(machine().mutex);
  return machine().complaints;
}

std::vector<std::string> leaks() {
  const std::lock_guard lock(machine().mutex);
  std::vector<std::string> out;
  for (const auto& [what, count] : machine().living) {
    if (count != 0) out.push_back(std::to_string(count) + " " + what);
  }
  return out;
}

int calls(const std::string& name) {
  const std::lock_guard lock(machine().mutex);
  const auto found = machine().call_counts.find(name);
  return found == machine().call_counts.end() ? 0 : found->second;
}

int calls(const std::string& name, int device) {
  const std::lock_guard lock(machine().mutex);
  const auto found = machine().device_calls.find({name, device});
  return found == machine().device_calls.end() ? 0 : found->second;
}

std::int64_t work_done() {
  const std::lock_guard lock(machine().mutex);
  return machine().work;
}

bool idle(int device) {
  const std::lock_guard lock(machine().mutex);
  return machine().idle(device);
}

std::mutex& mutex() { return machine().mutex; }
int current_device() { return chosen_device; }
void choose_device(int device) { chosen_device = device; }

int fault_on(const char* call, int device) {
  Machine& m = machine();
  ++m.call_counts[call];
  const int number = m.device_calls[{call, device}]++;
  for (const Fault& fault : m.options.faults) {
    if (fault.call == call && fault.device == device && fault.number == number) {
      return fault.status;
    }
  }
  return 0;
}

int fault_of(const char* call) {
  const std::lock_guard lock(machine().mutex);
  return fault_on(call, chosen_device);
}

void complain(std::string what) { machine().complaints.push_back(std::move(what)); }

void hold_memory(int device, std::ptrdiff_t bytes) {
  machine().held[static_cast<std::size_t>(device)] += bytes;
}

void changed() {
  ++machine().progress;
  machine().moved.notify_all();
}

void made(const char* what, int by) { machine().living[what] += by; }

bool Machine::stuck() {
  if (progress != seen) {
    seen = progress;
    seen_at = now_milliseconds();
  }
  if (now_milliseconds() - seen_at < kPatience) return false;
  complain("somebody waits for ever");
  return true;
}

bool wait_until(std::unique_lock<std::mutex>& lock, const std::function<bool()>& done) {
  Machine& m = machine();
  ++m.progress;  // somebody has come
  for (;;) {
    if (m.run(done)) return true;
    if (m.stuck()) return false;
    m.moved.wait_for(lock, std::chrono::milliseconds(2));
  }
}

cudaError_t enqueue(cudaStream_t stream, const Issue& issue, bool asks) {
  Machine& m = machine();
  std::unique_lock lock(m.mutex);
  CUstream_st* on = m.find(stream, chosen_device);
  if (on == nullptr) return cudaErrorInvalidResourceHandle;
  if (!on->capture && on->queue.size() >= m.options.depth &&
      !wait_until(lock, [&] { return on->queue.size() < m.options.depth; })) {
    return cudaErrorLaunchTimeout;
  }
  m.append(*on, [issue, asks, device = on->device] {
    return [attempt = issue(), asks, device] {
      if (!asks) open_memory(device);
      if (!attempt()) return false;
      ++machine().work;
      return true;
    };
  });
  return cudaSuccess;
}

void open_memory(int device) { machine().protect(device, false); }

bool owns(int device, const void* memory, std::size_t bytes) {
  const Allocation* found = machine().allocation(memory, bytes);
  return found != nullptr && found->device == device;
}

void under_way(int device, int by) { machine().under_way[static_cast<std::size_t>(device)] += by; }

void load(std::type_index kernel) {
  Machine& m = machine();
  const std::lock_guard lock(m.mutex);
  if (!m.loaded.emplace(chosen_device, kernel).second) return;
  if (m.under_way[static_cast<std::size_t>(chosen_device)] == 0) return;
  complain("a kernel is loaded while a call of NCCL is under way");
}

std::size_t eager_bytes() { return machine().options.eager; }

}  // namespace stepcast::fake

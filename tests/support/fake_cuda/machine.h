// What the runtime's calls share: streams, events, captures, memory, and who runs next.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <typeindex>
#include <utility>
#include <vector>

#include "tests/support/fake_cuda/fake_cuda.h"

namespace stepcast::fake {

inline constexpr std::size_t kPage = 4096;

struct Capture;

// What an event stood for when it was recorded.
struct Moment {
  bool done = false;
  double milliseconds = 0;
  Capture* capture = nullptr;                   // recorded into a graph
  std::map<std::size_t, std::size_t> happened;  // of a capture: by lane, how much lies before
};
using MomentPointer = std::shared_ptr<Moment>;

// A piece of a graph: work, or a moment to record, or one to wait for.
struct Node {
  Issue issue;
  MomentPointer record, wait;
};

// One captured stream.
struct Lane {
  int number = 0;
  std::vector<Node> nodes;
  std::size_t works = 0;
  std::map<std::size_t, std::size_t> happened;
};

struct Capture {
  CUstream_st* origin = nullptr;
  std::thread::id thread;
  bool broken = false;
  std::map<CUstream_st*, std::size_t> lane_of;
  std::vector<Lane> lanes;
};

struct Allocation {
  std::size_t bytes = 0;
  int device = -1;  // -1: pinned memory of the host
  unsigned char* mapped = nullptr;
  std::size_t mapped_bytes = 0;
};

}  // namespace stepcast::fake

struct CUstream_st {
  int device = 0;
  int number = 0;  // of its device, by creation; -1: the default stream
  bool closed = false;
  std::deque<stepcast::fake::Attempt> queue;
  std::shared_ptr<stepcast::fake::Capture> capture;
};

struct CUevent_st {
  bool timed = false;
  stepcast::fake::MomentPointer last;  // null: never recorded
};

struct CUgraph_st {
  std::vector<stepcast::fake::Lane> lanes;
};

struct CUgraphExec_st {
  std::vector<stepcast::fake::Lane> lanes;
};

namespace stepcast::fake {

struct Machine {
  Machine() { reset({}); }
  void reset(const MachineOptions& from);

  std::mutex mutex;
  std::condition_variable moved;
  MachineOptions options;
  std::mt19937 random;
  std::vector<std::unique_ptr<CUstream_st>> streams;
  std::vector<std::unique_ptr<CUstream_st>> defaults;  // by device
  std::vector<int> next_number;                        // by device
  std::vector<std::ptrdiff_t> held;                    // by device: bytes of libraries
  std::vector<int> under_way;                          // by device: calls of NCCL
  std::set<std::pair<int, std::type_index>> loaded;    // by device: kernels
  std::map<const unsigned char*, Allocation> memory;   // by address
  std::map<std::string, int> living, call_counts;
  std::map<std::pair<std::string, int>, int> device_calls;
  std::vector<std::string> complaints;
  std::int64_t progress = 0, work = 0;
  std::int64_t seen = -1;  // the progress, and since when
  double seen_at = 0;
  std::vector<char> open;  // by device: its memory can be touched

  // The stream that a handle means; null for one that is none.
  CUstream_st* find(cudaStream_t stream, int device);
  void append(CUstream_st& stream, const Issue& issue);
  // Carries out work until `done`; false: nothing can go on.
  bool run(const std::function<bool()>& done);
  bool step();
  std::vector<CUstream_st*> candidates();
  bool idle(int device) const;
  bool stuck();  // nothing has moved for long; asked by who waits
  void protect(int device, bool yes);
  Allocation* allocation(const void* address, std::size_t bytes);
  std::size_t used(int device) const;
  void release(std::map<const unsigned char*, Allocation>::iterator it);
};

Machine& machine();
double now_milliseconds();
void choose_device(int device);
void count_capture(int by);  // of this thread
cudaError_t wait_in_capture(CUstream_st& on, const MomentPointer& moment);
void record_in_capture(CUstream_st& on, const MomentPointer& moment);

}  // namespace stepcast::fake

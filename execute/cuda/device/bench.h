// CudaBench: a GPU as microbenchmarks see it (execute/bench.h), by the very kernels, products and
// communicators that a rank's program runs on.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "execute/bench.h"
#include "execute/cuda/device/event.h"
#include "execute/cuda/device/groups.h"
#include "execute/cuda/device/matmul.h"
#include "execute/cuda/device/memory.h"
#include "execute/cuda/kernels.h"

namespace stepcast::cuda {

class CudaBench : public Bench {
 public:
  // `job`: whose groups transfers are of; null: there are none. `stop`: another rank of this
  // process failed. Throws Error where the device has too little memory left.
  CudaBench(const Job* job, Transport& control, int device, const std::atomic<bool>& stop);
  ~CudaBench() override;  // knows BenchProduct

  BenchSizes sizes() const override { return sizes_; }
  std::vector<std::vector<BenchSpan>> run(std::span<const BenchLane> lanes) override;
  LaunchTimes launches(int kernels) override;

 private:
  // A lane under way.
  struct Course {
    const BenchLane* lane = nullptr;
    cudaStream_t stream = nullptr;
    std::vector<Event> marks;  // the begin, then the end of each batch
    int done = 0;              // batches that were issued
  };
  struct BenchProduct;

  bool takes_part(const BenchLoad& load) const;
  cudaStream_t stream_of(const BenchLoad& load) const;
  void issue(const BenchLoad& load, cudaStream_t on);
  void multiply(const ProductLoad& load);
  void move(const MemoryLoad& load);
  void transfer(const TransferLoad& load, cudaStream_t on);
  void message(const Transfer& transfer, cudaStream_t on);
  void small_kernel();
  void hold_back(std::int64_t launches);
  void wait_for(const Event& event);
  std::vector<std::vector<BenchSpan>> run_lanes(std::span<const BenchLane> lanes);
  LaunchTimes time_launches(int kernels);
  Launch launch() const;

  const Job* job_;
  Transport& control_;
  const std::atomic<bool>& stop_;
  const BenchSizes sizes_;
  OwnedStream compute_, wires_, receives_;
  std::vector<MemoryItem> spent_;
  std::optional<Groups> groups_;
  DeviceMemory streamed_, carried_;  // of MemoryLoads; of transfers
  std::size_t next_ = 0;             // in streamed_: where the next MemoryLoad begins
  DeviceMemory scratch_;
  Workspace workspace_;
  std::optional<Matmul> matmul_;
  std::unique_ptr<BenchProduct> product_;  // the last one
  Event begin_, end_, sent_, received_;
};

}  // namespace stepcast::cuda

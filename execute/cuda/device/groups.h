// Groups: the NCCL communicators of one rank, and what travels on them.
//
// One communicator of all ranks is made from an id that rank 0 hands out over the control
// transport (MPI, or the threads' own), then split as communicators.h plans. Every one is used
// once at the start, all ranks in the same order: NCCL opens its connections at the first call,
// which would block the host where ranks come to it in different orders.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <span>
#include <vector>

#include "execute/bound_job.h"
#include "execute/cuda/communicators.h"
#include "execute/cuda/cuda_device.h"
#include "execute/cuda/device/event.h"
#include "execute/cuda/device/library.h"
#include "execute/transport.h"

namespace stepcast::cuda {

class Groups {
 public:
  // Appends what each communicator took of the device's memory. `stop`: another rank of this
  // process failed; whoever waits gives up.
  Groups(const Job& job, int rank, Transport& control, const std::atomic<bool>& stop,
         std::vector<MemoryItem>& memory);
  ~Groups();
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;

  // What a collective carries, where it lies: in one call where it lies end to end, else piece by
  // piece in one NCCL group (reductions to, broadcasts from, the piece's owner). Nothing is packed.
  void collective(const Transfer& transfer, const Group& members, Stream stream,
                  const Carried& carried, cudaStream_t on);
  void send(int direction, const Stretch& message, cudaStream_t on);
  void receive(int direction, const Stretch& message, cudaStream_t on);

  // Whether this rank's stage does, in that direction.
  bool sends(int direction) const;
  bool receives(int direction) const;

  // Makes a buffer known to the communicators that can use it, until they end; it must outlive
  // them. NCCL asks that all members of a collective pass a registered buffer at the same offset:
  // ranks of a stage lay their arenas out alike, those of different stages do not, so collectives
  // over the pipeline axis are left out. Messages between stages ask for no such thing.
  // REQUIRES: nccl().registers().
  void register_buffer(std::byte* data, std::size_t bytes);

  // For the event, for a communicator that fails, for another rank that did; looks again after
  // every `nap`. Throws Error for the latter two; the caller then aborts.
  void wait_for(const Event& event, const char* what,
                std::chrono::microseconds nap = std::chrono::microseconds(20)) const;
  void abort() noexcept;

 private:
  void check_failures() const;
  void split(Transport& control, std::vector<MemoryItem>& memory, cudaStream_t stream,
             void* numbers);
  void warm_up(const Split& split, ncclComm_t communicator, cudaStream_t stream, void* memory);
  void all_reduce(ncclComm_t communicator, ncclRedOp_t op, std::span<const Stretch> stretches,
                  cudaStream_t on);

  const Job& job_;
  const int rank_;
  const int stage_;
  const std::atomic<bool>& stop_;
  std::vector<Split> splits_;
  ncclComm_t world_ = nullptr;
  std::vector<ncclComm_t> communicators_;  // by split; null where this rank takes no part
  std::vector<void*> registered_;          // by split: the buffer's handle, or null
};

// The stretches as one, where they lie end to end without padding; else one without data.
Stretch end_to_end(std::span<const Stretch> stretches);

// Of a rank that runs without the others: what they would have sent, as numbers of the same kind,
// so that its kernels have what they have in a step. A gather's other parts are copies of this
// rank's, sums are its own summands, a message is made up.
void stand_in(const Transfer& transfer, const Group& members, const Carried& carried,
              cudaStream_t on);
void stand_in(const Stretch& message, cudaStream_t on);

}  // namespace stepcast::cuda

// MPI: ranks as processes, on one machine or many, each started by mpirun or srun.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "execute/execute.h"

namespace stepcast {

// One a process; begins MPI and ends it. Throws Error where this program was built without MPI.
class MpiSession {
 public:
  MpiSession();
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  int rank() const;
  int ranks() const;
  // Among all processes. Sends are MPI's non-blocking ones, each with a copy of its message;
  // reductions are in whatever order MPI takes.
  std::unique_ptr<Transport> transport() const;
  int ranks_here() const;  // of them on this machine
  // Whether all processes run on one machine, and so share a clock.
  bool one_machine() const;
};

// What is behind the processes, "Open MPI v4.1.4"; "" without MPI.
std::string mpi_version();

// The rank that a launcher (mpirun, srun) gave this process, before MPI has begun; 0 without one.
int launched_rank();

// A moment in the recent past, on rank 0's steady clock, for everybody: an epoch of marks. Every
// rank calls it.
std::chrono::steady_clock::time_point common_epoch(Transport& transport);

// Everybody's runs, in the order of the ranks, on rank 0; empty elsewhere. Every rank calls it.
std::vector<RankRun> gather_runs(Transport& transport, const Mesh& mesh, const RankRun& mine);

}  // namespace stepcast

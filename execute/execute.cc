// Threads: one a rank. Who fails aborts the others, which then fail as well; the error that is
// thrown is that of the first to fail.
#include "execute/execute.h"

#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "execute/rank.h"
#include "sim/base/error.h"

namespace stepcast {

std::string executable(const Job& job) {
  if (job.batch == Batch{}) return "the job does not say its batch";
  if (job.mesh.degree(Axis::kContext) > 1 || job.mesh.degree(Axis::kExpert) > 1) {
    return "context and expert parallelism are not carried out yet";
  }
  for (const Op& op : job.ops) {
    const std::string fault = unsupported(op);
    if (!fault.empty()) return fmt::format("'{}': {}", to_text(op), fault);
  }
  for (const Tensor& tensor : job.tensors) {
    if (tensor.dtype == Dtype::kFp32 || tensor.dtype == Dtype::kBf16) continue;
    if (tensor.dtype == Dtype::kInt64) continue;
    return fmt::format("tensor {} is {}; only fp32 and bf16 are carried out yet",
                       label_text(job, tensor.label), dtype_name(tensor.dtype));
  }
  for (const Transfer& transfer : job.transfers) {
    if (transfer.kind == TransferKind::kBroadcast || transfer.kind == TransferKind::kAllToAll) {
      return fmt::format("{} is not carried out yet", transfer_name(transfer.kind));
    }
  }
  for (const Program& program : job.programs) {
    for (const Call& call : program.schedule) {
      if (call.micro_batch < job.batch.micro_batches) continue;
      return fmt::format("micro-batch {} of a batch of {}", call.micro_batch,
                         job.batch.micro_batches);
    }
  }
  return "";
}

RankRun run_rank(const Job& job, const ExecuteOptions& options, const Corpus& corpus,
                 Backend& backend, Transport& transport) {
  Rank rank(job, options, corpus, backend, transport);
  for (std::int64_t step = 0; step < options.steps; ++step) rank.step();
  return rank.finish();
}

std::vector<RankRun> run_threads(const Job& job, const ExecuteOptions& options,
                                 const Corpus& corpus, const MakeBackend& make_backend) {
  const auto transports = make_thread_transports(job.mesh.ranks());
  std::vector<RankRun> runs(transports.size());
  std::exception_ptr first;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < transports.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto backend = make_backend();
        runs[rank] = run_rank(job, options, corpus, *backend, *transports[rank]);
      } catch (...) {
        {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
        transports[rank]->abort();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
  return runs;
}

}  // namespace stepcast

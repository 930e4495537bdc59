// Threads: one a rank. Who fails aborts the others, which then fail as well; the error that is
// thrown is that of the first to fail.
#include "execute/execute.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "execute/rank.h"
#include "sim/base/error.h"

namespace stepcast {

namespace {

std::string dropout_fault(const Job& job, const Op& op) {
  if (job.dropout == 0) return "the job does not say the rate of its dropout";
  const auto* pointwise = std::get_if<Pointwise>(&op);
  if (pointwise == nullptr || !pointwise->scores) return "";
  const std::int64_t positions = job.batch.sequence_length;
  const bool fits = positions % pointwise->columns == 0 &&
                    pointwise->rows % (positions * job.batch.micro_batch) == 0;
  return fits ? "" : "these are not the scores of whole sequences";
}

// Each context rank has its part of every sequence, and knows whose keys it meets.
std::string context_fault(const Job& job, const Attention& op, std::string other) {
  const std::int64_t ranks = job.mesh.degree(Axis::kContext);
  if (!other.empty() || (ranks == 1 && op.source == KeySource::kOwn)) return other;
  const bool whole = has_whole_sequences(op, job.batch.sequence_length);
  if (whole && op.keys == op.queries && op.causal) return "";
  const bool parts = job.batch.sequence_length == ranks * op.queries && op.queries % 2 == 0;
  bool fits = op.causal && op.keys == op.queries;
  if (op.source == KeySource::kGathered) fits = op.causal && op.keys == ranks * op.queries;
  if (op.source == KeySource::kPassed) {
    fits = !op.causal && op.keys == op.queries / 2 && op.step < ranks;
  }
  return parts && fits ? "" : "these are not the queries and keys of two stretches a context rank";
}

// Numbers travel as floats (convert.h) where they are added up or gathered: slots of experts are
// gathered but not added up.
std::string travel_fault(const Job& job, const Body& body, const Collective& collective) {
  const TransferKind kind = job.transfers[static_cast<std::size_t>(collective.transfer)].kind;
  const bool sums = kind == TransferKind::kAllReduce || kind == TransferKind::kReduceScatter;
  if (!sums && kind != TransferKind::kAllGather) return "";
  const Operands& all = collective.operands;
  for (std::int32_t i = all.first; i < all.first + all.reads + all.writes; ++i) {
    const auto id = static_cast<std::size_t>(body.operands[static_cast<std::size_t>(i)]);
    const Dtype dtype = job.tensors[id].dtype;
    if (dtype == Dtype::kFp32 || dtype == Dtype::kBf16) continue;
    if (!sums && dtype == Dtype::kInt32) continue;
    return fmt::format("{} {} {}, which is not carried out", label_text(job, collective.label),
                       sums ? "adds up" : "gathers", dtype_name(dtype));
  }
  return "";
}

}  // namespace

std::string executable(const Job& job) {
  if (job.batch == Batch{}) return "the job does not say its batch";
  for (const Op& op : job.ops) {
    std::string fault = unsupported(op);
    if (fault.empty() && drops(op)) fault = dropout_fault(job, op);
    if (const auto* a = std::get_if<Attention>(&op)) fault = context_fault(job, *a, fault);
    if (!fault.empty()) return fmt::format("'{}': {}", to_text(op), fault);
  }
  for (const Tensor& tensor : job.tensors) {
    if (tensor.dtype == Dtype::kFp32 || tensor.dtype == Dtype::kBf16) continue;
    // Bytes are masks, and buffers that nothing computes on; int32 are slots of experts.
    if (tensor.dtype == Dtype::kInt64 || tensor.dtype == Dtype::kUint8 ||
        tensor.dtype == Dtype::kInt32) {
      continue;
    }
    return fmt::format("tensor {} is {}; only fp32 and bf16 are carried out yet",
                       label_text(job, tensor.label), dtype_name(tensor.dtype));
  }
  for (const Transfer& transfer : job.transfers) {
    if (transfer.kind == TransferKind::kBroadcast) {
      return fmt::format("{} is not carried out yet", transfer_name(transfer.kind));
    }
  }
  for (const Body& body : job.bodies) {
    for (const Instruction& instruction : body.code) {
      const auto* c = std::get_if<Collective>(&instruction);
      if (c == nullptr) continue;
      if (const std::string fault = travel_fault(job, body, *c); !fault.empty()) return fault;
      if (c->pieces == 1) continue;
      return fmt::format("{} is moved in {} pieces, which is forecast but not carried out yet; set "
                         "parallel.tensor_pieces to 1",
                         label_text(job, c->label), c->pieces);
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
                 Backend& backend, Transport& transport, Progress& progress) {
  Rank rank(job, options, corpus, backend, transport, progress);
  transport.sum_everywhere({});  // who begins early would seem to wait for ever
  for (std::int64_t step = 0; step < options.steps; ++step) rank.step();
  return rank.finish();
}

// The threads take orders: so many steps more, or none, which ends them.
class ThreadRanks::Team {
 public:
  Team(const Job& job, const ExecuteOptions& options, const Corpus& corpus,
       const MakeBackend& make_backend)
      : job_(job),
        options_(options),
        corpus_(corpus),
        make_backend_(make_backend),
        transports_(make_thread_transports(job.mesh.ranks())),
        progress_(transports_.size()),
        runs_(transports_.size()),
        ranks_(transports_.size()) {
    for (std::size_t rank = 0; rank < transports_.size(); ++rank) {
      threads_.emplace_back([this, rank] { work(rank); });
    }
    if (options.stuck) {
      watch_.emplace(job, std::span<const Progress>(progress_), options.stuck);
    }
    wait();
  }
  ~Team() { end(); }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  void step(std::int64_t count) {
    check();
    {
      const std::lock_guard lock(mutex_);
      ordered_ = count;
      idle_ = 0;
      ++order_;
    }
    changed_.notify_all();
    wait();
    check();
  }

  std::vector<Marks> last_marks() const {
    std::vector<Marks> marks;
    for (const Rank* rank : ranks_) marks.push_back(rank->last_marks());
    return marks;
  }

  std::vector<RankRun> finish() {
    check();
    end();
    check();
    return std::move(runs_);
  }

 private:
  void work(std::size_t number) {
    std::uint64_t seen = 0;
    try {
      const auto backend = make_backend_();
      Rank rank(job_, options_, corpus_, *backend, *transports_[number], progress_[number]);
      ranks_[number] = &rank;
      while (const std::int64_t count = next_order(seen)) {
        for (std::int64_t step = 0; step < count; ++step) rank.step();
      }
      runs_[number] = rank.finish();
    } catch (...) {
      {
        const std::lock_guard lock(mutex_);
        if (!first_) first_ = std::current_exception();
      }
      progress_[number].rest();
      transports_[number]->abort();
      while (next_order(seen) != 0) {
      }
    }
  }

  // Says that this rank is idle, and waits for an order that it has not seen.
  std::int64_t next_order(std::uint64_t& seen) {
    std::unique_lock lock(mutex_);
    if (order_ > 0 && ordered_ == 0) return 0;  // that was the last one
    if (++idle_ == transports_.size()) done_.notify_all();
    changed_.wait(lock, [&] { return order_ != seen; });
    seen = order_;
    return ordered_;
  }

  void wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return idle_ == transports_.size(); });
  }

  void check() {
    if (first_) std::rethrow_exception(first_);
  }

  void end() {
    if (threads_.empty()) return;
    {
      const std::lock_guard lock(mutex_);
      ordered_ = 0;
      ++order_;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    watch_.reset();
  }

  const Job& job_;
  const ExecuteOptions& options_;
  const Corpus& corpus_;
  const MakeBackend make_backend_;
  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<Progress> progress_;
  std::vector<RankRun> runs_;
  std::vector<Rank*> ranks_;  // each lives on its thread

  std::mutex mutex_;
  std::condition_variable changed_, done_;
  std::uint64_t order_ = 0;
  std::int64_t ordered_ = 0;  // steps
  std::size_t idle_ = 0;
  std::exception_ptr first_;
  std::vector<std::thread> threads_;
  std::optional<Watch> watch_;
};

ThreadRanks::ThreadRanks(const Job& job, const ExecuteOptions& options, const Corpus& corpus,
                         const MakeBackend& make_backend)
    : team_(std::make_unique<Team>(job, options, corpus, make_backend)) {}
ThreadRanks::~ThreadRanks() = default;
void ThreadRanks::step(std::int64_t count) { team_->step(count); }
std::vector<Marks> ThreadRanks::last_marks() const { return team_->last_marks(); }
std::vector<RankRun> ThreadRanks::finish() { return team_->finish(); }

std::vector<RankRun> run_threads(const Job& job, const ExecuteOptions& options,
                                 const Corpus& corpus, const MakeBackend& make_backend) {
  ThreadRanks ranks(job, options, corpus, make_backend);
  ranks.step(options.steps);
  return ranks.finish();
}

}  // namespace stepcast

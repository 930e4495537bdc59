// Rank: the interpreter of one rank's program.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "execute/arena.h"
#include "execute/execute.h"
#include "execute/job_index.h"

namespace stepcast {

class Rank {
 public:
  Rank(const Job& job, const ExecuteOptions& options, const Corpus& corpus, Backend& backend,
       Transport& transport, Progress& progress);

  void step();
  RankRun finish();
  // Of the last step; REQUIRES: it was recorded.
  const Marks& last_marks() const { return result_run_.marks.back(); }

 private:
  using Clock = std::chrono::steady_clock;

  // What a collective carries, as stretches of tensors: a list for each member's piece.
  struct Stretch {
    float* data = nullptr;   // null: padding
    std::int64_t elements = 0;
  };

  const Tensor& tensor(TensorId id) const { return job_.tensors[static_cast<std::size_t>(id)]; }
  std::byte*& slot(TensorId id, const Call& call);
  float* values(TensorId id) { return reinterpret_cast<float*>(slot(id, call_)); }
  std::span<const TensorId> ids(const Body& body, Operands operands, bool writes) const;

  void place_residents();
  void initialise(TensorId id, std::int32_t chunk);
  void load_tokens(const Call& call);

  void begin_record();
  void run_schedule();
  void run(const Body& body, const Call& call);
  void carry_out(const Body& body, const Instruction& instruction);
  void keep_books(const Instruction& instruction);
  void check_numbers(const Body& body, const Compute& compute, std::int32_t number);
  void compute(const Body& body, const Compute& compute);
  void squared_norm(const Update& op, std::span<const TensorId> reads);
  double counted_norm(TensorId gradient, const float* data, std::int64_t elements) const;
  void update(std::span<const TensorId> reads, std::span<const TensorId> writes);
  void count_loss(TensorId losses);

  void collective(const Body& body, const Collective& collective);
  const Group& group(const Transfer& transfer);
  void collect(std::span<const TensorId> tensors, std::vector<Stretch>& out);
  void collect_share(std::span<const TensorId> tensors, std::int64_t member,
                     std::vector<Stretch>& out);
  bool is_flat(std::span<const TensorId> tensors) const;
  std::span<float> pack(const std::vector<Stretch>& stretches, std::vector<float>& buffer);
  static std::int64_t total(const std::vector<Stretch>& stretches);
  static void unpack(std::span<const float> values, const std::vector<Stretch>& stretches);
  void all_reduce(const Transfer& transfer, std::span<const TensorId> tensors);
  void reduce_scatter(const Transfer& transfer, std::span<const TensorId> reads,
                      std::span<const TensorId> writes);
  void all_gather(const Transfer& transfer, std::span<const TensorId> reads,
                  std::span<const TensorId> writes);
  void count_sent(const Transfer& transfer, std::int64_t elements);

  const Job& job_;
  const ExecuteOptions& options_;
  const Corpus& corpus_;
  Backend& backend_;
  Transport& transport_;
  Progress& progress_;
  const int rank_;
  const JobIndex index_;
  Place place_;
  const int stage_;
  const std::int64_t data_rank_;     // coordinate on the data axis: which share of a flat
  const std::int64_t batch_rank_;    // among data x replica: which part of the batch
  Arena arena_;

  std::vector<std::byte*> slots_;    // by scope, chunk, micro-batch, tensor
  std::map<std::pair<std::uint8_t, bool>, Group> groups_;  // by axes, ends_only
  Call call_;
  std::vector<Operand> reads_, writes_;
  std::vector<Stretch> stretches_;
  std::vector<float> packed_, result_;  // staging of collectives; grows in the first step
  std::vector<std::int64_t> sequence_;  // one sequence and the token after it

  std::int64_t step_ = 0;
  double loss_ = 0;           // sum over this rank's tokens
  Clock::time_point begin_;   // of the step
  Clock::time_point entry_;   // when the last instruction that takes time had its end
  Clock::duration waited_;    // of the instruction at hand, for a message
  Part part_ = Part::kOther;  // that its time goes to
  std::size_t timed_ = 0;     // instructions of a step that take time
  RankRun result_run_;
};

}  // namespace stepcast

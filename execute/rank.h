// Rank: the interpreter of one rank's program.
#pragma once

#include <array>
#include <chrono>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "execute/arena.h"
#include "execute/bound_job.h"
#include "execute/execute.h"

namespace stepcast {

class Rank : private BoundJob {
 public:
  Rank(const Job& job, const ExecuteOptions& options, const Corpus& corpus, Backend& backend,
       Transport& transport, Progress& progress);

  void step();
  RankRun finish();
  // Of the last step; REQUIRES: it was recorded.
  const Marks& last_marks() const { return result_run_.marks.back(); }

 private:
  using Clock = std::chrono::steady_clock;

  float* values(TensorId id) { return reinterpret_cast<float*>(slot(id, call_)); }

  void place_residents();
  void load_tokens(const Call& call);

  void begin_record();
  void run_schedule();
  void run(const Body& body, const Call& call);
  void carry_out(const Body& body, const Instruction& instruction);
  void keep_books(const Instruction& instruction);
  void check_numbers(const Body& body, const Compute& compute, std::int32_t number);
  void compute(const Body& body, const Compute& compute);
  const float* floats(const Stretch& stretch, std::vector<float>& buffer);
  void squared_norm(const Update& op, std::span<const TensorId> reads);
  void update(const Update& op, std::span<const TensorId> reads, std::span<const TensorId> writes);
  void update(const StateStretch& state, double scale);
  void count_loss(TensorId losses);

  void collective(const Body& body, const Collective& collective);
  const Group& group(const Transfer& transfer);
  std::span<float> pack(std::span<const Stretch> stretches, std::vector<float>& buffer);
  static void unpack(std::span<const float> values, std::span<const Stretch> stretches);
  void all_reduce(const Transfer& transfer, const Group& members, Stream stream);
  void shift(const Transfer& transfer, const Group& members, Stream stream);
  void all_to_all(const Transfer& transfer, const Group& members, Stream stream);
  void count_sent(const Transfer& transfer, Stream stream, std::span<const Stretch> stretches);

  const ExecuteOptions& options_;
  const Corpus& corpus_;
  Backend& backend_;
  Transport& transport_;
  Progress& progress_;
  Arena arena_;

  std::map<std::pair<std::uint8_t, bool>, Group> groups_;  // by axes, ends_only
  std::vector<Operand> reads_, writes_;
  Carried carried_;
  std::vector<float> packed_, result_;      // staging of collectives; grows in the first step
  std::array<std::vector<float>, 4> wide_;  // of an update whose numbers are not float

  std::int64_t step_ = 0;
  std::uint32_t dropout_step_ = 0;  // the same, as dropout counts it
  double loss_ = 0;           // sum over this rank's tokens
  Clock::time_point begin_;   // of the step
  Clock::time_point entry_;   // when the last instruction that takes time had its end
  Clock::duration waited_;    // of the instruction at hand, for a message
  Part part_ = Part::kOther;  // that its time goes to
  std::size_t timed_ = 0;     // instructions of a step that take time
  std::vector<bool> reads_tokens_;  // by body
  RankRun result_run_;
};

}  // namespace stepcast

// Rank: the interpreter of one rank's program.
#pragma once

#include <array>
#include <chrono>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "execute/arena.h"
#include "execute/binding.h"
#include "execute/execute.h"

namespace stepcast {

class Rank : private Binding {
 public:
  Rank(const Job& job, const ExecuteOptions& options, const Corpus& corpus, Backend& backend,
       Transport& transport);

  void step();
  RankRun finish();

 private:
  using Clock = std::chrono::steady_clock;

  float* values(TensorId id) { return reinterpret_cast<float*>(slot(id, call_)); }

  void place_residents();
  void load_tokens(const Call& call);

  void run(const Body& body, const Call& call);
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
  void all_reduce(const Transfer& transfer, const Group& members);
  void count_sent(const Transfer& transfer, std::span<const Stretch> stretches);

  void spend(Part part, Clock::time_point begin, Clock::time_point end);

  const ExecuteOptions& options_;
  const Corpus& corpus_;
  Backend& backend_;
  Transport& transport_;
  Arena arena_;

  std::map<std::pair<std::uint8_t, bool>, Group> groups_;  // by axes, ends_only
  std::vector<Operand> reads_, writes_;
  Carried carried_;
  std::vector<float> packed_, result_;      // staging of collectives; grows in the first step
  std::array<std::vector<float>, 4> wide_;  // of an update whose numbers are not float

  std::int64_t step_ = 0;
  double loss_ = 0;          // sum over this rank's tokens
  Clock::time_point begin_;  // of the step
  RankRun result_run_;
};

}  // namespace stepcast

// Plans whose training is held against one rank's: any legal plan trains the same model, so the
// losses of 12 steps are those of one rank, up to the order of float sums.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "models/model.h"
#include "models/plan.h"

namespace stepcast {

namespace toy {
// A vocabulary that no tensor degree divides, and more positions than the sequence has.
Model gpt(std::int64_t layers);
Model llama(std::int64_t layers);
// Norms of queries and keys, a bias on qkv alone, tied embeddings, a norm behind each branch.
Model qwen(std::int64_t layers);
// With four experts of width 12, two a token.
Model of_experts(Model model);
}  // namespace toy

struct TrainingCase {
  std::string name;
  Model (*model)(std::int64_t layers);
  std::int64_t layers = 2;
  Plan plan;
};
inline void PrintTo(const TrainingCase& one, std::ostream* out) { *out << one.name; }

class TrainingCases {
 public:
  // Starts from one rank's plan, with 8 sequences of 8 tokens and room for all tokens in each
  // expert: then no layout drops another token than one rank does. `change` makes it another.
  template <class Change>
  TrainingCases& add(std::string name, Model (*model)(std::int64_t), std::int64_t layers,
                     Change change) {
    TrainingCase one{std::move(name), model, layers, first_plan(model(layers))};
    change(one.plan);
    cases_.push_back(std::move(one));
    return *this;
  }
  const std::vector<TrainingCase>& all() const { return cases_; }

 private:
  static Plan first_plan(const Model& model);
  std::vector<TrainingCase> cases_;
};

// Changes of a plan that many cases make.
void pipeline(Plan& plan, std::int64_t stages, PipelineSchedule schedule,
              std::int64_t virtual_stages = 1);
// Queries, keys and values, gate and up: products of their own.
void separate(Plan& plan);

inline constexpr std::int64_t kTrainingSteps = 12;
// Of the same model without any saving.
const std::vector<double>& losses_of_one_rank(const TrainingCase& one);

}  // namespace stepcast

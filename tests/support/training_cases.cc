// One rank's losses are worked out once for all cases that share them.
#include "tests/support/training_cases.h"

#include <map>
#include <string>

#include "tests/support/toy_network.h"
#include "tests/support/train.h"

namespace stepcast {

namespace toy {

Model gpt(std::int64_t layers) { return gpt_model(layers, 16, 4, 61, 12); }
Model llama(std::int64_t layers) { return llama_model(layers, 16, 4, 2, 24, 61); }

Model qwen(std::int64_t layers) {
  Model model = llama_model(layers, 16, 4, 4, 24, 61);
  model.qk_norm = model.qkv_bias = model.tied_embeddings = model.post_norms = true;
  model.activation = Activation::kGeglu;
  return model;
}

Model of_experts(Model model) {
  model.experts = 4;
  model.experts_per_token = 2;
  model.expert_ffn = 12;
  return model;
}

}  // namespace toy

Plan TrainingCases::first_plan(const Model& model) {
  Plan plan = executable_plan(8, 8);
  if (model.experts == 0) return plan;
  plan.capacity_factor =
      static_cast<double>(model.experts) / static_cast<double>(model.experts_per_token);
  return plan;
}

void pipeline(Plan& plan, std::int64_t stages, PipelineSchedule schedule,
              std::int64_t virtual_stages) {
  plan.pipeline = stages;
  plan.schedule = schedule;
  plan.virtual_stages = virtual_stages;
}

void separate(Plan& plan) { plan.fused_qkv = plan.fused_gate_up = false; }

const std::vector<double>& losses_of_one_rank(const TrainingCase& one) {
  static std::map<std::string, std::vector<double>> known;
  const Model model = one.model(one.layers);
  const std::string key =
      model.name + (model.qk_norm ? "qk" : "") + std::to_string(one.layers) + "of" +
      std::to_string(model.experts) + (one.plan.clip_gradients ? "" : "free") +
      std::to_string(one.plan.document_length) + (one.plan.fused_qkv ? "" : "heads") +
      (one.plan.fused_gate_up ? "" : "branches") + (one.plan.dropout ? "dropout" : "") +
      std::to_string(one.plan.capacity_factor);
  auto& losses = known[key];
  if (losses.empty()) {
    Plan plan = executable_plan(one.plan.sequence_length, one.plan.global_batch);
    plan.clip_gradients = one.plan.clip_gradients;
    plan.document_length = one.plan.document_length;
    plan.dropout = one.plan.dropout;
    plan.fused_qkv = one.plan.fused_qkv;
    plan.fused_gate_up = one.plan.fused_gate_up;
    plan.capacity_factor = one.plan.capacity_factor;
    losses = train(lowered(model, plan), train_options(kTrainingSteps))[0].losses;
  }
  return losses;
}

}  // namespace stepcast

// The schedules of the runs in combination_run.hpp.

#pragma once

#include <torch/torch.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "linkboy/schedulers.hpp"
#include "support/combination.hpp"

namespace linkboy::testing {

/// A schedule in timm's style whose state is more than the learning rates.
class CountingSteps : public TimmSteps {
 public:
  explicit CountingSteps(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {}
  void step(int64_t epoch, std::optional<double> metric) override {
    factor_ *= metric && *metric > 1.0 ? 0.9 : 0.7;
    multiply(epoch % 2 == 0 ? factor_ : 1.1);
  }
  void step_update(int64_t num_updates, std::optional<double>) override {
    if (num_updates % 3 == 0) multiply(0.8);
  }
  StateDict state_dict() const override { return {{"factor", factor_}}; }
  void load_state_dict(const StateDict& state) override { factor_ = state.get_double("factor"); }

 private:
  void multiply(double factor) {
    for (auto& group : optimizer_.param_groups()) {
      group.options().set_lr(group.options().get_lr() * factor);
    }
  }

  torch::optim::Optimizer& optimizer_;
  double factor_ = 1.0;
};

/// Returns a function for `TrainOptions::create_scheduler_fn`; empty if there is no schedule.
inline CreateSchedulerFn schedule_of(const Combination& combination) {
  const bool has_momentum = combination.matches("optimizer=momentum|adam|adamw");
  const PerGroup max_lr = combination.has("param_groups") ? PerGroup({0.2, 0.1}) : PerGroup(0.2);
  const std::string monitor = combination.is("evaluation", "none") ? "" : "eval_loss_epoch";
  const auto decay = exponential({.gamma = 0.9});
  const auto plateau = reduce_on_plateau({.factor = 0.5, .patience = 0, .threshold = 0.5});
  const auto factor = [](int64_t n) { return n % 3 == 1 ? 0.5 : 1.0 / (1.0 + 0.1 * n); };
  std::vector<CreateSchedulerFn> parts{decay, step_decay({.step_size = 3, .gamma = 0.5})};
  if (!combination.is("optimizer", "lbfgs")) {
    parts.push_back(polynomial({.num_updates = 5, .field = ParamGroupField::weight_decay}));
  }
  const std::map<std::string, CreateSchedulerFn> all{
      {"none", {}},
      {"cosine", cosine({.warmup_updates = 1, .cooldown_updates = 1})},
      {"step", step_decay({.step_size = 2, .gamma = 0.5})},
      {"wsd", wsd({.warmup_updates = 1})},
      {"one_cycle", one_cycle({.max_lr = max_lr, .cycle_momentum = has_momentum})},
      {"plateau", plateau},
      {"epoch_plateau", by_epoch(plateau)},
      {"exponential", decay},
      {"restarts", cosine_restarts({.first_cycle_updates = 2})},
      {"warmup", warmup({.scheduler = decay, .warmup_updates = 2})},
      {"inverse_sqrt", inverse_sqrt({.warmup_updates = 2})},
      {"multi_step", multi_step({.milestones = std::vector<RunExpression>{2, 5}, .gamma = 0.5})},
      {"constant", constant({.num_updates = 3})},
      {"linear", linear()},
      {"polynomial", polynomial({.num_updates = 6, .power = 2.0, .min_lr = 0.01})},
      {"tanh", tanh_decay()},
      {"cyclic", cyclic({.step_size_up = 2,
                         .mode = CyclicSchedulerOptions::Mode::triangular2,
                         .cycle_momentum = has_momentum})},
      {"by_epoch", by_epoch(decay)},
      {"timm", timm_schedule({.scheduler = cosine()})},
      {"timm_steps", timm_steps({.scheduler =
                                     [](torch::optim::Optimizer& optimizer, const RunConfig&) {
                                       return std::make_unique<CountingSteps>(optimizer);
                                     },
                                 .monitor = monitor})},
      {"sequential",
       sequential(
           {.schedulers = std::vector<CreateSchedulerFn>{constant({.num_updates = 1}), decay},
            .milestones = {3}})},
      {"sequential_plateau",
       sequential(
           {.schedulers = std::vector<CreateSchedulerFn>{decay, plateau}, .milestones = {2}})},
      {"chained", chained({.schedulers = parts})},
      {"lambda", lambda_schedule({.lr_lambda = {factor}})},
      {"product", lambda_schedule({.lr_lambda = {factor}, .is_multiplicative = true})},
      {"torch",
       torch_schedule({.scheduler = [](torch::optim::Optimizer& optimizer, const RunConfig&) {
         return std::make_unique<torch::optim::StepLR>(optimizer, 2, 0.5);
       }})}};
  return all.at(combination["schedule"]);
}

}  // namespace linkboy::testing

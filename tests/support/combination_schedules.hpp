// The schedules of the runs in combination_run.hpp.

#pragma once

#include <torch/torch.h>

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
  const std::string& name = combination["schedule"];
  const bool has_momentum = combination.matches("optimizer=momentum|adam|adamw");
  const bool has_groups = combination.has("param_groups");
  const auto decay = exponential({.gamma = 0.9});
  const auto plateau = reduce_on_plateau({.factor = 0.5, .patience = 0, .threshold = 0.5});
  if (name == "cosine") return cosine({.warmup_updates = 1, .cooldown_updates = 1});
  if (name == "step") return step_decay({.step_size = 2, .gamma = 0.5});
  if (name == "wsd") return wsd({.warmup_updates = 1});
  if (name == "one_cycle") {
    const PerGroup max_lr = has_groups ? PerGroup({0.2, 0.1}) : PerGroup(0.2);
    return one_cycle({.max_lr = max_lr, .cycle_momentum = has_momentum});
  }
  if (name == "plateau") return plateau;
  if (name == "epoch_plateau") return by_epoch(plateau);
  if (name == "exponential") return decay;
  if (name == "restarts") return cosine_restarts({.first_cycle_updates = 2});
  if (name == "warmup") return warmup({.scheduler = decay, .warmup_updates = 2});
  if (name == "inverse_sqrt") return inverse_sqrt({.warmup_updates = 2});
  if (name == "multi_step") {
    return multi_step({.milestones = std::vector<RunExpression>{2, 5}, .gamma = 0.5});
  }
  if (name == "constant") return constant({.num_updates = 3});
  if (name == "linear") return linear();
  if (name == "polynomial") return polynomial({.num_updates = 6, .power = 2.0, .min_lr = 0.01});
  if (name == "tanh") return tanh_decay();
  if (name == "cyclic") {
    return cyclic({.step_size_up = 2,
                   .mode = CyclicSchedulerOptions::Mode::triangular2,
                   .cycle_momentum = has_momentum});
  }
  if (name == "by_epoch") return by_epoch(decay);
  if (name == "timm") return timm_schedule({.scheduler = cosine()});
  if (name == "timm_steps") {
    return timm_steps(
        {.scheduler = [](torch::optim::Optimizer& optimizer,
                         const RunConfig&) { return std::make_unique<CountingSteps>(optimizer); },
         .monitor = combination.is("evaluation", "none") ? "" : "eval_loss_epoch"});
  }
  if (name == "sequential") {
    return sequential(
        {.schedulers = std::vector<CreateSchedulerFn>{constant({.num_updates = 1}), decay},
         .milestones = {3}});
  }
  if (name == "sequential_plateau") {
    return sequential(
        {.schedulers = std::vector<CreateSchedulerFn>{decay, plateau}, .milestones = {2}});
  }
  if (name == "chained") {
    std::vector<CreateSchedulerFn> parts{decay, step_decay({.step_size = 3, .gamma = 0.5})};
    if (!combination.is("optimizer", "lbfgs")) {
      parts.push_back(polynomial({.num_updates = 5, .field = ParamGroupField::weight_decay}));
    }
    return chained({.schedulers = parts});
  }
  if (name == "lambda" || name == "product") {
    return lambda_schedule(
        {.lr_lambda = {[](int64_t n) { return n % 3 == 1 ? 0.5 : 1.0 / (1.0 + 0.1 * n); }},
         .is_multiplicative = name == "product"});
  }
  if (name == "torch") {
    return torch_schedule({.scheduler = [](torch::optim::Optimizer& optimizer, const RunConfig&) {
      return std::make_unique<torch::optim::StepLR>(optimizer, 2, 0.5);
    }});
  }
  return {};
}

}  // namespace linkboy::testing

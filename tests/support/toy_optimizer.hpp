#pragma once

#include <torch/torch.h>

#include <memory>
#include <vector>

#include "run/base_values.hpp"

namespace linkboy::testing {

/// Returns an optimizer for tests of schedules. It has a param group for each learning rate, with
/// one number that is not trained.
template <class Optimizer, class Options>
std::unique_ptr<Optimizer> toy_optimizer(const std::vector<double>& lrs, const Options& options) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (double lr : lrs) {
    auto own = std::make_unique<Options>(options);
    own->set_lr(lr);
    groups.emplace_back(std::vector<torch::Tensor>{torch::zeros({1}).requires_grad_()},
                        std::move(own));
  }
  return std::make_unique<Optimizer>(std::move(groups), options);
}

inline std::unique_ptr<torch::optim::SGD> sgd_with_rates(const std::vector<double>& lrs,
                                                         double momentum = 0.0) {
  return toy_optimizer<torch::optim::SGD>(lrs, torch::optim::SGDOptions(0.1).momentum(momentum));
}

inline std::unique_ptr<torch::optim::AdamW> adamw_with_rates(const std::vector<double>& lrs) {
  return toy_optimizer<torch::optim::AdamW>(lrs, torch::optim::AdamWOptions(0.1));
}

/// Sets the values from which the schedule started, as a Trainer does before the next run.
inline void restore_base_values(const Scheduler& scheduler, torch::optim::Optimizer& optimizer) {
  BaseValues values;
  values.keep(scheduler, optimizer);
  values.set_base(optimizer);
}

}  // namespace linkboy::testing

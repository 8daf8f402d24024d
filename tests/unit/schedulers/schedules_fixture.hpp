#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <vector>

#include "linkboy/scheduler.hpp"
#include "support/ten_by_ten.hpp"
#include "support/toy.hpp"
#include "support/toy_optimizer.hpp"

namespace linkboy::testing {

/// Makes schedules for an optimizer with the base learning rates 0.01 and 0.002.
class SchedulesTest : public ::testing::Test {
 protected:
  template <class S = Scheduler>
  std::unique_ptr<S> make(const CreateSchedulerFn& function,
                          const RunConfig& config = ten_by_ten()) {
    auto scheduler = function(*optimizer_, config);
    auto* derived = dynamic_cast<S*>(scheduler.get());
    if (derived != nullptr) scheduler.release();
    return std::unique_ptr<S>(derived);
  }

  /// Returns the first group's value after `update` updates.
  double value(const CreateSchedulerFn& function, int64_t update) {
    return make(function)->values_at(update)[0];
  }

  std::vector<double> lr() { return get_param_group_field(*optimizer_, ParamGroupField::lr); }

  std::unique_ptr<torch::optim::SGD> optimizer_ = toy_sgd({0.01, 0.002}, 0.9);
};

}  // namespace linkboy::testing

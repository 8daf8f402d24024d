#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <utility>
#include <vector>

#include "linkboy/schedulers.hpp"
#include "support/expect_error.hpp"
#include "support/ten_epochs_of_ten_updates.hpp"
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

  static void step(Scheduler& scheduler, int64_t count) {
    for (int64_t i = 0; i < count; ++i) scheduler.step();
  }

  /// Numbers of updates and the first group's value after each of them.
  using Points = std::vector<std::pair<int64_t, double>>;

  static void expect_values(const Scheduler& scheduler, const Points& points) {
    for (const auto& [update, value] : points) {
      EXPECT_EQ(scheduler.values_at(update)[0], value) << "after update " << update;
    }
  }
  /// Like `expect_values`, up to rounding errors.
  static void expect_close_values(const Scheduler& scheduler, const Points& points) {
    for (const auto& [update, value] : points) {
      EXPECT_DOUBLE_EQ(scheduler.values_at(update)[0], value) << "after update " << update;
    }
  }

  std::vector<double> lr() { return get(ParamGroupField::lr); }
  std::vector<double> get(ParamGroupField field) {
    return get_param_group_field(*optimizer_, field);
  }
  void set(ParamGroupField field, const std::vector<double>& values) {
    set_param_group_field(*optimizer_, field, values);
  }

  std::unique_ptr<torch::optim::SGD> optimizer_ = sgd_with_rates({0.01, 0.002}, 0.9);
};

}  // namespace linkboy::testing

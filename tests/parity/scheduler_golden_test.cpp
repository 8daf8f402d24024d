// Compares the schedules with those of PyTorch, timm and pytorch-accelerated, update by update.
//
// Golden file: python tests/parity/scheduler_golden.py tests/parity/scheduler_golden.jsonl

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <map>

#include "linkboy/run/run_config.hpp"
#include "linkboy/run/run_history.hpp"
#include "linkboy/schedulers/composite.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "linkboy/schedulers/functions.hpp"
#include "linkboy/schedulers/reactive.hpp"
#include "linkboy/schedulers/scheduler_factory.hpp"
#include "parity/golden.hpp"
#include "support/toy_optimizer.hpp"

namespace linkboy::testing::scheduler_golden_test {
namespace {

using parity::Json;

CreateSchedulerFn make_composite(const std::string& name) {
  static const std::map<std::string, CreateSchedulerFn> composites{
      {"lambda", lambda_schedule({.lr_lambda = {[](int64_t n) { return std::pow(0.95, n); },
                                                [](int64_t n) {
                                                  return 1.0 / (1.0 + static_cast<double>(n));
                                                }}})},
      {"multiplicative", lambda_schedule({.lr_lambda = {[](int64_t n) {
                                            return 1.0 - 1.0 / (static_cast<double>(n) + 10.0);
                                          }},
                                          .is_multiplicative = true})},
      {"sequential",
       sequential({.schedulers = {linear({.start_factor = 0.1}), exponential({.gamma = 0.99}),
                                  step_decay({.step_size = 15, .gamma = 0.5})},
                   .milestones = {placeholders::num_updates_per_epoch * 2, 120}})},
      {"chained", chained({.schedulers = {constant({.factor = 0.1, .num_updates = 20}),
                                          exponential({.gamma = 0.99}),
                                          multi_step({.milestones = {100, 150}, .gamma = 0.3})}})},
      // The omitted length is the part of the run after the warm-up: 190.
      {"warm-up and timm cosine", warmup({.scheduler = cosine_restarts({.min_lr = 1e-5}),
                                          .warmup_updates = 30,
                                          .warmup_start_lr = 1e-4})},
      {"warm-up and timm step", warmup({.scheduler = step_decay({.step_size = 25, .gamma = 0.7}),
                                        .warmup_updates = 12,
                                        .warmup_start_lr = 1e-3})},
      {"hidden warm-up and timm tanh", warmup({.scheduler = tanh_decay({.min_lr = 1e-5}),
                                               .warmup_updates = 15,
                                               .warmup_start_lr = 1e-4,
                                               .warmup_prefix = false})},
      {"timm cosine in epochs",
       timm_schedule({.scheduler = cosine_restarts({.first_cycle_updates = 5,
                                                    .cycle_mult = 2.0,
                                                    .cycle_decay = 0.5,
                                                    .cycle_limit = 2,
                                                    .min_lr = 1e-5})})},
      {"warm-up and timm step in epochs",
       timm_schedule({.scheduler = warmup({.scheduler = step_decay({.step_size = 4, .gamma = 0.5}),
                                           .warmup_updates = 3,
                                           .warmup_start_lr = 1e-3})})},
  };
  return composites.at(name);
}

class SchedulerGoldenTest : public ::testing::Test {
 protected:
  SchedulerGoldenTest() : lines_(parity::golden_lines("scheduler")), header_(lines_.at(0)) {
    config_.max_num_updates = header_["updates"];
    config_.num_updates_per_epoch = header_["updates_per_epoch"];
    config_.num_epochs = config_.max_num_updates / config_.num_updates_per_epoch;
    lines_.erase(lines_.begin());
  }

  static bool is_by_epoch(const Json& golden) { return golden.contains("epoch_settings"); }
  static bool is_plateau(const Json& golden) {
    return golden.value("scheduler", "") == "plateau" && !is_by_epoch(golden);
  }
  static bool is_by_update(const Json& golden) {
    return !is_by_epoch(golden) && !is_plateau(golden);
  }

  static CreateSchedulerFn make(const Json& golden) {
    if (golden.contains("composite")) return make_composite(golden["composite"]);
    SchedulerSettings settings;
    for (const auto& [key, value] :
         golden[is_by_epoch(golden) ? "epoch_settings" : "settings"].items()) {
      settings.emplace_back(key, value);
    }
    if (is_by_epoch(golden)) settings.emplace_back("by_epoch", "true");
    return make_scheduler_fn(golden["scheduler"], settings);
  }

  static void expect_near(const std::vector<double>& ours, const Json& golden, const char* field,
                          std::size_t update) {
    const auto theirs = golden[field][update].get<std::vector<double>>();
    ASSERT_EQ(ours.size(), theirs.size());
    for (std::size_t group = 0; group < ours.size(); ++group) {
      EXPECT_NEAR(ours[group], theirs[group], 1e-12 * std::abs(theirs[group]))
          << field << " of group " << group << ", update " << update + 1;
    }
  }

  /// Runs the cases of a kind, and compares the values of each update. Returns the number of cases.
  /// Plateau's cases have epochs of one update.
  int64_t compare(bool (*is_kind)(const Json&)) const {
    int64_t num_cases = 0;
    for (const auto& golden : lines_) {
      if (!is_kind(golden)) continue;
      ++num_cases;
      auto title = golden;
      title.erase("lr");
      title.erase("momentum");
      SCOPED_TRACE(title.dump());
      const auto base = header_["base"].get<std::vector<double>>();
      std::unique_ptr<torch::optim::Optimizer> optimizer = sgd_with_rates(base, 0.9);
      if (golden.value("optimizer", "SGD") == "AdamW") optimizer = adamw_with_rates(base);
      const auto scheduler = make(golden)(*optimizer, config_);
      const int64_t updates_per_epoch = is_plateau(golden) ? 1 : config_.num_updates_per_epoch;
      InMemoryRunHistory history;
      scheduler->run_start(history);
      scheduler->start();
      const auto& lrs = golden["lr"];
      EXPECT_GE(lrs.size(), 200U);
      if (is_plateau(golden)) {
        EXPECT_LT(lrs.back()[0], 0.5 * lrs[0][0].get<double>());
      }
      for (std::size_t k = 0; k < lrs.size(); ++k) {
        const auto num_updates = static_cast<int64_t>(k) + 1;
        expect_near(get_param_group_field(*optimizer, ParamGroupField::lr), golden, "lr", k);
        if (is_by_update(golden)) {
          expect_near(scheduler->values_at(num_updates - 1), golden, "lr", k);
        }
        if (golden.contains("momentum")) {
          expect_near(get_param_group_field(*optimizer, ParamGroupField::momentum), golden,
                      "momentum", k);
        }
        scheduler->step();
        if (num_updates % updates_per_epoch != 0) continue;
        const int64_t num_epochs = num_updates / updates_per_epoch;
        history.update_metric("eval_loss_epoch",
                              header_["plateau_metric"][static_cast<std::size_t>(num_epochs) - 1]);
        scheduler->epoch_end(num_epochs, history, /*has_metrics=*/true);
      }
    }
    return num_cases;
  }

  std::vector<Json> lines_;
  Json header_;
  RunConfig config_;
};

TEST_F(SchedulerGoldenTest, EveryUpdateUsesTheValueOfPython) {
  EXPECT_EQ(compare(&is_by_update), 39);
}

TEST_F(SchedulerGoldenTest, PlateauReducesAtTheSameUpdatesAsPython) {
  EXPECT_EQ(compare(&is_plateau), 4);
}

TEST_F(SchedulerGoldenTest, ByEpochEqualsAPyTorchLoopThatStepsAtTheEndOfEachEpoch) {
  EXPECT_EQ(compare(&is_by_epoch), 11);
}

}  // namespace
}  // namespace linkboy::testing::scheduler_golden_test

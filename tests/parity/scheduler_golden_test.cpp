// Compares the schedules with those of PyTorch, timm and pytorch-accelerated, update by update.
//
// Golden file: python tests/parity/scheduler_golden.py tests/parity/scheduler_golden.jsonl

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "linkboy/run/run_config.hpp"
#include "linkboy/run/run_history.hpp"
#include "linkboy/schedulers/chained_scheduler.hpp"
#include "linkboy/schedulers/constant_scheduler.hpp"
#include "linkboy/schedulers/cosine_restarts_scheduler.hpp"
#include "linkboy/schedulers/cosine_scheduler.hpp"
#include "linkboy/schedulers/exponential_scheduler.hpp"
#include "linkboy/schedulers/lambda_scheduler.hpp"
#include "linkboy/schedulers/linear_scheduler.hpp"
#include "linkboy/schedulers/multi_step_scheduler.hpp"
#include "linkboy/schedulers/reduce_on_plateau_scheduler.hpp"
#include "linkboy/schedulers/scheduler_factory.hpp"
#include "linkboy/schedulers/sequential_scheduler.hpp"
#include "linkboy/schedulers/step_scheduler.hpp"
#include "linkboy/schedulers/tanh_scheduler.hpp"
#include "linkboy/schedulers/timm_scheduler.hpp"
#include "linkboy/schedulers/warmup_scheduler.hpp"
#include "support/toy_optimizer.hpp"

namespace linkboy::testing::scheduler_golden_test {
namespace {

using Values = std::vector<std::vector<double>>;

std::vector<nlohmann::json> read_golden() {
  const auto folder = std::filesystem::path(__FILE__).parent_path();
  std::ifstream file(folder / "scheduler_golden.jsonl");
  std::vector<nlohmann::json> lines;
  std::string line;
  while (std::getline(file, line)) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

CreateSchedulerFn make_composite(const std::string& name) {
  if (name == "lambda") {
    return lambda_schedule(
        {.lr_lambda = {[](int64_t n) { return std::pow(0.95, n); },
                       [](int64_t n) { return 1.0 / (1.0 + static_cast<double>(n)); }}});
  }
  if (name == "multiplicative") {
    return lambda_schedule(
        {.lr_lambda = {[](int64_t n) { return 1.0 - 1.0 / (static_cast<double>(n) + 10.0); }},
         .is_multiplicative = true});
  }
  if (name == "sequential") {
    return sequential({.schedulers = {linear({.start_factor = 0.1}), exponential({.gamma = 0.99}),
                                      step_decay({.step_size = 15, .gamma = 0.5})},
                       .milestones = {placeholders::num_updates_per_epoch * 2, 120}});
  }
  if (name == "chained") {
    return chained(
        {.schedulers = {constant({.factor = 0.1, .num_updates = 20}), exponential({.gamma = 0.99}),
                        multi_step({.milestones = {100, 150}, .gamma = 0.3})}});
  }
  if (name == "warm-up and timm cosine") {
    // The omitted length is the part of the run after the warm-up: 190.
    return warmup({.scheduler = cosine_restarts({.min_lr = 1e-5}),
                   .warmup_updates = 30,
                   .warmup_start_lr = 1e-4});
  }
  if (name == "warm-up and timm step") {
    return warmup({.scheduler = step_decay({.step_size = 25, .gamma = 0.7}),
                   .warmup_updates = 12,
                   .warmup_start_lr = 1e-3});
  }
  if (name == "hidden warm-up and timm tanh") {
    return warmup({.scheduler = tanh_decay({.min_lr = 1e-5}),
                   .warmup_updates = 15,
                   .warmup_start_lr = 1e-4,
                   .warmup_prefix = false});
  }
  if (name == "timm cosine in epochs") {
    return timm_schedule({.scheduler = cosine_restarts({.first_cycle_updates = 5,
                                                        .cycle_mult = 2.0,
                                                        .cycle_decay = 0.5,
                                                        .cycle_limit = 2,
                                                        .min_lr = 1e-5})});
  }
  if (name == "warm-up and timm step in epochs") {
    return timm_schedule(
        {.scheduler = warmup({.scheduler = step_decay({.step_size = 4, .gamma = 0.5}),
                              .warmup_updates = 3,
                              .warmup_start_lr = 1e-3})});
  }
  throw std::runtime_error("no composite " + name);
}

class SchedulerGoldenTest : public ::testing::Test {
 protected:
  SchedulerGoldenTest() : lines_(read_golden()), header_(lines_.at(0)) {
    config_.max_num_updates = header_["updates"];
    config_.num_updates_per_epoch = header_["updates_per_epoch"];
    config_.num_epochs = config_.max_num_updates / config_.num_updates_per_epoch;
    lines_.erase(lines_.begin());
  }

  static CreateSchedulerFn make(const nlohmann::json& golden) {
    if (golden.contains("composite")) return make_composite(golden["composite"]);
    SchedulerSettings settings;
    const bool by_epoch = golden.contains("epoch_settings");
    for (const auto& [key, value] : golden[by_epoch ? "epoch_settings" : "settings"].items()) {
      settings.emplace_back(key, value);
    }
    if (by_epoch) settings.emplace_back("by_epoch", "true");
    return make_scheduler_fn(golden["scheduler"], settings);
  }

  static std::string title(const nlohmann::json& golden) {
    return golden.contains("composite")
               ? golden["composite"].get<std::string>()
               : golden["scheduler"].get<std::string>() + " " +
                     golden.value("settings", golden.value("epoch_settings", golden)).dump();
  }

  std::unique_ptr<torch::optim::Optimizer> make_optimizer(const nlohmann::json& golden) const {
    const auto base = header_["base"].get<std::vector<double>>();
    if (golden.value("optimizer", "SGD") == "AdamW") return toy_adamw(base);
    return toy_sgd(base, 0.9);
  }

  static void expect_near(const std::vector<double>& ours, const std::vector<double>& theirs,
                          std::size_t update) {
    ASSERT_EQ(ours.size(), theirs.size());
    for (std::size_t group = 0; group < ours.size(); ++group) {
      EXPECT_NEAR(ours[group], theirs[group], 1e-12 * std::abs(theirs[group]))
          << "group " << group << ", update " << update + 1;
    }
  }

  std::vector<nlohmann::json> lines_;
  nlohmann::json header_;
  RunConfig config_;
};

TEST_F(SchedulerGoldenTest, EveryUpdateUsesTheValueOfPython) {
  int64_t num_cases = 0;
  for (const auto& golden : lines_) {
    if (golden.value("scheduler", "") == "plateau" || golden.contains("epoch_settings")) continue;
    SCOPED_TRACE(title(golden));
    ++num_cases;
    const auto optimizer = make_optimizer(golden);
    const auto scheduler = make(golden)(*optimizer, config_);
    const InMemoryRunHistory history;
    const auto lr = golden["lr"].get<Values>();
    ASSERT_GE(lr.size(), 200U);
    scheduler->start();
    for (std::size_t k = 0; k < lr.size(); ++k) {
      expect_near(get_param_group_field(*optimizer, ParamGroupField::lr), lr[k], k);
      expect_near(scheduler->values_at(static_cast<int64_t>(k)), lr[k], k);
      if (golden.contains("momentum")) {
        expect_near(get_param_group_field(*optimizer, ParamGroupField::momentum),
                    golden["momentum"][k].get<std::vector<double>>(), k);
      }
      scheduler->step();
      const auto num_updates = static_cast<int64_t>(k) + 1;
      if (num_updates % config_.num_updates_per_epoch == 0) {
        scheduler->epoch_end(num_updates / config_.num_updates_per_epoch, history,
                             /*has_metrics=*/true);
      }
    }
  }
  EXPECT_EQ(num_cases, 39);
}

TEST_F(SchedulerGoldenTest, PlateauReducesAtTheSameUpdatesAsPython) {
  const auto metric = header_["plateau_metric"].get<std::vector<double>>();
  int64_t num_cases = 0;
  for (const auto& golden : lines_) {
    if (golden.value("scheduler", "") != "plateau" || golden.contains("epoch_settings")) continue;
    SCOPED_TRACE(title(golden));
    ++num_cases;
    const auto optimizer = make_optimizer(golden);
    const auto scheduler = make(golden)(*optimizer, config_);
    InMemoryRunHistory history;
    scheduler->run_start(history);
    scheduler->start();
    const auto lr = golden["lr"].get<Values>();
    EXPECT_LT(lr.back()[0], 0.5 * lr.front()[0]) << "the golden case should reduce";
    for (std::size_t epoch = 0; epoch < lr.size(); ++epoch) {
      expect_near(get_param_group_field(*optimizer, ParamGroupField::lr), lr[epoch], epoch);
      scheduler->step();
      history.update_metric("eval_loss_epoch", metric[epoch]);
      scheduler->epoch_end(static_cast<int64_t>(epoch) + 1, history, /*has_metrics=*/true);
    }
  }
  EXPECT_EQ(num_cases, 4);
}

TEST_F(SchedulerGoldenTest, ByEpochEqualsAPyTorchLoopThatStepsAtTheEndOfEachEpoch) {
  const auto metric = header_["plateau_metric"].get<std::vector<double>>();
  int64_t num_cases = 0;
  for (const auto& golden : lines_) {
    if (!golden.contains("epoch_settings")) continue;
    SCOPED_TRACE(title(golden));
    ++num_cases;
    const auto optimizer = make_optimizer(golden);
    const auto scheduler = make(golden)(*optimizer, config_);
    InMemoryRunHistory history;
    scheduler->run_start(history);
    scheduler->start();
    const auto lr = golden["lr"].get<Values>();
    ASSERT_EQ(lr.size(), 220U);
    for (std::size_t k = 0; k < lr.size(); ++k) {
      expect_near(get_param_group_field(*optimizer, ParamGroupField::lr), lr[k], k);
      if (golden.contains("momentum")) {
        expect_near(get_param_group_field(*optimizer, ParamGroupField::momentum),
                    golden["momentum"][k].get<std::vector<double>>(), k);
      }
      scheduler->step();
      const auto num_updates = static_cast<int64_t>(k) + 1;
      if (num_updates % config_.num_updates_per_epoch != 0) continue;
      const int64_t num_epochs = num_updates / config_.num_updates_per_epoch;
      history.update_metric("eval_loss_epoch", metric[static_cast<std::size_t>(num_epochs) - 1]);
      scheduler->epoch_end(num_epochs, history, /*has_metrics=*/true);
    }
  }
  EXPECT_EQ(num_cases, 11);
}

}  // namespace
}  // namespace linkboy::testing::scheduler_golden_test

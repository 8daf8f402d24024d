#include "linkboy/schedulers/scheduler_factory.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <string>

#include "linkboy/run/run_history.hpp"
#include "support/file_contents.hpp"
#include "unit/schedulers/schedules_fixture.hpp"

namespace linkboy::testing::scheduler_factory_test {
namespace {

TEST_F(SchedulesTest, AreMadeByNameFromText) {
  EXPECT_EQ(value(make_scheduler_fn("step", {{"step_size", "2*num_updates_per_epoch"}}), 19), 0.01);
  const auto cyclic = make(make_scheduler_fn(
      "cyclic", {{"max_lr", "0.5,0.25"}, {"mode", "exp_range"}, {"cycle_momentum", "false"}}));
  EXPECT_DOUBLE_EQ(cyclic->values_at(50)[1], 0.25);
  EXPECT_TRUE(cyclic->other_values_at(0).empty());
  const auto decay = make(make_scheduler_fn("linear", {{"field", "weight_decay"}}));
  EXPECT_EQ(decay->field(), ParamGroupField::weight_decay);
}

TEST_F(SchedulesTest, ErrorsListTheAllowedNamesAndOptions) {
  const auto refused = [](const char* name, const SchedulerSettings& settings,
                          const char* message) {
    SCOPED_TRACE(name);
    EXPECT_ERROR(make_scheduler_fn(name, settings), message);
  };
  EXPECT_ERROR(scheduler_options("stepp"), "there is no scheduler");
  refused("stepp", {}, "there is no scheduler \"stepp\"; there are step, ");
  refused("step", {{"size", "3"}},
          "the scheduler step has no option \"size\"; it has step_size, gamma, field, by_epoch.");
  refused("step", {{"gamma", "x"}}, "step's gamma is 'x'; it must be a number.");
  refused("step", {{"gamma", "1"}, {"gamma", "2"}}, "is set twice");
  refused("step", {{"step_size", "EPOCHS"}}, "the placeholders are num_epochs");
  refused("wsd", {{"decay", "cos"}}, "it must be one of sqrt, inverse, linear");
  refused("wsd", {{"num_checkpoints", "1.5"}}, "it must be an integer");
  refused("one-cycle", {{"three_phase", "yes"}}, "it must be true or false");
  refused("multi-step", {{"milestones", "1,,2"}}, "a number");
  EXPECT_ERROR(make(make_scheduler_fn("plateau", {{"threshold", "1"}})), "threshold is 1, a share");
  make(make_scheduler_fn("plateau", {{"threshold", "1"}, {"threshold_mode", "abs"}}));
}

TEST_F(SchedulesTest, MilestonesInTextCanBeExpressionsWithCommas) {
  const auto scheduler = make(make_scheduler_fn(
      "multi-step", {{"milestones", "min(num_epochs,20),300"}, {"gamma", "0.5"}}));
  expect_values(*scheduler, {{9, 0.01}, {10, 0.005}, {300, 0.0025}});
}

TEST_F(SchedulesTest, ByEpochEveryNamedScheduleMovesOncePerEpoch) {
  RunConfig epochs = ten_by_ten();
  epochs.max_num_updates = epochs.num_epochs;
  epochs.num_updates_per_epoch = 1;
  for (const std::string& name : scheduler_names()) {
    SCOPED_TRACE(name);
    EXPECT_EQ(scheduler_options(name).back().first, "by_epoch");
    EXPECT_EQ(scheduler_options(name).back().second, "false");
    SchedulerSettings settings;
    if (name == "multi-step") settings = {{"milestones", "num_epochs / 5,num_updates / 2"}};
    if (name == "exponential") settings = {{"gamma", "0.9"}};
    if (name == "cyclic") settings = {{"max_lr", "0.5"}, {"step_size_up", "3"}};
    if (name == "inverse-sqrt") settings = {{"warmup_updates", "2"}};
    const auto plain = make(make_scheduler_fn(name, settings), epochs);
    settings.emplace_back("by_epoch", "true");
    const auto by_epoch = make(make_scheduler_fn(name, settings));
    for (int64_t update = 0; update < 100; ++update) {
      EXPECT_EQ(by_epoch->values_at(update), plain->values_at(update / 10)) << update;
      const auto others = by_epoch->other_values_at(update);
      const auto plain_others = plain->other_values_at(update / 10);
      ASSERT_EQ(others.size(), plain_others.size());
      for (std::size_t i = 0; i < others.size(); ++i) {
        EXPECT_EQ(others[i].values, plain_others[i].values) << update;
      }
    }
  }
}

TEST_F(SchedulesTest, ByEpochANestedPlateauReceivesItsMetrics) {
  const auto plateau = reduce_on_plateau({.factor = 0.5, .patience = 0});
  const auto schedule =
      by_epoch(sequential({.schedulers = {constant({.factor = 1.0}),
                                          warmup({.scheduler = plateau, .warmup_updates = 2})},
                           .milestones = {3}}));
  const auto scheduler = make(schedule);
  InMemoryRunHistory history;
  scheduler->run_start(history);
  scheduler->start();
  std::vector<double> rates;
  for (int64_t update = 1; update <= 100; ++update) {
    if (update % 10 == 1) rates.push_back(lr()[0]);
    scheduler->step();
    if (update % 10 != 0) continue;
    history.update_metric("eval_loss_epoch", static_cast<double>(update));  // always worse
    scheduler->epoch_end(update / 10, history, /*has_metrics=*/true);
  }
  // Epochs 4 and 5 are the warm-up. The metric at the end of epoch 5 is the best, and each later
  // one is worse.
  EXPECT_EQ(rates, (std::vector<double>{0.01, 0.01, 0.01, 0.0, 0.005, 0.01, 0.005, 0.0025, 0.00125,
                                        0.000625}));
}

TEST_F(SchedulesTest, DocumentationListsEveryScheduleAndItsOptions) {
  const std::string page = documentation_page("schedules.md");
  for (const std::string& name : scheduler_names()) {
    EXPECT_NE(page.find("`" + name + "`"), std::string::npos) << name;
    const std::string rows = option_rows("Schedules", name);
    for (const auto& [key, value] : scheduler_options(name)) {
      if (key == "by_epoch") continue;  // common to all, above the table
      EXPECT_NE(rows.find("`" + key + "` |"), std::string::npos) << name << ": " << key;
    }
  }
}

}  // namespace
}  // namespace linkboy::testing::scheduler_factory_test

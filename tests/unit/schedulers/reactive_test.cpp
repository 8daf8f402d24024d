// Tests of schedules whose values follow the run (a plateau, and custom classes in timm's style),
// and of LibTorch's schedulers, created from the run's lengths.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "linkboy/run/run_history.hpp"
#include "support/at_update.hpp"
#include "support/saved_states.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"
#include "unit/schedulers/schedules_fixture.hpp"

namespace linkboy::testing::reactive_test {
namespace {

TEST(ReduceOnPlateauTest, ValuesWithinTheCoolDownDoNotCount) {
  const auto optimizer = sgd_with_rates({0.8}, 0.9);
  ReduceOnPlateauScheduler scheduler(*optimizer, {.factor = 0.5, .patience = 1, .cooldown = 2},
                                     ten_by_ten());
  std::vector<double> rates;
  for (int i = 0; i < 9; ++i) {
    scheduler.step_metric(1.0);
    rates.push_back(get_param_group_field(*optimizer, ParamGroupField::lr)[0]);
  }
  // The first value is the best. Two bad values reduce the rate, and the next two are ignored.
  EXPECT_EQ(rates, (std::vector<double>{0.8, 0.8, 0.4, 0.4, 0.4, 0.4, 0.2, 0.2, 0.2}));
}

/// Returns the first group's rate at the beginning of each of ten epochs. The metric is constant
/// and missing in epoch 6.
std::vector<double> rates_with_a_constant_metric(Scheduler& scheduler,
                                                 const torch::optim::Optimizer& optimizer) {
  InMemoryRunHistory history;
  std::vector<double> rates;
  scheduler.run_start(history);
  scheduler.start();
  for (int epoch = 1; epoch <= 10; ++epoch) {
    rates.push_back(get_param_group_field(optimizer, ParamGroupField::lr)[0]);
    for (int update = 0; update < 10; ++update) scheduler.step();
    if (epoch != 6) history.update_metric("eval_loss_epoch", 1.0);
    scheduler.epoch_end(epoch, history, /*has_metrics=*/true);
  }
  return rates;
}

TEST_F(SchedulesTest, PlateauCountsOnlyWithinItsPartOfASequence) {
  RunConfig config = ten_by_ten();
  config.num_eval_batches_per_epoch = 1;
  const auto plateau = reduce_on_plateau({.factor = 0.5, .patience = 1});
  const auto warm = make(warmup({.scheduler = plateau, .warmup_updates = 40}), config);
  // The warm-up ends with epoch 4, so the plateau's first value is that of epoch 4. Epoch 6 has
  // none.
  const std::vector<double> expected{0,    0.0025, 0.005, 0.0075, 0.01,
                                     0.01, 0.01,   0.005, 0.005,  0.0025};
  const auto rates = rates_with_a_constant_metric(*warm, *optimizer_);
  for (std::size_t i = 0; i < 10; ++i) EXPECT_DOUBLE_EQ(rates[i], expected[i]) << i;

  restore_base_values(*warm, *optimizer_);
  const auto constant = linkboy::constant({.factor = 1.0});
  const auto sequence =
      make(sequential({.schedulers = {constant, plateau}, .milestones = {60}}), config);
  EXPECT_EQ(rates_with_a_constant_metric(*sequence, *optimizer_),
            (std::vector<double>{0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.005}));
}

TEST_F(SchedulesTest, PlateauIgnoresEpochsWithoutTheMetric) {
  RunConfig config = ten_by_ten();
  config.num_eval_batches_per_epoch = 3;
  const auto scheduler = make(reduce_on_plateau({.patience = 0}), config);
  InMemoryRunHistory history;
  history.update_metric("eval_loss_epoch", 0.1);  // from a previous run
  scheduler->run_start(history);
  const auto lr_after_epoch = [&](int64_t epoch) {
    scheduler->epoch_end(epoch, history, /*has_metrics=*/true);
    return lr()[0];
  };
  EXPECT_EQ(lr_after_epoch(1), 0.01);
  history.update_metric("eval_loss_epoch", 1.0);
  EXPECT_EQ(lr_after_epoch(2), 0.01) << "the first value of this run is its best";
  EXPECT_EQ(lr_after_epoch(3), 0.01);
  history.update_metric("eval_loss_epoch", std::nan(""));
  EXPECT_DOUBLE_EQ(lr_after_epoch(4), 0.001);
}

TEST_F(SchedulesTest, PlateauErrorsListTheMetricsIfItsMetricIsMissing) {
  InMemoryRunHistory history;
  history.update_metric("train_loss_epoch", 1.0);
  const auto scheduler = make(reduce_on_plateau({.monitor = "recall"}));
  EXPECT_ERROR(scheduler->epoch_end(1, history, /*has_metrics=*/true), "train_loss_epoch");
}

TEST_F(SchedulesTest, TorchSchedulersGetTheirLengthsFromTheRun) {
  const auto of_run = make(
      torch_schedule({.scheduler = [](torch::optim::Optimizer& optimizer, const RunConfig& config) {
        const RunExpression length = placeholders::num_updates_per_epoch / 2;
        return std::make_unique<torch::optim::StepLR>(optimizer, length.resolve_count(config), 0.5);
      }}));
  const auto ours = make(step_decay({.step_size = 5, .gamma = 0.5}));
  for (const int64_t n : {0, 1, 4, 5, 12, 99, 3, 0, 6}) {  // the first value is used once
    EXPECT_DOUBLE_EQ(of_run->values_at(n)[0], ours->values_at(n)[0]) << n;
    EXPECT_DOUBLE_EQ(of_run->values_at(n)[1], ours->values_at(n)[1]) << n;
  }
}

/// Warms up, once per update, to a share of the base values. An epoch halves the share, unless its
/// metric has improved.
class HalvesByMetric : public TimmSteps {
 public:
  HalvesByMetric(torch::optim::Optimizer& optimizer, int64_t warmup_updates)
      : optimizer_(optimizer),
        base_(get_param_group_field(optimizer, ParamGroupField::lr)),
        warmup_updates_(warmup_updates) {
    set(0.0);
  }

  void step(int64_t epoch, std::optional<double> metric) override {
    epochs.push_back(epoch);
    metrics.push_back(metric);
    if (!metric || *metric >= best_) share_ *= 0.5;
    if (metric) best_ = std::min(best_, *metric);
  }
  void step_update(int64_t num_updates, std::optional<double> metric) override {
    metrics_of_updates.push_back(metric);
    set(std::min(1.0, static_cast<double>(num_updates) / static_cast<double>(warmup_updates_)));
  }
  StateDict state_dict() const override { return {{"share", share_}, {"best", best_}}; }
  void load_state_dict(const StateDict& state) override {
    share_ = state.get_double("share");
    best_ = state.get_double("best");
  }

  std::vector<int64_t> epochs{};
  std::vector<std::optional<double>> metrics{};
  std::vector<std::optional<double>> metrics_of_updates{};

 private:
  void set(double warm) {
    std::vector<double> lrs = base_;
    lrs.resize(optimizer_.param_groups().size(), lrs.back());
    for (double& lr : lrs) lr *= share_ * warm;
    set_param_group_field(optimizer_, ParamGroupField::lr, lrs);
  }

  torch::optim::Optimizer& optimizer_;
  std::vector<double> base_;
  int64_t warmup_updates_;
  double share_ = 1.0;
  double best_ = 1e9;
};

CreateSchedulerFn halves_by_metric(std::string monitor = {}) {
  return timm_steps({.scheduler =
                         [](torch::optim::Optimizer& optimizer, const RunConfig& config) {
                           const RunExpression length = placeholders::num_updates_per_epoch * 0.4;
                           return std::make_unique<HalvesByMetric>(optimizer,
                                                                   length.resolve_count(config));
                         },
                     .monitor = std::move(monitor)});
}

TEST_F(SchedulesTest, AClassInTimmsStyleIsSteppedByUpdatesAndEpochs) {
  const auto scheduler = make<TimmStepsScheduler>(halves_by_metric("eval_loss_epoch"));
  EXPECT_EQ(lr()[0], 0.01) << "making a scheduler changes nothing";
  scheduler->start();
  EXPECT_EQ(lr()[0], 0.0);
  scheduler->step();
  EXPECT_DOUBLE_EQ(lr()[0], 0.01 / 4);
  step(*scheduler, 9);
  EXPECT_DOUBLE_EQ(lr()[0], 0.01);
  EXPECT_EQ(scheduler->values_at(70), lr()) << "only the current values are known";
  EXPECT_ERROR(scheduler->values_at(-1), "no value after -1 updates");

  InMemoryRunHistory history;
  history.update_metric("eval_loss_epoch", 2.0);
  scheduler->epoch_end(1, history, /*has_metrics=*/true);
  scheduler->epoch_end(2, history, /*has_metrics=*/false);  // not evaluated
  scheduler->step();
  EXPECT_DOUBLE_EQ(lr()[0], 0.005);
  const auto& steps = dynamic_cast<const HalvesByMetric&>(scheduler->steps());
  EXPECT_EQ(steps.epochs, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(steps.metrics, (std::vector<std::optional<double>>{2.0, std::nullopt}));
  EXPECT_EQ(steps.metrics_of_updates.front(), std::nullopt);
  EXPECT_EQ(steps.metrics_of_updates.back(), 2.0);
  const auto another = make(halves_by_metric("no_such_metric"));
  EXPECT_ERROR(another->epoch_end(1, history, /*has_metrics=*/true), "no_such_metric");
}

TEST_F(SchedulesTest, AClassInTimmsStyleContinuesFromItsState) {
  InMemoryRunHistory history;
  history.update_metric("eval_loss_epoch", 2.0);
  const auto first = make<TimmStepsScheduler>(halves_by_metric("eval_loss_epoch"));
  first->start();
  step(*first, 3);
  first->epoch_end(1, history, /*has_metrics=*/true);
  first->epoch_end(2, history, /*has_metrics=*/false);
  const StateDict state = first->state_dict();
  const std::vector<double> values = lr();
  first->step();
  const std::vector<double> next = lr();

  restore_base_values(*first, *optimizer_);
  const auto second = make<TimmStepsScheduler>(halves_by_metric("eval_loss_epoch"));
  second->start();
  second->load_state_dict(state);
  EXPECT_EQ(lr(), values);
  second->step();
  EXPECT_EQ(lr(), next);
  EXPECT_EQ(second->num_updates(), 4);
  EXPECT_EQ(dynamic_cast<const HalvesByMetric&>(second->steps()).metrics_of_updates,
            (std::vector<std::optional<double>>{2.0}));

  StateDict damaged = state;
  damaged.set("values", std::vector<double>{0.1});
  EXPECT_ERROR(second->load_state_dict(damaged), "has 1 values, but 2 base values");
  EXPECT_ERROR(second->load_state_dict(make(step_decay())->state_dict()),
               "saved by another schedule (linkboy::CurveOf<linkboy::StepSchedulerOptions>)");
}

TEST_F(SchedulesTest, AClassInTimmsStyleSchedulesAddedGroups) {
  const auto scheduler = make<TimmStepsScheduler>(halves_by_metric());
  scheduler->start();
  optimizer_->add_param_group(
      {{torch::zeros({1})}, std::make_unique<torch::optim::SGDOptions>(0.5)});
  EXPECT_TRUE(scheduler->include_new_groups());
  EXPECT_EQ(scheduler->values_at(0).back(), 0.5);
  scheduler->step();
  EXPECT_EQ(scheduler->values_at(0), lr());
  EXPECT_NE(lr().back(), 0.5);
}

TEST_F(SchedulesTest, AClassInTimmsStyleThatIsMisusedIsRefused) {
  EXPECT_ERROR(make(timm_steps({.scheduler = nullptr})), "scheduler is empty");
  EXPECT_ERROR(make(timm_steps({.scheduler = [](auto&, const auto&) { return nullptr; }})),
               "the function that makes the TimmSteps returned null");
  EXPECT_ERROR(
      make(sequential({.schedulers = {step_decay(), halves_by_metric()}, .milestones = {3}})),
      "a timm_steps schedule sets the optimizer's values itself, so it cannot be a part");
  class Negative : public TimmSteps {
   public:
    explicit Negative(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {}
    void step_update(int64_t, std::optional<double>) override {
      set_param_group_field(optimizer_, ParamGroupField::lr, {-1.0, -1.0});
    }

   private:
    torch::optim::Optimizer& optimizer_;
  };
  const auto scheduler = make(timm_steps({.scheduler = [](auto& optimizer, const auto&) {
    return std::make_unique<Negative>(optimizer);
  }}));
  EXPECT_ERROR(scheduler->step(), "lr = -1 for update 2; it must be finite, not negative");
}

TEST(TimmStepsTest, AResumedRunContinuesAClassInTimmsStyleBitIdentically) {
  const TemporaryFolder folder;
  const auto run = [](const CallbackList& callbacks, const std::filesystem::path& from) {
    auto toy = std::make_unique<Toy>(callbacks);
    TrainOptions options = epochs_of_two_updates(4);
    options.create_scheduler_fn =
        timm_steps({.scheduler =
                        [](torch::optim::Optimizer& optimizer, const RunConfig&) {
                          return std::make_unique<HalvesByMetric>(optimizer, 3);
                        },
                    .monitor = "train_loss_epoch"});
    if (!from.empty()) options.resume_from = from;
    toy->trainer.train(options);
    return toy;
  };
  const auto whole = run({}, {});
  const auto& steps = dynamic_cast<TimmStepsScheduler&>(*whole->trainer.scheduler()).steps();
  EXPECT_EQ(dynamic_cast<const HalvesByMetric&>(steps).epochs, (std::vector<int64_t>{1, 2, 3, 4}));
  for (const int64_t update : {3, 4}) {
    const auto states = folder / std::to_string(update);
    run({saving_in(states), stop_at(update)}, {});
    const auto resumed = run({}, states);
    EXPECT_TRUE(bit_equal(resumed->model->parameters(), whole->model->parameters()));
    EXPECT_EQ(get_param_group_field(*resumed->optimizer, ParamGroupField::lr),
              get_param_group_field(*whole->optimizer, ParamGroupField::lr));
  }
}

}  // namespace
}  // namespace linkboy::testing::reactive_test

// Tests of the properties that all schedules share, whatever their curves are.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <set>

#include "accelerator/resolve_run_config.hpp"
#include "linkboy/run/run_history.hpp"
#include "linkboy/schedulers.hpp"
#include "support/expect_error.hpp"
#include "support/toy.hpp"
#include "support/toy_optimizer.hpp"

namespace linkboy::testing::scheduler_contract_test {
namespace {

constexpr int64_t kPerEpoch = 12;
constexpr int64_t kUpdates = 60;

RunConfig five_epochs() {
  RunConfig config;
  config.num_epochs = kUpdates / kPerEpoch;
  config.num_updates_per_epoch = kPerEpoch;
  config.max_num_updates = kUpdates;
  config.num_train_batches_per_epoch = kPerEpoch;
  config.num_eval_batches_per_epoch = 1;
  return config;
}

struct Case {
  std::string name;
  CreateSchedulerFn make;
  /// The number of updates after which the values are constant. Not set if they keep changing.
  std::optional<int64_t> end{};

  bool follows_a_metric() const { return name.find("plateau") != std::string::npos; }
};

void PrintTo(const Case& schedule, std::ostream* out) { *out << schedule.name; }

std::vector<Case> cases() {
  auto named = [](const std::string& name, const SchedulerSettings& settings = {}) {
    return make_scheduler_fn(name, settings);
  };
  const auto warm_cosine = cosine({.warmup_updates = 0.1 * placeholders::num_updates_per_epoch});
  const auto one_cycle = linkboy::one_cycle();
  return {
      {"step", named("step", {{"step_size", "7"}})},
      {"multi_step", named("multi-step", {{"milestones", "11,12,40"}}), 40},
      {"constant", named("constant", {{"num_updates", "25"}}), 25},
      {"linear", named("linear"), kUpdates},
      {"exponential", named("exponential", {{"gamma", "0.97"}})},
      {"polynomial", named("polynomial", {{"power", "1.5"}}), kUpdates},
      {"cosine", named("cosine", {{"warmup_updates", "0.7 * num_updates_per_epoch"}}), kUpdates},
      {"cooling", named("cosine", {{"cooldown_updates", "num_updates / 5"}}), kUpdates - kPerEpoch},
      {"cosine_restarts",
       named("cosine-restarts", {{"first_cycle_updates", "10"}, {"cycle_mult", "2"}})},
      {"cosine_restarts_limited",
       named("cosine-restarts",
             {{"num_cycles", "3"}, {"cycle_limit", "3"}, {"warmup_updates", "3"}}),
       kUpdates},
      {"tanh", named("tanh"), kUpdates},
      {"one_cycle", named("one-cycle"), kUpdates - 1},
      {"cyclic", named("cyclic", {{"step_size_up", "7"}, {"mode", "triangular2"}})},
      {"inverse_sqrt", named("inverse-sqrt", {{"warmup_updates", "9"}})},
      {"wsd", named("wsd", {{"warmup_updates", "9"}}), kUpdates},
      {"wsd_checkpoints", named("wsd", {{"num_checkpoints", "3"}, {"decay", "linear"}}), kUpdates},
      {"plateau", named("plateau", {{"patience", "0"}}), 0},
      {"lambda", lambda_schedule({.lr_lambda = {[](int64_t n) { return 1.0 / (1.0 + n); }}})},
      {"multiplicative",
       lambda_schedule({.lr_lambda = {[](int64_t n) { return n % 5 == 0 ? 0.5 : 1.0; }},
                        .is_multiplicative = true})},
      {"sequential",
       sequential({.schedulers = {linear(), one_cycle, warm_cosine}, .milestones = {10, 30}}),
       kUpdates},
      {"chained", chained({.schedulers = {step_decay({.step_size = 9, .gamma = 0.5}), linear(),
                                          cosine({.field = ParamGroupField::weight_decay})}})},
      {"warmup", warmup({.scheduler = one_cycle, .warmup_updates = 7.5}), kUpdates - 1},
      {"warm_up_plateau",
       warmup({.scheduler = reduce_on_plateau({.patience = 0}), .warmup_updates = 10}), 10},
      {"timm_in_epochs", timm_schedule({.scheduler = warm_cosine}), kUpdates},
      {"timm_updates", timm_schedule({.scheduler = warm_cosine, .t_in_epochs = false}), kUpdates},
      {"torch", torch_schedule({.scheduler =
                                    [](torch::optim::Optimizer& optimizer, const RunConfig&) {
                                      return std::make_unique<torch::optim::StepLR>(optimizer, 7,
                                                                                    0.5);
                                    }})},
  };
}

/// Steps the schedule of `make` like a run whose metric gets worse in every epoch.
struct Rehearsal {
  explicit Rehearsal(const CreateSchedulerFn& make, const RunConfig& config = five_epochs(),
                     const std::vector<double>& lrs = {0.1, 0.02})
      : optimizer(adamw_with_rates(lrs)), scheduler(make(*optimizer, config)) {
    scheduler->run_start(history);
    scheduler->start();
  }

  /// Returns the learning rates, weight decays and momentums of all groups.
  std::vector<std::vector<double>> fields() const {
    std::vector<std::vector<double>> values;
    for (auto field :
         {ParamGroupField::lr, ParamGroupField::weight_decay, ParamGroupField::momentum}) {
      values.push_back(get_param_group_field(*optimizer, field));
    }
    return values;
  }

  void step() {
    scheduler->step();
    if (scheduler->num_updates() % kPerEpoch != 0) return;
    const int64_t epoch = scheduler->num_updates() / kPerEpoch;
    history.update_metric("eval_loss_epoch", static_cast<double>(epoch));
    scheduler->epoch_end(epoch, history, /*has_metrics=*/true);
  }

  InMemoryRunHistory history;
  std::unique_ptr<torch::optim::AdamW> optimizer;
  std::unique_ptr<Scheduler> scheduler;
};

class SchedulerContractTest : public ::testing::TestWithParam<Case> {};

TEST_P(SchedulerContractTest, MakingItChangesNothing) {
  const auto optimizer = adamw_with_rates({0.1, 0.02});
  const auto scheduler = GetParam().make(*optimizer, five_epochs());
  EXPECT_EQ(get_param_group_field(*optimizer, ParamGroupField::lr),
            (std::vector<double>{0.1, 0.02}));
  EXPECT_EQ(scheduler->base_values(), (std::vector<double>{0.1, 0.02}));
}

TEST_P(SchedulerContractTest, UpdateKUsesTheValueAfterKMinusOneUpdates) {
  Rehearsal run(GetParam().make);
  // Values can be requested in advance and in any order. Those of a plateau depend on metrics.
  std::vector<std::vector<double>> foreseen;
  for (int64_t n = kUpdates; n >= 0; --n) {
    foreseen.insert(foreseen.begin(), run.scheduler->values_at(n));
  }
  for (int64_t k = 1; k <= kUpdates + 1; ++k) {
    EXPECT_EQ(run.fields()[0], run.scheduler->values_at(k - 1)) << "update " << k;
    if (!GetParam().follows_a_metric()) {
      EXPECT_EQ(run.fields()[0], foreseen[static_cast<std::size_t>(k - 1)]);
    }
    EXPECT_EQ(run.scheduler->num_updates(), k - 1);
    run.step();
  }
}

TEST_P(SchedulerContractTest, AStateOfAnyUpdateContinuesTheSameCurve) {
  Rehearsal whole(GetParam().make);
  std::vector<StateDict> states;
  std::vector<StateDict> histories;
  std::vector<std::vector<std::vector<double>>> fields;
  for (int64_t k = 0; k <= kUpdates; ++k) {
    states.push_back(whole.scheduler->state_dict());
    histories.push_back(whole.history.state_dict());
    fields.push_back(whole.fields());
    whole.step();
  }
  for (std::size_t k = 0; k <= kUpdates; ++k) {
    SCOPED_TRACE("state of " + std::to_string(k));
    Rehearsal resumed(GetParam().make, five_epochs(), {0.7, 0.3});  // replaced by the state's
    resumed.history.load_state_dict(histories[k]);
    resumed.scheduler->load_state_dict(states[k]);
    for (std::size_t rest = k; rest <= kUpdates; ++rest) {
      ASSERT_EQ(resumed.scheduler->num_updates(), static_cast<int64_t>(rest));
      ASSERT_EQ(resumed.fields(), fields[rest]) << "update " << rest + 1;
      resumed.step();
    }
  }
}

TEST_P(SchedulerContractTest, EveryGroupMovesFromItsOwnBaseValue) {
  Rehearsal run(GetParam().make);
  const auto base = run.scheduler->base_values();
  std::vector<bool> has_moved(2);
  double largest_ratio_gap = 0.0;
  for (int64_t k = 0; k < kUpdates; ++k) {
    const auto lr = run.fields()[0];
    ASSERT_EQ(lr.size(), 2U);
    for (std::size_t group = 0; group < 2; ++group) {
      if (std::abs(lr[group] / base[group] - 1.0) > 0.01) has_moved[group] = true;
    }
    largest_ratio_gap = std::max(largest_ratio_gap, std::abs(lr[0] / base[0] - lr[1] / base[1]));
    run.step();
  }
  EXPECT_TRUE(has_moved[0] && has_moved[1]);
  // The curves may differ only by small absolute final values, such as that of the cosine.
  EXPECT_LT(largest_ratio_gap, 1e-3);
}

TEST_P(SchedulerContractTest, ValuesAreNeverNegativeAndNeverNaN) {
  const Rehearsal run(GetParam().make);
  for (int64_t n = 0; n <= 5 * kUpdates; ++n) {
    auto all = run.scheduler->other_values_at(n);
    all.push_back({run.scheduler->field(), run.scheduler->values_at(n)});
    for (const auto& [field, values] : all) {
      ASSERT_EQ(values.size(), 2U);
      for (double value : values) EXPECT_TRUE(std::isfinite(value) && value >= 0.0) << n;
    }
  }
}

TEST_P(SchedulerContractTest, EndsAtItsLengthOrContinuesForever) {
  const Rehearsal run(GetParam().make);
  auto changes_after = [&](int64_t begin) {
    const auto last = run.scheduler->values_at(begin);
    for (int64_t n = begin; n <= 3 * kUpdates; ++n) {
      if (run.scheduler->values_at(n) != last) return true;
    }
    return false;
  };
  if (GetParam().end) {
    if (*GetParam().end > 0) {
      EXPECT_TRUE(changes_after(*GetParam().end - 1));
    }
    EXPECT_FALSE(changes_after(*GetParam().end));
  } else {
    EXPECT_TRUE(changes_after(kUpdates));
  }
}

TEST_P(SchedulerContractTest, AddedGroupsFollowTheCurve) {
  Rehearsal run(GetParam().make);
  for (int i = 0; i < 20; ++i) run.step();
  auto options = std::make_unique<torch::optim::AdamWOptions>(0.02);
  run.optimizer->add_param_group({{torch::zeros({1}).requires_grad_()}, std::move(options)});
  for (int k = 20; k < kUpdates; ++k) {
    run.step();
    const auto lr = run.fields()[0];
    ASSERT_EQ(lr.size(), 3U);
    if (!GetParam().follows_a_metric()) {
      EXPECT_EQ(lr[2], lr[1]) << "update " << k + 1;
    }
  }
  EXPECT_EQ(run.scheduler->base_values(), (std::vector<double>{0.1, 0.02, 0.02}));
  run.optimizer->param_groups().pop_back();
  EXPECT_ERROR(run.scheduler->step(), "has 2 param groups, but its scheduler was created for 3");
  EXPECT_ERROR(restore_base_values(*run.scheduler, *run.optimizer),
               "groups can be added but not removed");
}

TEST_P(SchedulerContractTest, RestoresTheValuesItChanged) {
  Rehearsal run(GetParam().make);
  const auto before = Rehearsal(constant({.factor = 1.0})).fields();
  for (int i = 0; i < 37; ++i) run.step();
  restore_base_values(*run.scheduler, *run.optimizer);
  EXPECT_EQ(run.fields(), before);
}

TEST_P(SchedulerContractTest, OtherLengthsAreRefusedUnlessAllowed) {
  const Rehearsal run(GetParam().make);
  const StateDict state = run.scheduler->state_dict();
  RunConfig longer = five_epochs();
  longer.num_epochs *= 2;
  longer.max_num_updates *= 2;
  const Rehearsal other(GetParam().make, longer);
  if (other.scheduler->lengths() == run.scheduler->lengths()) {
    other.scheduler->load_state_dict(state);
    return;
  }
  EXPECT_ERROR(other.scheduler->load_state_dict(state), "allow_changed_schedule_length");
  other.scheduler->allow_changed_lengths(true);
  other.scheduler->load_state_dict(state);
}

TEST_P(SchedulerContractTest, CoversTheWholeCurveWithAnyNumberOfRanks) {
  // In pytorch-accelerated, with N processes, the run covered only 1 / N of the cosine's curve.
  constexpr int64_t kSamples = 1 << 20;
  for (int64_t ranks : {1, 2, 4, 64, 4096}) {
    for (int64_t accumulation : {1, 3}) {
      SCOPED_TRACE(c10::str(ranks, " ranks, accumulation ", accumulation));
      RunConfig config;
      config.num_processes = ranks;
      config.train_per_device_batch_size = 4;
      config.gradient_accumulation_steps = accumulation;
      config.num_epochs = 3;
      config.num_eval_batches_per_epoch = 1;
      config.num_train_batches_per_epoch = kSamples / (config.train_per_device_batch_size * ranks);
      set_training_lengths(config, {.num_epochs = config.num_epochs});
      EXPECT_EQ(config.train_total_batch_size, 4 * ranks * accumulation);
      const int64_t per_epoch =
          (config.num_train_batches_per_epoch + accumulation - 1) / accumulation;
      ASSERT_EQ(config.max_num_updates, 3 * per_epoch);

      const auto optimizer = adamw_with_rates({0.1, 0.02});
      const auto scheduler = GetParam().make(*optimizer, config);
      const double share_of_run = 1.0 / static_cast<double>(config.max_num_updates);
      for (const auto& [name, length] : scheduler->lengths()) {
        EXPECT_LE(length * share_of_run, 1.0) << name;
      }
      if (GetParam().end == kUpdates) {
        // A curve that depends on the length of the run ends exactly when the run ends.
        const auto end = scheduler->values_at(config.max_num_updates);
        EXPECT_EQ(scheduler->values_at(config.max_num_updates + 1), end);
        EXPECT_NE(scheduler->values_at(config.max_num_updates - 1), end);
      }
    }
  }
}

/// Counts the steps of the optimizer and the scheduler. Skips every `skip_every`-th update.
class CountingTrainer : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;

  int64_t num_scheduler_steps = 0;
  int64_t num_optimizer_steps = 0;
  int64_t skip_every = 0;

 protected:
  void optimizer_step() override {
    ++num_windows_;
    if (skip_every > 0 && num_windows_ % skip_every == 0) {
      accelerator().skip_optimizer_step();
      return;
    }
    ++num_optimizer_steps;
    QuietTrainer::optimizer_step();
  }

  void scheduler_step() override {
    ++num_scheduler_steps;
    QuietTrainer::scheduler_step();
  }

 private:
  int64_t num_windows_ = 0;
};

TEST_P(SchedulerContractTest, StepsOncePerUpdate) {
  struct Setting {
    int64_t accumulation;
    std::optional<int64_t> max_steps;
    int64_t skip_every;
    int64_t updates;
  };
  // There are 3 epochs of 20 batches. With accumulation windows of 3, the last one has 2.
  for (const auto& [accumulation, max_steps, skip_every, updates] :
       {Setting{1, std::nullopt, 0, 60}, Setting{3, std::nullopt, 0, 21}, Setting{3, 11, 0, 11},
        Setting{1, 47, 0, 47}, Setting{1, std::nullopt, 4, 45}}) {
    SCOPED_TRACE(c10::str("accumulation ", accumulation, ", skipping ", skip_every));
    const auto model = toy_model();
    CountingTrainer trainer(model, torch::nn::CrossEntropyLoss(),
                            std::make_shared<torch::optim::AdamW>(model->parameters(),
                                                                  torch::optim::AdamWOptions(0.01)),
                            {.default_callbacks = {}, .accelerator = {.device = "cpu"}});
    trainer.skip_every = skip_every;
    trainer.train({.train_dataset = toy_data(40),
                   .eval_dataset = toy_data(4),
                   .per_device_batch_size = 2,
                   .num_epochs = 3,
                   .max_num_updates = max_steps,
                   .gradient_accumulation_steps = accumulation,
                   .create_scheduler_fn = GetParam().make});
    EXPECT_EQ(trainer.num_optimizer_steps, updates);
    EXPECT_EQ(trainer.num_scheduler_steps, updates);
    EXPECT_EQ(trainer.num_updates(), updates);
    EXPECT_EQ(trainer.scheduler()->num_updates(), updates);
  }
}

INSTANTIATE_TEST_SUITE_P(EverySchedule, SchedulerContractTest, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

TEST(SchedulerContractCoverageTest, EveryNamedScheduleIsInTheSuite) {
  std::set<std::string> names;
  for (const Case& schedule : cases()) names.insert(schedule.name);
  for (std::string name : scheduler_names()) {
    std::replace(name.begin(), name.end(), '-', '_');
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

}  // namespace
}  // namespace linkboy::testing::scheduler_contract_test

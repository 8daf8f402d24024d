#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <algorithm>

#include "linkboy/callbacks.hpp"
#include "linkboy/run/run_config.hpp"
#include "linkboy/schedulers.hpp"
#include "linkboy/util/text_options.hpp"
#include "support/expect_error.hpp"

namespace linkboy {
namespace {

template <class Options>
class FormerKeysTest : public ::testing::Test {};

using OptionsWithFormerKeys =
    ::testing::Types<EarlyStoppingOptions, ModelEmaOptions, PhaseTimerOptions, ProfilerOptions,
                     SaveBestModelOptions, SaveTrainingStateOptions, StepBasedEvaluationOptions,
                     TerminateOnNaNOptions, ConstantSchedulerOptions, LinearSchedulerOptions,
                     PolynomialSchedulerOptions, OneCycleSchedulerOptions, TanhSchedulerOptions,
                     WsdSchedulerOptions, InverseSqrtSchedulerOptions,
                     ReduceOnPlateauSchedulerOptions, CosineRestartsSchedulerOptions,
                     CosineSchedulerOptions>;
TYPED_TEST_SUITE(FormerKeysTest, OptionsWithFormerKeys);

TYPED_TEST(FormerKeysTest, EachSetsACurrentField) {
  const auto fields = options_to_text(TypeParam{});
  const auto value_of = [](const TextSettings& settings, std::string_view key) {
    return std::find_if(settings.begin(), settings.end(),
                        [&](const auto& setting) { return setting.first == key; });
  };
  for (const FormerKey& former : TypeParam::kFormerKeys) {
    SCOPED_TRACE(former.name);
    EXPECT_EQ(value_of(fields, former.name), fields.end()) << "still a field";
    const auto today = value_of(fields, former.now);
    ASSERT_NE(today, fields.end()) << "no field: " << former.now;
    // Chooses a value that differs from the default, based on the text of the default.
    const bool is_flag = today->second == "false" || former.now == "save_at_decays";
    const std::string text = is_flag ? "true" : today->second == "true" ? "false" : "17";
    const auto read =
        options_to_text(options_from_text<TypeParam>("test", {{std::string(former.name), text}}));
    const std::string wanted = former.unit.empty() ? text : "(17 * num_updates_per_epoch)";
    EXPECT_EQ(value_of(read, former.now)->second, wanted);
    EXPECT_ERROR(options_from_text<TypeParam>(
                     "test", {{std::string(former.name), text}, {std::string(former.now), text}}),
                 "is set twice");
  }
}

TEST(FormerCosineTest, TheNumberOfEpochsOfACosineMayBeNone) {
  const auto read = options_from_text<CosineSchedulerOptions>("test", {{"num_epochs", "none"}});
  EXPECT_EQ(options_to_text(read), options_to_text(CosineSchedulerOptions{}));
}

TEST(FormerCosineTest, AnEmptyTextIsNotDropped) {
  EXPECT_ERROR(options_from_text<CosineSchedulerOptions>("test", {{"k_decay", ""}}),
               "it must be a number");
  EXPECT_EQ(options_from_text<EarlyStoppingOptions>("test", {{"watch_metric", ""}}).monitor, "");
}

TEST(FormerLengthsTest, AStateOfVersion01IsReadAndItsLengthsAreCompared) {
  auto parameter = torch::zeros({1}, torch::requires_grad());
  torch::optim::SGD optimizer({parameter}, /*defaults=*/{0.1});
  const RunConfig config{.num_epochs = 10, .num_updates_per_epoch = 10, .max_num_updates = 100};
  struct Case {
    CreateSchedulerFn schedule;
    std::string now, former;
  };
  for (const auto& [schedule, now, former] :
       {Case{constant({.num_updates = 30}), "num_updates", "total_iters"},
        Case{one_cycle({.max_lr = 0.2}), "num_updates", "total_steps"},
        Case{tanh_decay(), "num_updates", "t_initial"},
        Case{cosine_restarts({.first_cycle_updates = 20}), "first_cycle_updates", "T_0"},
        Case{inverse_sqrt({.warmup_updates = 9}), "warmup_updates", "num_warmup_steps"},
        Case{warmup({.scheduler = linear(), .warmup_updates = 9}), "warmup_updates", "warmup_t"},
        Case{warmup({.scheduler = linear(), .warmup_updates = 9}), "part 1 num_updates",
             "part 1 total_iters"}}) {
    SCOPED_TRACE(former);
    const auto scheduler = schedule(optimizer, config);
    StateDict state = scheduler->state_dict();
    StateDict lengths = state.get_dict("lengths");
    ASSERT_TRUE(lengths.contains(now));
    const double length = lengths.get_double(now);
    lengths.erase(now);
    const auto with_length = [&, key = former](double former_length) {
      lengths.set(key, former_length);
      state.set("lengths", lengths);
      return state;
    };
    EXPECT_NO_THROW(scheduler->load_state_dict(with_length(length)));
    EXPECT_ERROR(scheduler->load_state_dict(with_length(length + 1)),
                 "the scheduler's state was saved with " + now);
  }
}

TEST(FormerPlaceholdersTest, AreAcceptedAsText) {
  const RunConfig config{.num_epochs = 3,
                         .num_updates_per_epoch = 5,
                         .max_num_updates = 14,
                         .num_train_batches_per_epoch = 10,
                         .num_eval_batches_per_epoch = 4};
  const auto value_of = [&](const char* text) {
    return RunExpression::parse(text).resolve(config);
  };
  EXPECT_EQ(value_of("NUM_EPOCHS"), 3.0);
  EXPECT_EQ(value_of("NUM_UPDATE_STEPS / 2"), 7.0);
  EXPECT_EQ(value_of("NUM_UPDATE_STEPS_PER_EPOCH * 2"), 10.0);
  EXPECT_EQ(value_of("TRAIN_DATALOADER_LEN"), 10.0);
  EXPECT_EQ(value_of("EVAL_DATALOADER_LEN"), 4.0);
  EXPECT_EQ(RunExpression::parse("NUM_EPOCHS").to_string(), "num_epochs");
}

}  // namespace
}  // namespace linkboy

// Training runs that freeze and unfreeze layers.

#include "linkboy/callbacks/freeze_layers.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <map>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "support/cpu_trainer.hpp"
#include "support/expect_error.hpp"
#include "support/matchers.hpp"
#include "support/nested_net.hpp"
#include "support/saved_states.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::freeze_layers_test {
namespace {

/// Returns a freezer that has frozen all layer groups except the last.
std::shared_ptr<ModelFreezer> freezer_of(const Model& model, const FreezeOptions& options = {},
                                         bool freeze_batch_norms = false) {
  auto freezer = std::make_shared<ModelFreezer>(
      model, ModelFreezerOptions{.freeze_batch_norms = freeze_batch_norms});
  freezer->freeze(options);
  return freezer;
}

std::shared_ptr<torch::optim::SGD> sgd_of(const ModelFreezer& freezer) {
  return std::make_shared<torch::optim::SGD>(freezer.get_trainable_parameters(), 0.1);
}

TEST(FineTuningTest, FrozenParametersNeitherChangeNorGetOptimizerState) {
  NestedNet net;
  freezer_of(net, {}, /*freeze_batch_norms=*/true);
  auto optimizer = std::make_shared<torch::optim::AdamW>(
      net->parameters(), torch::optim::AdamWOptions(0.01).weight_decay(0.1));
  auto trainer = cpu_trainer(net, {}, optimizer);
  const auto before = copies_of(net->parameters());
  trainer.train(fine_tuning_run(2));
  const auto after = net->parameters();
  for (std::size_t i = 0; i < after.size(); ++i) {
    const bool is_frozen = !after[i].requires_grad();
    EXPECT_EQ(torch::equal(before[i], after[i]), is_frozen) << i;
    EXPECT_EQ(optimizer->state().count(after[i].unsafeGetTensorImpl()), is_frozen ? 0U : 1U) << i;
  }
}

TEST(FineTuningTest, RunningStatisticsOfFrozenLayersDoNotChange) {
  for (const bool keeps_modes : {false, true}) {
    SCOPED_TRACE(keeps_modes);
    NestedNet net;
    const auto freezer = freezer_of(net, {.set_modules_as_eval = true}, true);
    CallbackList callbacks;
    if (keeps_modes) callbacks.push_back(std::make_shared<FreezeLayers>(freezer));
    auto trainer = cpu_trainer(net, callbacks, sgd_of(*freezer));
    const auto before = copies_of(net->buffers());
    auto options = fine_tuning_run(2);
    options.eval_dataset = toy_data(6);
    trainer.train(options);
    EXPECT_EQ(bit_equal(before, net->buffers()), keeps_modes);
    EXPECT_TRUE(net->is_training());
  }
}

TEST(FineTuningTest, FrozenLayersStayInEvaluationModeAfterACallOfTrain) {
  NestedNet net;
  const auto freezer = freezer_of(net, {.set_modules_as_eval = true}, true);
  const auto train_the_model = make<LambdaCallback>(
      {.on_train_step_end = [](Trainer& trainer, auto&, auto&) { trainer.model().train(); }});
  auto trainer = cpu_trainer(net, {train_the_model, std::make_shared<FreezeLayers>(freezer)},
                             sgd_of(*freezer));
  const auto before = copies_of(net->buffers());
  trainer.train(fine_tuning_run(1));
  EXPECT_TRUE(bit_equal(before, net->buffers()));
}

TEST(FineTuningTest, AGroupAddedBetweenRunsFollowsTheSchedule) {
  auto model = toy_model();
  const auto freezer = freezer_of(model);
  const auto options_of = [](double lr) { return torch::optim::SGDOptions(lr).momentum(0.9); };
  auto optimizer =
      std::make_shared<torch::optim::SGD>(freezer->get_trainable_parameters(), options_of(0.1));
  auto trainer = cpu_trainer<LrTrainer>(model, {}, optimizer);
  auto options = fine_tuning_run(1);  // four updates
  options.create_scheduler_fn = cosine({.min_lr = 0.0});
  const auto start = copies_of(model->parameters());
  trainer.train(options);
  EXPECT_TRUE(torch::equal(start[0], model->parameters()[0]));
  EXPECT_FALSE(torch::equal(start[2], model->parameters()[2]));

  for (const auto& [group, parameters] : freezer->unfreeze()) {
    EXPECT_EQ(group, 0);
    optimizer->add_param_group(
        {parameters, std::make_unique<torch::optim::SGDOptions>(options_of(0.02))});
  }
  trainer.lrs.clear();
  options.num_epochs = 2;
  options.reset_run_history = false;
  EXPECT_EQ(trainer.train(options).num_updates, 8);
  EXPECT_EQ(trainer.run_history().current_epoch(), 4);
  EXPECT_EQ(trainer.run_history().get_metric_values("train_loss_epoch").size(), 3U);
  EXPECT_FALSE(torch::equal(start[0], model->parameters()[0]));
  ASSERT_EQ(trainer.lrs.size(), 8U);
  for (std::size_t i = 0; i < trainer.lrs.size(); ++i) {
    ASSERT_EQ(trainer.lrs[i].size(), 2U);
    const double share = 0.5 * (1.0 + std::cos(M_PI * static_cast<double>(i) / 8.0));
    EXPECT_NEAR(trainer.lrs[i][0], 0.1 * share, 1e-12);
    EXPECT_NEAR(trainer.lrs[i][1], 0.02 * share, 1e-12);
  }
}

/// The nested net with all layers frozen except the output. Two parts are unfrozen later.
struct GradualRun {
  explicit GradualRun(CallbackList more = {})
      : trainer(cpu_trainer<LrTrainer>(net, with_freeze_layers(std::move(more)), optimizer)) {
    options.create_scheduler_fn = cosine();
  }

  CallbackList with_freeze_layers(CallbackList callbacks) const {
    callbacks.push_back(
        make<FreezeLayers>(freezer, {{{.epoch = 2, .from_index = -2},
                                      {.epoch = 3, .from_index = 0, .to_index = 0, .lr = 0.005}}}));
    return callbacks;
  }

  void train() {
    torch::manual_seed(1);
    trainer.train(options);
  }
  /// Resumes from a state. Returns whether the network is then the same as that of `whole`.
  bool resumes_as(const GradualRun& whole, const std::filesystem::path& state) {
    trainer.train(resumed_from(state, options));
    return bit_equal(whole.net->parameters(), net->parameters()) &&
           bit_equal(whole.net->buffers(), net->buffers());
  }

  NestedNet net;
  std::shared_ptr<ModelFreezer> freezer = freezer_of(net, {.set_modules_as_eval = true});
  std::shared_ptr<torch::optim::AdamW> optimizer = std::make_shared<torch::optim::AdamW>(
      freezer->get_trainable_parameters(), torch::optim::AdamWOptions(0.02));
  LrTrainer trainer;
  TrainOptions options = fine_tuning_run(4);
};

TEST(FreezeLayersTest, UnfreezesLayersAtTheGivenEpochs) {
  std::map<std::string, at::Tensor> before;
  const auto keep_weights = [&](Trainer& trainer) {
    for (const std::string name : {"input.weight", "block.linear.weight", "output.weight"}) {
      before[name] = trainer.model().state_dict().get_tensor(name).clone();
    }
  };
  std::vector<std::string> moved;
  const auto find_moved_weights = [&](Trainer& trainer) {
    std::string& names = moved.emplace_back();
    for (const auto& [name, tensor] : trainer.model().named_tensors()) {
      if (before.contains(name) && !torch::equal(before.at(name), tensor)) names += name + " ";
    }
    keep_weights(trainer);
  };
  GradualRun run({make<LambdaCallback>(
      {.on_training_run_start = keep_weights, .on_train_epoch_end = find_moved_weights})});
  run.trainer.train(run.options);
  EXPECT_THAT(moved, ElementsAre("output.weight ", "block.linear.weight output.weight ",
                                 "input.weight block.linear.weight output.weight ",
                                 "input.weight block.linear.weight output.weight "));
  EXPECT_THAT(run.trainer.lines, ElementsAre("Unfreezing layer groups -2 to -1 in epoch 2",
                                             "Unfreezing layer groups 0 to 0 in epoch 3"));
  EXPECT_EQ(modules_in_eval(*run.net), Names{});
  ASSERT_EQ(run.optimizer->param_groups().size(), 3U);
  EXPECT_EQ(run.optimizer->param_groups()[1].params().size(), 4U);
  EXPECT_EQ(run.optimizer->param_groups()[2].params().size(), 2U);
  // The learning rates of the first update are the base values of the schedule.
  EXPECT_EQ(run.trainer.lrs[0], (std::vector<double>{0.02, 0.02, 0.005}));
  EXPECT_NEAR(run.trainer.lrs[8][2] / run.trainer.lrs[8][0], 0.25, 1e-3);

  run.trainer.train(run.options);  // does not add a group or freeze layers again
  EXPECT_EQ(run.optimizer->param_groups().size(), 3U);
  EXPECT_EQ(frozen_names(*run.net), Names{});
}

TEST(FreezeLayersTest, GraphModeRecordsAgainAfterUnfreezing) {
  const SingleThread single_thread;
  std::vector<std::vector<torch::Tensor>> weights;
  for (const auto mode : {ExecutionMode::eager, ExecutionMode::graph}) {
    GradualRun run;
    run.options.execution_mode = mode;
    run.train();
    weights.push_back(copies_of(run.net->parameters()));
  }
  EXPECT_TRUE(bit_equal(weights[0], weights[1]));
}

TEST(FreezeLayersTest, AddsGroupsForNewParametersAlsoIfItIsAddedBetweenRuns) {
  for (const bool is_new : {false, true}) {
    auto model = toy_model();
    const auto freezer = freezer_of(model);
    auto trainer = cpu_trainer(model, {}, is_new ? sgd_of(*freezer) : toy_sgd(model));
    trainer.train(fine_tuning_run(1));
    trainer.callback_handler().add(make<FreezeLayers>(freezer, {{{.from_index = 0, .lr = 0.5}}}));
    const auto before = copies_of(model->parameters());
    trainer.train(fine_tuning_run(1));
    EXPECT_EQ(get_param_group_field(*trainer.optimizer(), ParamGroupField::lr),
              is_new ? (std::vector{0.1, 0.5}) : std::vector{0.1});
    EXPECT_EQ(frozen_names(*model), Names{});
    EXPECT_FALSE(torch::equal(before[0], model->parameters()[0]));
  }
}

// In LibTorch 2.15, add_param_group treats Adam's default of 0.001 as not set.
TEST(FreezeLayersTest, AStepCanUseTheDefaultLearningRateOfTheOptimizer) {
  auto model = toy_model();
  const auto freezer = freezer_of(model);
  auto trainer =
      cpu_trainer(model, {make<FreezeLayers>(freezer, {{{.from_index = 0, .lr = 0.001}}})},
                  std::make_shared<torch::optim::Adam>(freezer->get_trainable_parameters(), 0.1));
  trainer.train(fine_tuning_run(1));
  EXPECT_EQ(get_param_group_field(*trainer.optimizer(), ParamGroupField::lr),
            (std::vector<double>{0.1, 0.001}));
}

TEST(FreezeLayersTest, EvaluatesWithoutAnOptimizer) {
  auto model = toy_model();
  QuietTrainer trainer(model, torch::nn::CrossEntropyLoss(), nullptr,
                       {.callbacks = {make<FreezeLayers>(freezer_of(model), {{{.epoch = 1}}})},
                        .default_callbacks = {},
                        .accelerator = {.device = "cpu"}});
  EXPECT_EQ(trainer.evaluate({.dataset = toy_data(6)}).count("evaluation_loss"), 1U);
}

TEST(FreezeLayersTest, ARunResumesBitIdenticallyBeforeAndAfterEachStep) {
  const SingleThread single_thread;
  const TemporaryFolder folder;
  GradualRun whole;
  whole.train();
  // An epoch has four updates: saves in the middle of epochs 1, 2 and 3, and at the end of epoch 1.
  for (const int64_t update : {2, 4, 6, 11}) {
    const auto directory = folder / std::to_string(update);
    GradualRun first({std::make_shared<SaveOnce>(directory, update)});
    first.train();
    GradualRun second;
    EXPECT_TRUE(second.resumes_as(whole, directory)) << update;
    EXPECT_EQ(frozen_names(*second.net), Names{});
  }
}

TEST(FreezeLayersTest, AResumedSecondRunContinuesWithTheLayersThatTheFirstOneUnfroze) {
  const SingleThread single_thread;
  const TemporaryFolder folder;
  // In epoch 1 of the second run, before the epoch of any step.
  GradualRun whole({std::make_shared<SaveOnce>(folder / "state", 2)});
  whole.train();
  whole.trainer.train(whole.options);
  GradualRun second;
  EXPECT_TRUE(second.resumes_as(whole, folder / "state"));
}

TEST(FineTuningTest, ARunWithAnAddedGroupResumesBitIdentically) {
  const SingleThread single_thread;
  const TemporaryFolder folder;
  const auto unfrozen_trainer = [](torch::nn::Sequential& model) {
    const auto freezer = freezer_of(model);
    auto optimizer =
        std::make_shared<torch::optim::AdamW>(freezer->get_trainable_parameters(), 0.01);
    for (const auto& [group, parameters] : freezer->unfreeze()) {
      optimizer->add_param_group({parameters, std::make_unique<torch::optim::AdamWOptions>(1e-3)});
    }
    return cpu_trainer(model, {}, optimizer);
  };
  auto whole = toy_model();
  auto trainer = unfrozen_trainer(whole);
  trainer.callback_handler().add(std::make_shared<SaveOnce>(folder.path(), 5));
  torch::manual_seed(1);
  trainer.train(fine_tuning_run(2));

  auto resumed = toy_model();
  const auto options = resumed_from(folder.path(), fine_tuning_run(2));
  unfrozen_trainer(resumed).train(options);
  EXPECT_TRUE(bit_equal(whole->parameters(), resumed->parameters()));

  Toy one_group;
  EXPECT_ERROR(one_group.trainer.train(options), "parameter groups");
}

TEST(FreezeLayersTest, RefusesInvalidOptions) {
  const auto freezer = std::make_shared<ModelFreezer>(toy_model());
  const auto with_step = [&](UnfreezeStep step) {
    FreezeLayers(freezer, FreezeLayersOptions{{step}});
  };
  EXPECT_ERROR(FreezeLayers(nullptr), "the freezer is null");
  EXPECT_ERROR(with_step({.epoch = 0}), "epochs count from 1");
  EXPECT_ERROR(with_step({.from_index = 3}), "no layer group 3");
  EXPECT_ERROR(with_step({.to_index = -4}), "no layer group -4");
  EXPECT_ERROR(with_step({.lr = -0.1}), "has the lr -0.1");
  EXPECT_ERROR(with_step({.lr = INFINITY}), "has the lr inf");
}

}  // namespace
}  // namespace linkboy::testing::freeze_layers_test

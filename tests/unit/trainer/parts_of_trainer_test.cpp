// The classes that hold a Trainer's modules and optimizers and the losses of a run, each alone.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "checkpoint/checkpoint_keys.hpp"
#include "linkboy/accelerator.hpp"
#include "linkboy/run/run_history.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "support/expect_error.hpp"
#include "support/toy.hpp"
#include "trainer/loss_means.hpp"
#include "trainer/trained_modules.hpp"
#include "trainer/trained_optimizers.hpp"
#include "trainer/window_contents.hpp"

namespace linkboy::testing::parts_of_trainer_test {
namespace {

StepOutput step(double loss, int64_t size, double box = 0.0) {
  StepOutput output{.loss = torch::tensor(loss), .batch_size = size};
  if (box != 0.0) output.extras.set("box", torch::tensor(box));
  return output;
}

TEST(LossMeansTest, WeightsLossesBySamplesAndRecordsThemUnderRelatedNames) {
  LossMeans losses({"box"});
  losses.track_train(step(1.0, 1, 2.0));
  losses.track_train(step(4.0, 2, 5.0));
  EXPECT_EQ(losses.main().count(), 3);
  InMemoryRunHistory history;
  losses.record(history, Accelerator({.device = "cpu"}), "ema_", "train_loss_epoch");
  EXPECT_DOUBLE_EQ(history.get_latest_metric("ema_train_loss_epoch"), 3.0);
  EXPECT_DOUBLE_EQ(history.get_latest_metric("ema_train_box_epoch"), 4.0);
}

TEST(LossMeansTest, AddsTheSumsOfSavedLosses) {
  LossMeans saved({"box"});
  saved.track_train(step(1.0, 2, 3.0));
  LossMeans losses({"box", "mask"});  // "mask" was not tracked when the state was saved
  losses.add(saved.state_dict());
  losses.add(saved.state_dict());
  EXPECT_EQ(losses.main().count(), 4);
  EXPECT_DOUBLE_EQ(losses.main().total(), 4.0);
  const StateDict others = losses.state_dict().get_dict("other_losses");
  EXPECT_EQ(others.get_dict("box").get_int("count"), 4);
  EXPECT_EQ(others.get_dict("mask").get_int("count"), 0);
}

TEST(LossMeansTest, OnlyATrainingStepMustReturnAllTrackedLosses) {
  LossMeans losses({"box"});
  losses.track_eval(step(1.0, 1));
  EXPECT_ERROR(losses.track_train(step(1.0, 1)), "returned no extra \"box\"");
  EXPECT_ERROR(losses.track_eval(step(1.0, 0)),
               "calculate_eval_batch_loss returned a batch_size of 0");
}

TEST(WindowContentsTest, KeepsCopiesOfTheBatchesOfALongWindowUntilItIsCleared) {
  WindowContents window(/*weights_by_batch_size=*/false, /*keeps_passes=*/true);
  const torch::Tensor memory = torch::ones({2, 4});
  for (int64_t i = 0; i < 2; ++i) {
    window.begin_pass(Batch({{"input", memory}}));
    window.add_loss(torch::tensor(3.0), {.index = i, .length = 2});
    window.keep_pass(i, {.index = i, .length = 2});
    memory.add_(1.0);  // as a loader does that uses its memory again
  }
  ASSERT_EQ(window.passes().size(), 2);
  EXPECT_EQ(window.passes()[0].batch.input().sum().item<double>(), 8.0);
  EXPECT_EQ(window.passes()[1].micro_step, 1);
  EXPECT_EQ(window.take_loss().item<double>(), 3.0);
  EXPECT_FALSE(window.take_loss().defined());
  EXPECT_ERROR(window.keep_pass(2, {}), "train_step called backward without forward");
  window.clear();
  EXPECT_TRUE(window.passes().empty());
}

TEST(WindowContentsTest, AWindowWithoutWeightedPassesIsAnError) {
  const auto model = toy_model();
  const auto optimizer = toy_sgd(model);
  WindowContents window(/*weights_by_batch_size=*/true, /*keeps_passes=*/false);
  EXPECT_ERROR(window.weight_gradients(*optimizer, Accelerator({.device = "cpu"})),
               "weight_by_batch_size needs Trainer's forward and backward");
}

TEST(TrainedModulesTest, TheModuleOfTheLossFunctionIsTheFirstRegisteredOne) {
  auto loss = std::make_shared<torch::nn::CrossEntropyLossImpl>(
      torch::nn::CrossEntropyLossOptions().weight(torch::ones(3)));
  TrainedModules modules(toy_model(), loss);
  modules.add(torch::nn::BatchNorm1d(3).ptr());
  ASSERT_EQ(modules.registered().size(), 2);
  EXPECT_EQ(modules.registered()[0], loss);
  EXPECT_EQ(modules.parameter_identities().size(), 6);  // 4 of the model, 2 of batch norm
  EXPECT_ERROR(modules.add(nullptr), "the module to register is null");
}

TEST(TrainedModulesTest, ReturnsBuffersAloneOrWithTheParameters) {
  TrainedModules modules(torch::nn::BatchNorm1d(3), {});
  modules.add(torch::nn::BatchNorm1d(2).ptr());
  const StateDict buffers = modules.tensors_by_part(/*with_parameters=*/false);
  const StateDict all = modules.tensors_by_part(/*with_parameters=*/true);
  for (const char* part : {kModel, kRegisteredModules}) {
    const StateDict few =
        part == kModel ? buffers.get_dict(part) : buffers.get_dict(part).get_dict("0");
    const StateDict more = part == kModel ? all.get_dict(part) : all.get_dict(part).get_dict("0");
    EXPECT_FALSE(few.contains("weight"));
    EXPECT_TRUE(few.contains("running_mean"));
    EXPECT_TRUE(more.contains("weight"));
  }
}

TEST(TrainedModulesTest, ChecksAllStatesBeforeItLoadsOne) {
  TrainedModules modules(toy_model(), {});
  modules.add(torch::nn::Linear(2, 2).ptr());
  StateDict contents;
  contents.set(kModel, modules.model().state_dict());
  contents.set(kRegisteredModules, StateDict());
  EXPECT_ERROR(modules.check(contents, /*with_registered=*/true, "file.pt"),
               "has no state of the registered module 0");
  EXPECT_TRUE(modules.check(contents, /*with_registered=*/false, "file.pt").registered.empty());
  contents.set(kModel, StateDict());
  EXPECT_ERROR(modules.check(contents, /*with_registered=*/false, "file.pt"), "file.pt");
}

TEST(TrainedOptimizersTest, ListsTheOwnOptimizerBeforeTheRegisteredOnes) {
  const auto model = toy_model();
  const auto second = toy_model();
  const auto own = toy_sgd(model);
  TrainedOptimizers optimizers(own);
  const auto other = toy_sgd(second);
  optimizers.add("critic", other, {});
  EXPECT_EQ(optimizers.bare(), (std::vector<torch::optim::Optimizer*>{own.get(), other.get()}));
  EXPECT_EQ(optimizers.parameters().size(), 8);
  EXPECT_EQ(optimizers.named("critic").trained.get(), other);
  EXPECT_TRUE(optimizers.scheduled_names().empty());
  EXPECT_ERROR(optimizers.named("actor"), "registered: critic");
  EXPECT_ERROR(optimizers.add("critic", own, {}), "already registered");
  EXPECT_ERROR(optimizers.add("actor", nullptr, {}), "is null");

  model->parameters()[0].mutable_grad() = torch::ones_like(model->parameters()[0]);
  second->parameters()[0].mutable_grad() = torch::ones_like(second->parameters()[0]);
  optimizers.zero_gradients();
  EXPECT_FALSE(model->parameters()[0].grad().defined());
  EXPECT_FALSE(second->parameters()[0].grad().defined());
}

TEST(TrainedOptimizersTest, NamesThatAreNotInAStateAreAnErrorThatListsBoth) {
  StateDict states;
  states.set("critic", StateDict());
  StateDict contents;
  contents.set(kRegisteredOptimizers, states);
  TrainedOptimizers::check_names(contents, kRegisteredOptimizers, {"critic"}, "file.pt");
  EXPECT_ERROR(
      TrainedOptimizers::check_names(contents, kRegisteredOptimizers, {"actor"}, "file.pt"),
      "the states of critic, but the Trainer has actor");
}

}  // namespace
}  // namespace linkboy::testing::parts_of_trainer_test

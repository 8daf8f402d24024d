// ModelEma: its values, its evaluation, and its files.

#include "linkboy/callbacks/model_ema.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/save_best_model.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "support/averages.hpp"
#include "support/cpu_trainer.hpp"
#include "support/expect_error.hpp"
#include "support/keep_losses.hpp"
#include "support/skipping_trainer.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::model_ema_test {
namespace {

using torch::Tensor;

/// Keeps the weights before the first update and after each update.
class KeepWeights : public Callback {
 public:
  void on_training_run_start(Trainer& trainer) override { keep(trainer); }
  void on_train_update_end(Trainer& trainer) override { keep(trainer); }
  std::vector<std::vector<Tensor>> weights;

 private:
  void keep(Trainer& trainer) { weights.push_back(copies_of(trainer.model().parameters())); }
};

/// Returns the average, computed in double precision from its definition.
std::vector<Tensor> average_by_hand(const std::vector<std::vector<Tensor>>& weights,
                                    const std::vector<double>& decays) {
  std::vector<Tensor> average;
  for (const Tensor& weight : weights[0]) average.push_back(weight.to(torch::kDouble));
  for (std::size_t k = 0; k < decays.size(); ++k) {
    for (std::size_t i = 0; i < average.size(); ++i) {
      const double d = decays[k];
      average[i] = average[i] * d + weights[k + 1][i].to(torch::kDouble) * (1.0 - d);
    }
  }
  return average;
}

struct Averaged {
  explicit Averaged(ModelEmaOptions options) : ema(make<ModelEma>(std::move(options))) {}

  std::vector<Tensor> average() const { return tensors_of(ema->averaged_model_state()); }

  std::shared_ptr<KeepWeights> keep = std::make_shared<KeepWeights>();
  std::shared_ptr<ModelEma> ema;
  Toy toy{{keep, ema}};
};

std::vector<double> ema_losses(const Trainer& trainer) {
  return trainer.run_history().get_metric_values("ema_model_eval_loss_epoch");
}

TEST(ModelEmaTest, IsBitIdenticalToPythonsAveragedModel) {
  // torch.optim.swa_utils uses torch._foreach_lerp_(averages, weights, 1 - decay).
  Averaged run({.decay = 0.97, .warmup = false});
  run.toy.trainer.train(three_updates_per_epoch(2));
  const auto& weights = run.keep->weights;
  ASSERT_EQ(weights.size(), 7U);
  EXPECT_EQ(run.ema->num_averaged(), 6);
  auto expected = copies_of(weights[0]);
  for (std::size_t k = 1; k < weights.size(); ++k) {
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expected[i].lerp_(weights[k][i], 1.0 - 0.97);
    }
  }
  EXPECT_TRUE(bit_equal(run.average(), expected));
}

TEST(ModelEmaTest, WarmsUpItsDecay) {
  Averaged run({.decay = 0.25});
  auto& weights = run.keep->weights;
  run.toy.trainer.train(three_updates_per_epoch(1));
  expect_close(run.average(), average_by_hand(weights, {1.0 / 10, 2.0 / 11, 3.0 / 12}));
  weights.clear();
  run.toy.trainer.train(three_updates_per_epoch(2));  // a new average; 4 / 13 exceeds 0.25
  expect_close(run.average(),
               average_by_hand(weights, {1.0 / 10, 2.0 / 11, 3.0 / 12, 0.25, 0.25, 0.25}));
}

TEST(ModelEmaTest, StartsAfterSomeUpdatesAndAveragesEveryNth) {
  Averaged run({.decay = 0.5, .warmup = false, .start_after = 2, .every_n_updates = 3});
  run.toy.trainer.train(three_updates_per_epoch(3));  // 9 updates: starts at 2, adds 5 and 8
  EXPECT_EQ(run.ema->num_averaged(), 2);
  const auto& all = run.keep->weights;
  expect_close(run.average(), average_by_hand({all[2], all[5], all[8]}, {0.5, 0.5}));
}

TEST(ModelEmaTest, TheAverageEqualsTheModelBeforeItsStart) {
  Averaged run({.start_after = 100});
  run.toy.trainer.train(three_updates_per_epoch(1));
  EXPECT_TRUE(bit_equal(run.average(), run.toy.model->parameters()));
  EXPECT_EQ(ema_losses(run.toy.trainer),
            run.toy.trainer.run_history().get_metric_values("eval_loss_epoch"));
}

TEST(ModelEmaTest, DoesNotCountSkippedUpdates) {
  auto ema = std::make_shared<ModelEma>();
  ToyOf<SkippingTrainer> toy({ema});
  toy.trainer.skipped_steps = {2};
  toy.trainer.train(three_updates_per_epoch(1));
  EXPECT_EQ(toy.trainer.num_updates(), 2);
  EXPECT_EQ(ema->num_averaged(), 2);
}

TEST(ModelEmaTest, AveragesFloatingPointBuffersAndCopiesIntegers) {
  namespace nn = torch::nn;
  nn::Sequential model(nn::Linear(4, 3), nn::BatchNorm1d(3));
  auto ema = make<ModelEma>({.decay = 0.5, .warmup = false});
  auto trainer =
      cpu_trainer(model, {ema}, std::make_shared<torch::optim::SGD>(model->parameters(), 0.0));
  TrainOptions options = three_updates_per_epoch(1);
  options.per_device_batch_size = 12;
  trainer.train(options);
  const auto own = trainer.model().state_dict();
  const auto average = ema->averaged_model_state();
  EXPECT_EQ(average.get_tensor("1.num_batches_tracked").item<int64_t>(), 1);
  EXPECT_TRUE(torch::allclose(average.get_tensor("1.running_mean"),
                              own.get_tensor("1.running_mean") * 0.5));
  EXPECT_EQ(average.entries().size(), own.entries().size());
}

TEST(ModelEmaTest, AveragesHalfPrecisionWeightsInFullPrecision) {
  torch::nn::Linear model(1, 1);
  model->to(torch::kBFloat16);
  model->weight.detach().fill_(1.0);
  AveragedWeights weights;
  weights.attach(Model(model));
  weights.begin();
  model->weight.detach().fill_(2.0);
  // In bfloat16, the average would always stay at 1.
  for (int k = 0; k < 100; ++k) weights.move_towards_model(0.001);
  const auto average = weights.values().get_tensor("weight");
  EXPECT_EQ(average.scalar_type(), torch::kFloat);
  EXPECT_NEAR(average.item<double>(), 2.0 - std::pow(0.999, 100), 1e-5);
  weights.put_into_model();
  EXPECT_EQ(model->weight.scalar_type(), torch::kBFloat16);
  EXPECT_NEAR(model->weight.item<double>(), 1.0952, 0.01);
  weights.take_out_of_model();
  EXPECT_EQ(model->weight.item<double>(), 2.0);
}

TEST(ModelEmaTest, EvaluatesTheAverageAndContinuesTrainingUnchanged) {
  auto plain_losses = std::make_shared<KeepLosses>();
  Toy plain({plain_losses});
  plain.trainer.train(three_updates_per_epoch(3));
  auto losses = std::make_shared<KeepLosses>();
  auto ema = make<ModelEma>({.decay = 0.5});
  Toy toy({losses, ema});
  toy.trainer.model().to(c10::Device(test_device()));
  std::vector<const void*> storages;
  for (const auto& parameter : toy.model->parameters()) storages.push_back(parameter.data_ptr());
  toy.trainer.train(three_updates_per_epoch(3));
  EXPECT_EQ(losses->losses, plain_losses->losses);
  EXPECT_TRUE(bit_equal(toy.model->parameters(), plain.model->parameters()));
  for (std::size_t i = 0; i < storages.size(); ++i) {
    EXPECT_EQ(toy.model->parameters()[i].data_ptr(), storages[i]);
  }

  const auto values = ema_losses(toy.trainer);
  ASSERT_EQ(values.size(), 3U);
  Toy average;
  average.trainer.model().load_state_dict(ema->averaged_model_state());
  const auto metrics =
      average.trainer.evaluate({.dataset = toy_data(6), .per_device_batch_size = 4});
  EXPECT_EQ(values.back(), metrics.at("evaluation_loss"));
  EXPECT_NE(values.back(), toy.trainer.run_history().get_latest_metric("eval_loss_epoch"));
}

TEST(ModelEmaTest, EvaluatesOnlyAfterEvaluatedEpochs) {
  Toy toy({std::make_shared<ModelEma>()});
  TrainOptions options = three_updates_per_epoch(5);
  options.evaluate_every_n_epochs = 2;
  options.evaluate_before_training = true;
  toy.trainer.train(options);
  EXPECT_EQ(ema_losses(toy.trainer).size(), 3U);  // 2, 4 and 5
  Toy silent({make<ModelEma>({.evaluate = false})});
  silent.trainer.train(options);
  EXPECT_TRUE(ema_losses(silent.trainer).empty());
}

TEST(ModelEmaTest, EarlierCallbacksInTheListCanMonitorItsMetrics) {
  const TemporaryFolder folder;
  auto best =
      make<SaveBestModel>({.path = folder / "best.pt", .monitor = "ema_model_eval_loss_epoch"});
  Toy toy({best, make<ModelEma>({.decay = 0.5})});
  toy.trainer.train(three_updates_per_epoch(3));
  const auto values = ema_losses(toy.trainer);
  EXPECT_EQ(read_checkpoint(folder / "best.pt").get_double("ema_model_eval_loss_epoch"),
            *std::min_element(values.begin(), values.end()));
}

TEST(ModelEmaTest, SavesTheBestAverage) {
  const TemporaryFolder folder;
  const auto path = folder / "new" / "ema.pt";
  auto ema = make<ModelEma>({.decay = 0.5, .path = path});
  EXPECT_TRUE(ema->writes_files());
  std::vector<std::vector<Tensor>> averages;
  auto keep = make<LambdaCallback>({.on_training_run_epoch_end = [&](Trainer&) {
    averages.push_back(tensors_of(ema->averaged_model_state()));
  }});
  // With this learning rate, the loss goes up and down.
  Toy toy({ema, keep}, /*lr=*/1.5);
  TrainOptions options = three_updates_per_epoch(6);
  options.train_dataloader_options.shuffle = false;
  toy.trainer.train(options);
  const auto values = ema_losses(toy.trainer);
  const auto best = std::min_element(values.begin(), values.end()) - values.begin();
  ASSERT_LT(best, 5) << "the last epoch should not be the best";
  const StateDict contents = read_checkpoint(path);
  EXPECT_EQ(contents.get_int("epoch"), best + 1);
  EXPECT_EQ(contents.get_double("ema_model_eval_loss_epoch"), values.at(best));
  const auto saved = tensors_of(contents.get_dict("model_state_dict"));
  EXPECT_TRUE(bit_equal(saved, averages.at(best)));
  toy.trainer.load_checkpoint(path);
  EXPECT_TRUE(bit_equal(toy.model->parameters(), saved));
}

TEST(ModelEmaTest, WithoutEvaluationSavesEachEpoch) {
  const TemporaryFolder folder;
  Averaged run({.path = folder / "ema.pt"});
  TrainOptions options = three_updates_per_epoch(3);
  options.eval_dataset = {};
  run.toy.trainer.train(options);
  const StateDict contents = read_checkpoint(folder / "ema.pt");
  EXPECT_EQ(contents.get_int("epoch"), 3);
  EXPECT_TRUE(bit_equal(tensors_of(contents.get_dict("model_state_dict")), run.average()));
}

TEST(ModelEmaTest, SwapsBackAfterAnExceptionInTheEvaluation) {
  bool fails = true;
  Averaged run({});
  run.toy.trainer.callback_handler().add(
      make<LambdaCallback>({.on_eval_step_end = [&](Trainer& trainer, auto&, auto&) {
        const bool is_of_ema = trainer.run().metric_name("x").starts_with("ema_model_");
        if (fails && is_of_ema) throw Error("no evaluation");
      }}));
  EXPECT_ERROR(run.toy.trainer.train(three_updates_per_epoch(2)), "no evaluation");
  EXPECT_TRUE(bit_equal(run.toy.model->parameters(), run.keep->weights.back()));
  fails = false;
  EXPECT_EQ(run.toy.trainer.train(three_updates_per_epoch(2)).num_epochs, 2);
}

TEST(ModelEmaTest, AStopDuringItsEvaluationEndsTheRunCleanly) {
  Averaged run({.apply_at_end = true});
  run.toy.trainer.callback_handler().add(
      make<LambdaCallback>({.on_eval_epoch_start = [](Trainer& trainer) {
        if (trainer.run().is_intermediate_evaluation()) trainer.request_stop();
      }}));
  EXPECT_EQ(run.toy.trainer.train(three_updates_per_epoch(2)).reason, StopReason::stop_request);
  EXPECT_TRUE(bit_equal(run.toy.model->parameters(), run.keep->weights.back()));
}

TEST(ModelEmaTest, TheUserCanSwapTheAverageInAndOut) {
  auto ema = std::make_shared<ModelEma>();
  Toy toy({ema});
  EXPECT_ERROR(ema->swap_in(toy.trainer), "there is no average of the model yet");
  EXPECT_ERROR(ema->averaged_model_state(), "there is no average of the model yet");
  toy.trainer.train(three_updates_per_epoch(1));
  const auto own = copies_of(toy.model->parameters());
  EXPECT_ERROR(ema->swap_out(toy.trainer), "are not in the model");
  ema->swap_in(toy.trainer);
  EXPECT_TRUE(bit_equal(toy.model->parameters(), tensors_of(ema->averaged_model_state())));
  EXPECT_ERROR(ema->swap_in(toy.trainer), "are in the model already");
  toy.trainer.evaluate({.dataset = toy_data(6)});
  ema->swap_out(toy.trainer);
  EXPECT_TRUE(bit_equal(toy.model->parameters(), own));
}

TEST(ModelEmaTest, AppliesTheAverageToTheModelOnRequest) {
  Averaged run({.apply_at_end = true});
  run.toy.trainer.train(three_updates_per_epoch(1));
  EXPECT_TRUE(bit_equal(run.toy.model->parameters(), run.average()));
  EXPECT_EQ(run.toy.trainer.train(three_updates_per_epoch(1)).num_epochs, 1);  // continues there
}

TEST(ModelEmaTest, RejectsOptionsOutOfRange) {
  EXPECT_ERROR((ModelEma{{.decay = 1.0}}), "decay is 1; it must be at least 0 and below 1");
  EXPECT_ERROR((ModelEma{{.decay = -0.1}}), "decay is -0.1");
  EXPECT_ERROR((ModelEma{{.decay = NAN}}), "decay is nan");
  EXPECT_ERROR((ModelEma{{.start_after = -1}}), "start_after is -1");
  EXPECT_ERROR((ModelEma{{.every_n_updates = 0}}), "every_n_updates is 0");
  Toy toy({make<ModelEma>({.path = "/proc/no/ema.pt"})});
  EXPECT_ERROR(toy.trainer.train(three_updates_per_epoch(1)), "/proc/no");
}

}  // namespace
}  // namespace linkboy::testing::model_ema_test

// ModelEma: its values, its evaluation, and its files.

#include "linkboy/callbacks/model_ema.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "linkboy/callbacks/save_best_model.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/trainer.hpp"
#include "support/averages.hpp"
#include "support/expect_error.hpp"
#include "support/keep_losses.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

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

TEST(ModelEmaTest, AveragesAllUpdates) {
  auto keep = std::make_shared<KeepWeights>();
  auto ema = make<ModelEma>({.decay = 0.9, .warmup = false});
  Toy toy({keep, ema});
  toy.trainer.train(three_updates_per_epoch(2));
  ASSERT_EQ(keep->weights.size(), 7U);
  EXPECT_EQ(ema->num_averaged(), 6);
  const auto averages = tensors_of(ema->averaged_model_state());
  expect_close(averages, average_by_hand(keep->weights, std::vector<double>(6, 0.9)));
  EXPECT_FALSE(bit_equal(averages, toy.model->parameters()));
}

TEST(ModelEmaTest, IsBitIdenticalToPythonsAveragedModel) {
  // torch.optim.swa_utils uses torch._foreach_lerp_(averages, weights, 1 - decay).
  auto keep = std::make_shared<KeepWeights>();
  auto ema = make<ModelEma>({.decay = 0.97, .warmup = false});
  Toy toy({keep, ema});
  toy.trainer.train(three_updates_per_epoch(2));
  auto expected = copies_of(keep->weights[0]);
  for (std::size_t k = 1; k < keep->weights.size(); ++k) {
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expected[i].lerp_(keep->weights[k][i], 1.0 - 0.97);
    }
  }
  EXPECT_TRUE(bit_equal(tensors_of(ema->averaged_model_state()), expected));
}

TEST(ModelEmaTest, WarmsUpItsDecay) {
  auto keep = std::make_shared<KeepWeights>();
  auto ema = make<ModelEma>({.decay = 0.25});
  Toy toy({keep, ema});
  toy.trainer.train(three_updates_per_epoch(1));
  expect_close(tensors_of(ema->averaged_model_state()),
               average_by_hand(keep->weights, {1.0 / 10, 2.0 / 11, 3.0 / 12}));
  toy.trainer.train(three_updates_per_epoch(2));  // a new average; 4 / 13 exceeds 0.25
  keep->weights.erase(keep->weights.begin(), keep->weights.begin() + 4);
  expect_close(tensors_of(ema->averaged_model_state()),
               average_by_hand(keep->weights, {1.0 / 10, 2.0 / 11, 3.0 / 12, 0.25, 0.25, 0.25}));
}

TEST(ModelEmaTest, StartsAfterSomeUpdatesAndAveragesEveryNth) {
  auto keep = std::make_shared<KeepWeights>();
  auto ema =
      make<ModelEma>({.decay = 0.5, .warmup = false, .start_after = 2, .every_n_updates = 3});
  Toy toy({keep, ema});
  toy.trainer.train(three_updates_per_epoch(3));  // 9 updates: starts at 2, adds 5 and 8
  EXPECT_EQ(ema->num_averaged(), 2);
  const auto& all = keep->weights;
  expect_close(tensors_of(ema->averaged_model_state()),
               average_by_hand({all[2], all[5], all[8]}, {0.5, 0.5}));
}

TEST(ModelEmaTest, TheAverageEqualsTheModelBeforeItsStart) {
  auto ema = make<ModelEma>({.start_after = 100});
  Toy toy({ema});
  toy.trainer.train(three_updates_per_epoch(1));
  EXPECT_TRUE(bit_equal(tensors_of(ema->averaged_model_state()), toy.model->parameters()));
  const auto& history = toy.trainer.run_history();
  EXPECT_EQ(history.get_metric_values("ema_model_eval_loss_epoch"),
            history.get_metric_values("eval_loss_epoch"));
}

TEST(ModelEmaTest, DoesNotCountSkippedUpdates) {
  class SkipSecond : public QuietTrainer {
   public:
    using QuietTrainer::QuietTrainer;
    void optimizer_step() override {
      if (++num_calls_ == 2) return accelerator().skip_optimizer_step();
      Trainer::optimizer_step();
    }

   private:
    int num_calls_ = 0;
  };
  auto ema = std::make_shared<ModelEma>();
  const auto model = toy_model();
  SkipSecond trainer(model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
                     {.callbacks = {ema}, .accelerator = {.device = "cpu"}});
  trainer.train(three_updates_per_epoch(1));
  EXPECT_EQ(trainer.num_updates(), 2);
  EXPECT_EQ(ema->num_averaged(), 2);
}

TEST(ModelEmaTest, AveragesFloatingPointBuffersAndCopiesIntegers) {
  namespace nn = torch::nn;
  nn::Sequential model(nn::Linear(4, 3), nn::BatchNorm1d(3));
  auto ema = make<ModelEma>({.decay = 0.5, .warmup = false});
  QuietTrainer trainer(model, nn::CrossEntropyLoss(),
                       std::make_shared<torch::optim::SGD>(model->parameters(), 0.0),
                       {.callbacks = {ema}, .accelerator = {.device = "cpu"}});
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
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.fill_(1.0);
  }
  AveragedWeights weights;
  weights.attach(Model(model));
  weights.begin();
  {
    const torch::NoGradGuard no_grad;
    model->weight.fill_(2.0);
  }
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

  const auto values = toy.trainer.run_history().get_metric_values("ema_model_eval_loss_epoch");
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
  const auto& history = toy.trainer.run_history();
  EXPECT_EQ(history.get_metric_values("ema_model_eval_loss_epoch").size(), 3U);  // 2, 4 and 5
  Toy silent({make<ModelEma>({.evaluate = false})});
  silent.trainer.train(options);
  EXPECT_TRUE(silent.trainer.run_history().get_metric_values("ema_model_eval_loss_epoch").empty());
}

TEST(ModelEmaTest, EarlierCallbacksInTheListCanMonitorItsMetrics) {
  const TemporaryFolder folder;
  auto best =
      make<SaveBestModel>({.path = folder / "best.pt", .monitor = "ema_model_eval_loss_epoch"});
  Toy toy({best, make<ModelEma>({.decay = 0.5})});
  toy.trainer.train(three_updates_per_epoch(3));
  const auto values = toy.trainer.run_history().get_metric_values("ema_model_eval_loss_epoch");
  EXPECT_EQ(read_checkpoint(folder / "best.pt").get_double("ema_model_eval_loss_epoch"),
            *std::min_element(values.begin(), values.end()));
}

TEST(ModelEmaTest, SavesTheBestAverage) {
  class KeepAverages : public Callback {
   public:
    explicit KeepAverages(ModelEma& ema) : ema_(ema) {}
    void on_training_run_epoch_end(Trainer&) override {
      averages.push_back(tensors_of(ema_.averaged_model_state()));
    }
    std::vector<std::vector<Tensor>> averages;

   private:
    ModelEma& ema_;
  };
  const TemporaryFolder folder;
  // With this learning rate, the loss goes up and down.
  auto ema = make<ModelEma>({.decay = 0.5, .path = folder / "new" / "ema.pt"});
  auto keep = std::make_shared<KeepAverages>(*ema);
  Toy toy({ema, keep}, /*lr=*/1.5);
  EXPECT_TRUE(ema->writes_files());
  TrainOptions options = three_updates_per_epoch(6);
  options.train_dataloader_options.shuffle = false;
  toy.trainer.train(options);
  const auto values = toy.trainer.run_history().get_metric_values("ema_model_eval_loss_epoch");
  const auto best = std::min_element(values.begin(), values.end()) - values.begin();
  ASSERT_LT(best, 5) << "the last epoch should not be the best";
  const StateDict contents = read_checkpoint(folder / "new" / "ema.pt");
  EXPECT_EQ(contents.get_int("epoch"), best + 1);
  EXPECT_EQ(contents.get_double("ema_model_eval_loss_epoch"), values[static_cast<size_t>(best)]);
  const auto saved = tensors_of(contents.get_dict("model_state_dict"));
  EXPECT_TRUE(bit_equal(saved, keep->averages[static_cast<std::size_t>(best)]));
  toy.trainer.load_checkpoint(folder / "new" / "ema.pt");
  EXPECT_TRUE(bit_equal(toy.model->parameters(), saved));
}

TEST(ModelEmaTest, WithoutEvaluationSavesEachEpoch) {
  const TemporaryFolder folder;
  auto ema = make<ModelEma>({.path = folder / "ema.pt"});
  Toy toy({ema});
  TrainOptions options = three_updates_per_epoch(3);
  options.eval_dataset = {};
  toy.trainer.train(options);
  const StateDict contents = read_checkpoint(folder / "ema.pt");
  EXPECT_EQ(contents.get_int("epoch"), 3);
  EXPECT_TRUE(bit_equal(tensors_of(contents.get_dict("model_state_dict")),
                        tensors_of(ema->averaged_model_state())));
}

TEST(ModelEmaTest, SwapsBackAfterAnExceptionInTheEvaluation) {
  class ThrowInEma : public Callback {
   public:
    void on_eval_step_end(Trainer& trainer, const Batch&, const StepOutput&) override {
      if (trainer.metric_name("x").starts_with("ema_model_")) throw Error("no evaluation");
    }
  };
  auto keep = std::make_shared<KeepWeights>();
  auto ema = std::make_shared<ModelEma>();
  auto thrower = std::make_shared<ThrowInEma>();
  Toy toy({keep, ema, thrower});
  EXPECT_ERROR(toy.trainer.train(three_updates_per_epoch(2)), "no evaluation");
  EXPECT_TRUE(bit_equal(toy.model->parameters(), keep->weights.back()));
  toy.trainer.callback_handler().remove_if(
      [&](const Callback& callback) { return &callback == thrower.get(); });
  EXPECT_EQ(toy.trainer.train(three_updates_per_epoch(2)).num_epochs, 2);
}

TEST(ModelEmaTest, AStopDuringItsEvaluationEndsTheRunCleanly) {
  class StopInEma : public Callback {
   public:
    void on_eval_epoch_start(Trainer& trainer) override {
      if (trainer.is_intermediate_evaluation()) trainer.request_stop();
    }
  };
  auto keep = std::make_shared<KeepWeights>();
  Toy toy({keep, make<ModelEma>({.apply_at_end = true}), std::make_shared<StopInEma>()});
  EXPECT_EQ(toy.trainer.train(three_updates_per_epoch(2)).reason, StopReason::stop_request);
  EXPECT_TRUE(bit_equal(toy.model->parameters(), keep->weights.back()));
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
  auto ema = make<ModelEma>({.apply_at_end = true});
  Toy toy({ema});
  toy.trainer.train(three_updates_per_epoch(1));
  EXPECT_TRUE(bit_equal(toy.model->parameters(), tensors_of(ema->averaged_model_state())));
  EXPECT_EQ(toy.trainer.train(three_updates_per_epoch(1)).num_epochs, 1);  // continues from there
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

// The values that GradientNorm records.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "linkboy/callbacks/gradient_norm.hpp"
#include "linkboy/callbacks/save_training_state.hpp"
#include "support/at_update.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::gradient_norm_test {
namespace {

double norm_of(const std::vector<torch::Tensor>& parameters) {
  double sum = 0.0;
  for (const auto& parameter : parameters) {
    sum += parameter.grad().to(torch::kDouble).square().sum().item<double>();
  }
  return std::sqrt(sum);
}

/// Computes the expected norms of each update.
class MeasureByHand : public Callback {
 public:
  void on_gradients_ready(Trainer& trainer) override {
    const auto parameters = trainer.model().parameters();  // weight and bias of layers 0 and 2
    all.push_back(norm_of(parameters));
    first_layer.push_back(norm_of({parameters[0], parameters[1]}));
    last_layer.push_back(norm_of({parameters[2], parameters[3]}));
  }
  std::vector<double> all, first_layer, last_layer;
};

double mean(const std::vector<double>& values, std::size_t begin = 0, std::size_t count = 4) {
  double sum = 0.0;
  for (std::size_t i = begin; i < begin + count; ++i) sum += values[i];
  return sum / static_cast<double>(count);
}

/// Returns options with four updates per epoch.
TrainOptions run_of(int64_t num_epochs) {
  return {.train_dataset = toy_data(8), .num_epochs = num_epochs, .per_device_batch_size = 2};
}

std::shared_ptr<GradientNorm> of_parts(GradientNormParts parts) {
  return make<GradientNorm>({.parts = parts});
}

constexpr double kTolerance = 1e-6;

TEST(GradientNormTest, RecordsMeanAndMaximumOfEachEpoch) {
  const auto by_hand = std::make_shared<MeasureByHand>();
  Toy toy({by_hand, std::make_shared<GradientNorm>()});
  toy.trainer.train(run_of(2));
  const auto means = toy.trainer.run_history().get_metric_values("train_gradient_norm");
  const auto maxima = toy.trainer.run_history().get_metric_values("train_gradient_norm_max");
  ASSERT_EQ(means.size(), 2);
  ASSERT_EQ(maxima.size(), 2);
  EXPECT_NEAR(means[0], mean(by_hand->all, 0), kTolerance);
  EXPECT_NEAR(means[1], mean(by_hand->all, 4), kTolerance);
  EXPECT_NEAR(maxima[0], *std::max_element(by_hand->all.begin(), by_hand->all.begin() + 4),
              kTolerance);
  EXPECT_NEAR(maxima[1], *std::max_element(by_hand->all.begin() + 4, by_hand->all.end()),
              kTolerance);
}

TEST(GradientNormTest, MeasuresBeforeClippingWithoutChangingTheUpdate) {
  Toy plain;
  const auto by_hand = std::make_shared<MeasureByHand>();
  Toy watched({by_hand, std::make_shared<GradientNorm>()});
  for (Toy* toy : {&plain, &watched}) {
    auto options = run_of(1);
    options.gradient_clip_norm = 1e-3;
    toy->trainer.train(options);
  }
  EXPECT_NEAR(watched.trainer.run_history().get_latest_metric("train_gradient_norm"),
              mean(by_hand->all), kTolerance);
  EXPECT_TRUE(bit_equal(plain.model->parameters(), watched.model->parameters()));
}

TEST(GradientNormTest, MeasuresTheWholeAccumulatedGradientOnce) {
  const auto by_hand = std::make_shared<MeasureByHand>();
  Toy toy({by_hand, std::make_shared<GradientNorm>()});
  auto options = run_of(1);
  options.gradient_accumulation_steps = 2;
  toy.trainer.train(options);
  ASSERT_EQ(by_hand->all.size(), 2);
  EXPECT_NEAR(toy.trainer.run_history().get_latest_metric("train_gradient_norm"),
              mean(by_hand->all, 0, 2), kTolerance);
}

TEST(GradientNormTest, RecordsTheNormOfEachModule) {
  const auto by_hand = std::make_shared<MeasureByHand>();
  Toy toy({by_hand, of_parts(GradientNormParts::modules)});
  toy.trainer.train(run_of(1));
  const auto& history = toy.trainer.run_history();
  EXPECT_NEAR(history.get_latest_metric("train_gradient_norm_0"), mean(by_hand->first_layer),
              kTolerance);
  EXPECT_NEAR(history.get_latest_metric("train_gradient_norm_2"), mean(by_hand->last_layer),
              kTolerance);
  EXPECT_NEAR(history.get_latest_metric("train_gradient_norm"), mean(by_hand->all), kTolerance);
  EXPECT_TRUE(history.get_metric_values("train_gradient_norm_1").empty());  // the ReLU
}

TEST(GradientNormTest, AModuleCalledMaxIsNotTheMaximum) {
  torch::nn::Sequential model;
  model->push_back("max", torch::nn::Linear(4, 3));
  QuietTrainer trainer(
      model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
      {.callbacks = {of_parts(GradientNormParts::modules)}, .accelerator = {.device = "cpu"}});
  trainer.train(run_of(1));
  const auto& history = trainer.run_history();
  EXPECT_EQ(history.get_metric_values("train_gradient_norm_max").size(), 1U);
  EXPECT_NEAR(history.get_latest_metric("train_gradient_norm_module_max"),
              history.get_latest_metric("train_gradient_norm"), kTolerance);
}

TEST(GradientNormTest, RecordsTheNormOfEachParamGroup) {
  const auto model = toy_model();
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const std::size_t layer : {2, 0}) {
    groups.emplace_back(model->children()[layer]->parameters(),
                        std::make_unique<torch::optim::SGDOptions>(0.1));
  }
  const auto optimizer = std::make_shared<torch::optim::SGD>(groups, torch::optim::SGDOptions(0.1));
  const auto by_hand = std::make_shared<MeasureByHand>();
  QuietTrainer trainer(model, torch::nn::CrossEntropyLoss(), optimizer,
                       {.callbacks = {by_hand, of_parts(GradientNormParts::param_groups)},
                        .accelerator = {.device = "cpu"}});
  trainer.train(run_of(1));
  const auto& history = trainer.run_history();
  EXPECT_NEAR(history.get_latest_metric("train_gradient_norm_group_0"), mean(by_hand->last_layer),
              kTolerance);
  EXPECT_NEAR(history.get_latest_metric("train_gradient_norm_group_1"), mean(by_hand->first_layer),
              kTolerance);
}

/// Makes the gradients of one update infinite.
class Overflow : public Callback {
 public:
  Phase default_phase() const override { return Phase::record; }
  void on_gradients_ready(Trainer& trainer) override {
    if (++num_calls_ == 2) trainer.model().parameters()[0].mutable_grad().fill_(INFINITY);
  }

 private:
  int64_t num_calls_ = 0;
};

TEST(GradientNormTest, UpdatesSkippedInFp16AreCountedSeparately) {
  const auto model = toy_model();
  QuietTrainer trainer(
      model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
      {.callbacks = {std::make_shared<Overflow>(), std::make_shared<GradientNorm>()},
       .accelerator = {
           .device = "cpu", .precision = Precision::fp16, .grad_scaler = {.init_scale = 1024.0}}});
  trainer.train(run_of(1));
  const auto& history = trainer.run_history();
  EXPECT_EQ(history.get_latest_metric("train_skipped_updates"), 1.0);
  EXPECT_TRUE(std::isfinite(history.get_latest_metric("train_gradient_norm")));
  EXPECT_TRUE(std::isfinite(history.get_latest_metric("train_gradient_norm_max")));
}

TEST(GradientNormTest, DividesByTheFp16Scale) {
  std::vector<double> norms;
  for (const double scale : {1.0, 1024.0}) {
    const auto model = toy_model();
    QuietTrainer trainer(
        model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
        {.callbacks = {std::make_shared<GradientNorm>()},
         .accelerator = {
             .device = "cpu", .precision = Precision::fp16, .grad_scaler = {.init_scale = scale}}});
    trainer.train(run_of(1));
    norms.push_back(trainer.run_history().get_latest_metric("train_gradient_norm"));
  }
  EXPECT_NEAR(norms[0], norms[1], 0.01 * norms[0]);
}

TEST(GradientNormTest, AnInfiniteGradientWithoutFp16IsRecorded) {
  Toy toy({std::make_shared<Overflow>(), std::make_shared<GradientNorm>()});
  toy.trainer.train(run_of(1));
  const auto& history = toy.trainer.run_history();
  EXPECT_FALSE(std::isfinite(history.get_latest_metric("train_gradient_norm")));
  EXPECT_TRUE(history.get_metric_values("train_skipped_updates").empty());
}

TEST(GradientNormTest, AResumedEpochHasTheValuesOfAnUninterruptedOne) {
  const SingleThread single_thread;
  Toy whole({of_parts(GradientNormParts::modules)});
  whole.trainer.train(run_of(1));
  for (const int64_t stop : {2, 4}) {  // mid-epoch and at the epoch's end
    const TemporaryFolder folder;
    const SaveTrainingStateOptions saving{.directory = folder.path(), .every_n_updates = 1};
    Toy first({of_parts(GradientNormParts::modules), std::make_shared<SaveTrainingState>(saving),
               stop_at(stop)});
    first.trainer.train(run_of(1));
    Toy second({of_parts(GradientNormParts::modules)});
    auto options = run_of(1);
    options.resume_from = folder / "latest";
    second.trainer.train(options);
    for (const char* name :
         {"train_gradient_norm", "train_gradient_norm_max", "train_gradient_norm_2"}) {
      EXPECT_EQ(second.trainer.run_history().get_metric_values(name),
                whole.trainer.run_history().get_metric_values(name))
          << name << " after " << stop;
    }
  }
}

TEST(GradientNormTest, AResumedEpochCountsTheSkippedUpdatesOfBothParts) {
  const TemporaryFolder folder;
  const auto train = [](CallbackList callbacks, const TrainOptions& options) {
    callbacks.push_back(std::make_shared<GradientNorm>());
    const auto model = toy_model();
    QuietTrainer trainer(model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
                         {.callbacks = std::move(callbacks),
                          .accelerator = {.device = "cpu",
                                          .precision = Precision::fp16,
                                          .grad_scaler = {.init_scale = 1024.0}}});
    trainer.train(options);
    return trainer.run_history().get_metric_values("train_skipped_updates");
  };
  auto options = run_of(1);
  train({std::make_shared<Overflow>(), stop_at(2),
         make<SaveTrainingState>({.directory = folder.path(), .every_n_updates = 1})},
        options);
  options.resume_from = folder / "latest";
  EXPECT_EQ(train({}, options), std::vector<double>{1.0});
}

TEST(GradientNormTest, ASecondRunStartsFromZeroAfterAnAbandonedOne) {
  const auto by_hand = std::make_shared<MeasureByHand>();
  Toy toy({by_hand, std::make_shared<GradientNorm>(), stop_at(2)});
  toy.trainer.train(run_of(1));
  by_hand->all.clear();
  auto options = run_of(1);
  options.train_dataset = toy_data(2);
  toy.trainer.train(options);
  ASSERT_EQ(by_hand->all.size(), 1);
  EXPECT_NEAR(toy.trainer.run_history().get_latest_metric("train_gradient_norm"), by_hand->all[0],
              kTolerance);
}

TEST(GradientNormTest, EvaluateRecordsNothing) {
  Toy toy({std::make_shared<GradientNorm>()});
  EXPECT_EQ(toy.trainer.evaluate({.dataset = toy_data(4)}).count("train_gradient_norm"), 0);
}

}  // namespace
}  // namespace linkboy::testing::gradient_norm_test

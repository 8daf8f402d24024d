// The values that GradientNorm records.

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <numeric>

#include <algorithm>
#include <cmath>

#include "linkboy/callbacks/gradient_norm.hpp"
#include "support/at_update.hpp"
#include "support/cpu_trainer.hpp"
#include "support/saved_states.hpp"
#include "support/temporary_folder.hpp"

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
  return std::accumulate(values.begin() + begin, values.begin() + begin + count, 0.0) / count;
}

/// Returns options with four updates per epoch.
TrainOptions run_of(int64_t num_epochs) {
  return {.train_dataset = toy_data(8), .per_device_batch_size = 2, .num_epochs = num_epochs};
}

/// A run whose norms are also computed by hand.
struct Measured {
  explicit Measured(GradientNormParts parts = GradientNormParts::none,
                    const CallbackList& more = {})
      : toy({by_hand, make<GradientNorm>({.parts = parts})}) {
    for (const auto& callback : more) toy.trainer.callback_handler().add(callback);
  }

  std::shared_ptr<MeasureByHand> by_hand = std::make_shared<MeasureByHand>();
  Toy toy;
};

std::vector<double> values(const Trainer& trainer, const char* name) {
  return trainer.run_history().get_metric_values(name);
}
double latest(const Trainer& trainer, const char* name = "train_gradient_norm") {
  return trainer.run_history().get_latest_metric(name);
}

constexpr double kTolerance = 1e-6;

TEST(GradientNormTest, RecordsMeanAndMaximumOfEachEpoch) {
  Measured run;
  run.toy.train(run_of(2));
  const auto& all = run.by_hand->all;
  for (const std::size_t epoch : {0, 1}) {
    const auto begin = all.begin() + 4 * epoch;
    EXPECT_NEAR(run.toy.values("train_gradient_norm").at(epoch), mean(all, 4 * epoch), kTolerance);
    EXPECT_NEAR(run.toy.values("train_gradient_norm_max").at(epoch),
                *std::max_element(begin, begin + 4), kTolerance);
  }
}

TEST(GradientNormTest, MeasuresBeforeClippingWithoutChangingTheUpdate) {
  Toy plain;
  Measured watched;
  for (Toy* toy : {&plain, &watched.toy}) {
    toy->train({.per_device_batch_size = 2, .gradient_clip_norm = 1e-3});
  }
  EXPECT_NEAR(latest(watched.toy.trainer), mean(watched.by_hand->all), kTolerance);
  EXPECT_TRUE(bit_equal(plain.model->parameters(), watched.toy.model->parameters()));
}

TEST(GradientNormTest, MeasuresTheWholeAccumulatedGradientOnce) {
  Measured run;
  run.toy.train({.per_device_batch_size = 2, .gradient_accumulation_steps = 2});
  ASSERT_EQ(run.by_hand->all.size(), 2);
  EXPECT_NEAR(latest(run.toy.trainer), mean(run.by_hand->all, 0, 2), kTolerance);
}

TEST(GradientNormTest, RecordsTheNormOfEachModule) {
  Measured run(GradientNormParts::modules);
  run.toy.train(run_of(1));
  const Trainer& trainer = run.toy.trainer;
  const MeasureByHand& by_hand = *run.by_hand;
  EXPECT_NEAR(latest(trainer, "train_gradient_norm_0"), mean(by_hand.first_layer), kTolerance);
  EXPECT_NEAR(latest(trainer, "train_gradient_norm_2"), mean(by_hand.last_layer), kTolerance);
  EXPECT_NEAR(latest(trainer), mean(by_hand.all), kTolerance);
  EXPECT_TRUE(values(trainer, "train_gradient_norm_1").empty());  // the ReLU
}

TEST(GradientNormTest, AModuleCalledMaxIsNotTheMaximum) {
  torch::nn::Sequential model;
  model->push_back("max", torch::nn::Linear(4, 3));
  auto trainer = cpu_trainer(model, {make<GradientNorm>({.parts = GradientNormParts::modules})});
  trainer.train(run_of(1));
  EXPECT_EQ(values(trainer, "train_gradient_norm_max").size(), 1U);
  EXPECT_NEAR(latest(trainer, "train_gradient_norm_module_max"), latest(trainer), kTolerance);
}

TEST(GradientNormTest, RecordsTheNormOfEachParamGroup) {
  const auto model = toy_model();
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const std::size_t layer : {2, 0}) {
    groups.emplace_back(model->children()[layer]->parameters(),
                        std::make_unique<torch::optim::SGDOptions>(0.1));
  }
  const auto by_hand = std::make_shared<MeasureByHand>();
  auto trainer =
      cpu_trainer(model, {by_hand, make<GradientNorm>({.parts = GradientNormParts::param_groups})},
                  std::make_shared<torch::optim::SGD>(groups, torch::optim::SGDOptions(0.1)));
  trainer.train(run_of(1));
  EXPECT_NEAR(latest(trainer, "train_gradient_norm_group_0"), mean(by_hand->last_layer),
              kTolerance);
  EXPECT_NEAR(latest(trainer, "train_gradient_norm_group_1"), mean(by_hand->first_layer),
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

Toy fp16_toy(CallbackList callbacks, double scale = 1024.0) {
  callbacks.push_back(std::make_shared<GradientNorm>());
  return Toy(std::move(callbacks), 0.1,
             {.device = "cpu", .precision = Precision::fp16, .grad_scaler = {.init_scale = scale}});
}

TEST(GradientNormTest, UpdatesSkippedInFp16AreCountedSeparately) {
  auto toy = fp16_toy({std::make_shared<Overflow>()});
  toy.train(run_of(1));
  EXPECT_EQ(toy.values("train_skipped_updates"), std::vector<double>{1.0});
  EXPECT_TRUE(std::isfinite(latest(toy.trainer)));
  EXPECT_TRUE(std::isfinite(latest(toy.trainer, "train_gradient_norm_max")));
}

TEST(GradientNormTest, DividesByTheFp16Scale) {
  std::vector<double> norms;
  for (const double scale : {1.0, 1024.0}) {
    auto toy = fp16_toy({}, scale);
    toy.train(run_of(1));
    norms.push_back(latest(toy.trainer));
  }
  EXPECT_NEAR(norms[0], norms[1], 0.01 * norms[0]);
}

TEST(GradientNormTest, AnInfiniteGradientWithoutFp16IsRecorded) {
  Toy toy({std::make_shared<Overflow>(), std::make_shared<GradientNorm>()});
  toy.train(run_of(1));
  EXPECT_FALSE(std::isfinite(latest(toy.trainer)));
  EXPECT_TRUE(toy.values("train_skipped_updates").empty());
}

TEST(GradientNormTest, AResumedEpochHasTheValuesOfAnUninterruptedOne) {
  const SingleThread single_thread;
  Measured whole(GradientNormParts::modules);
  whole.toy.train(run_of(1));
  for (const int64_t stop : {2, 4}) {  // mid-epoch and at the epoch's end
    const TemporaryFolder folder;
    Measured first(GradientNormParts::modules, {saving_every_update(folder.path()), stop_at(stop)});
    first.toy.train(run_of(1));
    Measured second(GradientNormParts::modules);
    second.toy.trainer.train(resumed_from(folder / "latest", run_of(1)));
    for (const char* name :
         {"train_gradient_norm", "train_gradient_norm_max", "train_gradient_norm_2"}) {
      EXPECT_EQ(second.toy.values(name), whole.toy.values(name)) << name << " after " << stop;
    }
  }
}

TEST(GradientNormTest, AResumedEpochCountsTheSkippedUpdatesOfBothParts) {
  const TemporaryFolder folder;
  fp16_toy({std::make_shared<Overflow>(), stop_at(2), saving_every_update(folder.path())})
      .train(run_of(1));
  auto second = fp16_toy({});
  second.train(resumed_from(folder / "latest", run_of(1)));
  EXPECT_EQ(second.values("train_skipped_updates"), std::vector<double>{1.0});
}

TEST(GradientNormTest, ASecondRunStartsFromZeroAfterAnAbandonedOne) {
  Measured run(GradientNormParts::none, {stop_at(2)});
  run.toy.train(run_of(1));
  run.by_hand->all.clear();
  run.toy.train({.train_dataset = toy_data(2), .per_device_batch_size = 2});
  ASSERT_EQ(run.by_hand->all.size(), 1);
  EXPECT_NEAR(latest(run.toy.trainer), run.by_hand->all[0], kTolerance);
}

TEST(GradientNormTest, EvaluateRecordsNothing) {
  Toy toy({std::make_shared<GradientNorm>()});
  EXPECT_EQ(toy.trainer.evaluate({.dataset = toy_data(4)}).count("train_gradient_norm"), 0);
}

}  // namespace
}  // namespace linkboy::testing::gradient_norm_test

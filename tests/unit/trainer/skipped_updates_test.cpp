// Accumulation windows of fp16 that end without an update. On a CUDA device, the host learns later
// whether an update was skipped.

#include <ATen/DeviceAccelerator.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "linkboy/scheduler.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "linkboy/trainer.hpp"
#include "support/file_contents.hpp"
#include "support/in_every_event.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::skipped_updates_test {
namespace {

/// Drops each window whose gradients are not finite.
class DropsOverflows : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;

 protected:
  void train_step(const Batch& batch) override {
    backward(forward(batch));
    if (!is_update_due()) return;
    accelerator().unscale_gradients(*optimizer());
    for (const auto& parameter : model().parameters()) {
      if (!torch::isfinite(parameter.grad()).all().item<bool>()) return;
    }
    update();
  }
};

TEST(DroppedWindowTest, AnOverflowInADroppedWindowLowersTheScale) {
  ToyOf<DropsOverflows> toy({}, 0.1,
                            {.device = "cpu",
                             .precision = Precision::fp16,
                             .grad_scaler = {.init_scale = 1e30, .growth_interval = 1000}});
  const TrainResult result = toy.trainer.train(
      {.train_dataset = toy_data(120), .per_device_batch_size = 1, .num_epochs = 1});
  EXPECT_GT(result.num_updates, 0);
  EXPECT_LT(result.num_updates, 120);
  EXPECT_LT(toy.trainer.accelerator().grad_scaler()->get_scale(), 1e30);
}

/// Calls a function after the gradients are clipped.
class AfterClipping : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;
  std::function<void()> after_clipping{};

 protected:
  void clip_gradients() override {
    QuietTrainer::clip_gradients();
    if (after_clipping) after_clipping();
  }
};

TEST(DroppedWindowTest, ARunInFp16AfterOneThatWasLeftAnywhereMakesUpdatesOfNormalSize) {
  const TrainOptions options{.per_device_batch_size = 4, .num_epochs = 2};
  const AcceleratorOptions fp16{.device = "cpu", .precision = Precision::fp16};
  Toy normal({}, 0.1, fp16);
  normal.train(options);
  ASSERT_FALSE(bit_equal(normal.model->parameters(), toy_model()->parameters()));
  const std::vector<std::function<void()>> ways{[] { throw StopTraining("left"); },
                                                [] { throw std::runtime_error("left"); }};
  for (const auto& leave : ways) {
    for (const bool is_in_clipping : {false, true}) {
      ToyOf<AfterClipping> toy({}, 0.1, fp16);
      bool leaves = true;
      toy.on(Event::gradients_ready, [&](Trainer& trainer) {
        trainer.accelerator().unscale_gradients(*trainer.optimizer());
        if (leaves && !is_in_clipping) leave();
      });
      toy.trainer.after_clipping = [&] {
        if (leaves && is_in_clipping) leave();
      };
      try {
        toy.train(options);
      } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "left");
      }
      EXPECT_TRUE(bit_equal(toy.model->parameters(), toy_model()->parameters()));
      leaves = false;
      toy.train(options);
      EXPECT_TRUE(bit_equal(toy.model->parameters(), normal.model->parameters()));
    }
  }
}

/// Trains in fp16 with a scale that grows after each update, so that the gradients overflow
/// repeatedly. If `asks_at_once` is true, reads the number of updates after each update.
struct OverflowingRun : Callback {
  explicit OverflowingRun(const std::string& device, bool asks_at_once)
      : asks_at_once_(asks_at_once),
        optimizer(std::make_shared<torch::optim::AdamW>(model->parameters(), 0.01)),
        trainer(model, torch::nn::CrossEntropyLoss(), optimizer,
                {.default_callbacks = {},
                 .accelerator = {.device = device,
                                 .precision = Precision::fp16,
                                 .grad_scaler = {.init_scale = 65536.0, .growth_interval = 1}}}) {
    trainer.callback_handler().add(std::shared_ptr<Callback>(std::shared_ptr<void>(), this));
  }

  TrainResult train(std::optional<int64_t> max_num_updates = std::nullopt) {
    torch::manual_seed(4);  // for the shuffling
    TrainOptions options{
        .train_dataset = toy_data(96), .per_device_batch_size = 4, .create_scheduler_fn = cosine()};
    options.max_num_updates = max_num_updates;
    if (!max_num_updates) options.num_epochs = 2;
    return trainer.train(options);
  }

  void on_gradients_ready(Trainer&) override {
    learning_rates.push_back(rates_of(*optimizer).front());
    ++num_tried;
  }
  void on_train_update_end(Trainer&) override {
    if (asks_at_once_) counts.push_back(trainer.num_updates());
  }

  /// Returns the bytes of everything that depends on the count of updates.
  std::string state() {
    const TemporaryFolder folder;
    trainer.save_checkpoint(
        folder.path() / "all",
        {{"scaler", trainer.accelerator().grad_scaler()->state_dict().to_ivalue()}});
    return read_bytes(folder.path() / "all");
  }

  bool asks_at_once_;
  torch::nn::Sequential model = toy_model();
  std::shared_ptr<torch::optim::AdamW> optimizer;
  QuietTrainer trainer;
  std::vector<double> learning_rates;
  std::vector<int64_t> counts;
  int64_t num_tried = 0;
};

TEST(DeviceTest, AskingLaterWhetherAStepWasSkippedChangesNothing_CUDA) {
  for (const std::optional<int64_t> max_num_updates : {std::optional<int64_t>(), {20}}) {
    OverflowingRun asked("cuda:0", /*asks_at_once=*/true);
    OverflowingRun deferred("cuda:0", /*asks_at_once=*/false);
    const int64_t num_updates = asked.train(max_num_updates).num_updates;
    EXPECT_GT(num_updates, 0);
    EXPECT_EQ(num_updates, max_num_updates.value_or(num_updates));
    EXPECT_LT(num_updates, asked.num_tried) << "some updates were skipped";
    EXPECT_EQ(asked.counts.back(), num_updates);
    EXPECT_EQ(deferred.train(max_num_updates).num_updates, num_updates);
    EXPECT_EQ(deferred.num_tried, asked.num_tried);
    EXPECT_EQ(deferred.learning_rates, asked.learning_rates);
    EXPECT_EQ(deferred.state(), asked.state());
  }
}

TEST(DeviceTest, TheScheduleOfAFailedRunKeepsTheLearningRateOfTheProgram_CUDA) {
  for (const int64_t last : {4, 5, 6}) {  // at least one of them is not skipped
    OverflowingRun run("cuda:0", /*asks_at_once=*/false);
    const auto fail = in_event(Event::train_update_end,
                               [&](Trainer&) { TORCH_CHECK(run.num_tried != last, "enough"); });
    run.trainer.callback_handler().add(fail);
    EXPECT_THROW(run.train(), c10::Error);
    set_param_group_field(*run.optimizer, ParamGroupField::lr, {0.5});
    run.trainer.num_updates();
    run.learning_rates.clear();
    run.trainer.train({.train_dataset = toy_data(16), .per_device_batch_size = 4, .num_epochs = 1});
    EXPECT_EQ(run.learning_rates, (std::vector<double>(4, 0.5)));
  }
}

/// Steps a second optimizer whose gradient overflows in the third update.
struct TwoOptimizers : QuietTrainer {
  TwoOptimizers(const torch::nn::Sequential& model, torch::Tensor own)
      : QuietTrainer(model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
                     {.default_callbacks = {},
                      .accelerator = {.device = "cuda:0", .precision = Precision::fp16}}),
        own_(std::move(own)),
        second_(std::vector<torch::Tensor>{own_}, 0.1) {}

  StepOutput calculate_train_batch_loss(const Batch& batch) override {
    StepOutput output = QuietTrainer::calculate_train_batch_loss(batch);
    const float factor = ++num_tried_ == 3 ? std::numeric_limits<float>::infinity() : 1.0F;
    output.loss = output.loss + (own_ * factor).sum();
    return output;
  }
  void optimizer_step() override {
    QuietTrainer::optimizer_step();
    accelerator().optimizer_step(second_);
  }
  void optimizer_zero_grad() override {
    QuietTrainer::optimizer_zero_grad();
    Accelerator::zero_grad(second_);
  }
  StateDict state_dict() const override {
    const auto& state = *second_.state().at(own_.unsafeGetTensorImpl());
    return {{"step", static_cast<const torch::optim::AdamWParamState&>(state).step()}};
  }

  torch::Tensor own_;
  torch::optim::AdamW second_;
  int num_tried_ = 0;
};

TEST(DeviceTest, AStateOmitsTheSkippedStepOfASecondOptimizer_CUDA) {
  const TemporaryFolder folder;
  const auto model = toy_model();
  TwoOptimizers trainer(model, torch::ones({2}, torch::kCUDA).requires_grad_());
  std::vector<int64_t> counts;
  trainer.callback_handler().add(in_event(Event::train_update_end, [&](Trainer& self) {
    self.save_training_state(folder.path());
    counts.push_back(trainer.state_dict().get_int("step"));
  }));
  trainer.train({.train_dataset = toy_data(16), .per_device_batch_size = 4, .num_epochs = 1});
  EXPECT_EQ(counts, (std::vector<int64_t>{1, 2, 2, 3}));
  EXPECT_EQ(trainer.num_updates(), 3);
}

TEST(DeviceTest, AQueuedStepCountsOnlyIfItWasMade_CUDA) {
  auto weight = torch::ones({2}, torch::kCUDA).requires_grad_();
  torch::optim::AdamW optimizer({weight}, 0.1);
  GradScaler scaler({.init_scale = 4.0});
  const auto queue = [&](float gradient) {
    optimizer.zero_grad();
    scaler.scale((weight * gradient).sum()).backward();
    const StepOutcome outcome = scaler.queue_step(optimizer);
    scaler.update();
    return outcome;
  };
  const auto count = [&] {
    return static_cast<torch::optim::AdamWParamState&>(
               *optimizer.state().at(weight.unsafeGetTensorImpl()))
        .step();
  };
  EXPECT_TRUE(queue(1).is_known()) << "the first step, which creates the optimizer's state";
  const StepOutcome skipped = queue(std::numeric_limits<float>::infinity());
  EXPECT_FALSE(skipped.is_known());
  EXPECT_EQ(count(), 2) << "not known yet";
  optimizer.zero_grad();
  EXPECT_FALSE(queue(1).was_skipped());
  EXPECT_TRUE(skipped.was_skipped());
  EXPECT_EQ(count(), 2);
  queue(std::numeric_limits<float>::infinity());
  scaler.settle(optimizer);
  EXPECT_EQ(count(), 2);
  scaler.settle(optimizer);
  EXPECT_EQ(count(), 2);
}

}  // namespace
}  // namespace linkboy::testing::skipped_updates_test

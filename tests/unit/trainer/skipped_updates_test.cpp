// Accumulation windows of fp16 that end without an update. On a CUDA device, the host learns later
// whether an update was skipped.

#include <ATen/DeviceAccelerator.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
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

/// Returns how far the weights move from `before`, at most.
double distance(const torch::nn::Sequential& model, const std::vector<torch::Tensor>& before) {
  double most = 0.0;
  const auto now = copies_of(model->parameters());
  for (std::size_t i = 0; i < now.size(); ++i) {
    most = std::max(most, (now[i] - before[i]).abs().max().item<double>());
  }
  return most;
}

ToyOf<QuietTrainer> fp16_toy(CallbackList callbacks = {}) {
  return ToyOf<QuietTrainer>(std::move(callbacks), 0.1,
                             {.device = "cpu", .precision = Precision::fp16});
}

/// Unscales the gradients in each update and drops some windows.
class DropsWindows : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;
  std::function<bool(int64_t window)> is_dropped = [](int64_t) { return false; };

 protected:
  void train_step(const Batch& batch) override {
    backward(forward(batch));
    if (!is_update_due()) return;
    accelerator().unscale_gradients(*optimizer());
    if (!is_dropped(num_windows_++)) update();
  }

 private:
  int64_t num_windows_ = 0;
};

TEST(DroppedWindowTest, AnOverflowInADroppedWindowLowersTheScale) {
  ToyOf<DropsWindows> toy({}, 0.1,
                          {.device = "cpu",
                           .precision = Precision::fp16,
                           .grad_scaler = {.init_scale = 1e30, .growth_interval = 1000}});
  toy.trainer.is_dropped = [&](int64_t) {
    for (const auto& parameter : toy.model->parameters()) {
      if (!torch::isfinite(parameter.grad()).all().item<bool>()) return true;
    }
    return false;
  };
  const TrainResult result = toy.trainer.train(
      {.train_dataset = toy_data(120), .num_epochs = 1, .per_device_batch_size = 1});
  EXPECT_GT(result.num_updates, 0);
  EXPECT_LT(result.num_updates, 120);
  EXPECT_LT(toy.trainer.accelerator().grad_scaler()->get_scale(), 1e30);
}

TEST(DroppedWindowTest, ARunInFp16AfterOneThatWasLeftAnywhereMakesUpdatesOfNormalSize) {
  const TrainOptions options{
      .train_dataset = toy_data(8), .num_epochs = 2, .per_device_batch_size = 4};
  auto normal = fp16_toy();
  const auto before = copies_of(normal.model->parameters());
  normal.trainer.train(options);
  const double expected = distance(normal.model, before);
  ASSERT_GT(expected, 0.0);
  enum class Way { stop, exception, request };
  for (const Way way : {Way::stop, Way::exception, Way::request}) {
    for (const bool is_in_clipping : {false, true}) {
      SCOPED_TRACE(c10::str(static_cast<int>(way), " ", is_in_clipping));
      class Leaves : public QuietTrainer {
       public:
        using QuietTrainer::QuietTrainer;
        std::function<void()> in_clipping{};

       protected:
        void clip_gradients() override {
          QuietTrainer::clip_gradients();
          if (in_clipping) in_clipping();
        }
      };
      ToyOf<Leaves> toy({}, 0.1, {.device = "cpu", .precision = Precision::fp16});
      bool leaves = true;
      const auto leave = [&] {
        if (!leaves) return;
        if (way == Way::stop) throw StopTraining("left");
        if (way == Way::exception) throw std::runtime_error("left");
        toy.trainer.request_stop();
      };
      toy.trainer.callback_handler().add(in_event(Event::gradients_ready, [&](Trainer& trainer) {
        trainer.accelerator().unscale_gradients(*trainer.optimizer());
        if (!is_in_clipping) leave();
      }));
      if (is_in_clipping) toy.trainer.in_clipping = leave;
      const auto start = copies_of(toy.model->parameters());
      try {
        toy.trainer.train(options);
      } catch (const std::runtime_error&) {
        EXPECT_EQ(way, Way::exception);
      }
      leaves = false;
      if (way == Way::request) continue;  // the request ends the run after the update
      EXPECT_TRUE(bit_equal(toy.model->parameters(), start));
      toy.trainer.train(options);
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

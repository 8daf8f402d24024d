// Accumulation windows of fp16 that end without an update.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "support/in_every_event.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::dropped_window_test {
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
      {.train_dataset = toy_data(120), .per_device_batch_size = 1, .num_epochs = 1});
  EXPECT_GT(result.num_updates, 0);
  EXPECT_LT(result.num_updates, 120);
  EXPECT_LT(toy.trainer.accelerator().grad_scaler()->get_scale(), 1e30);
}

TEST(DroppedWindowTest, ARunInFp16AfterOneThatWasLeftAnywhereMakesUpdatesOfNormalSize) {
  const TrainOptions options{
      .train_dataset = toy_data(8), .per_device_batch_size = 4, .num_epochs = 2};
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

}  // namespace
}  // namespace linkboy::testing::dropped_window_test

// Runs in fp16 whose gradients overflow in any micro-step and which end in any way, followed by
// another run of the same Trainer, have the scales and weights of Python's GradScaler.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "support/file_contents.hpp"
#include "support/python_peer.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::overflow_test {
namespace {

/// How the first run ends at a micro-step.
enum class Exit { none, request, exception, stop, exception_in_update, stop_in_update };
LINKBOY_ENUM_NAMES(Exit, none, request, exception, stop, exception_in_update, stop_in_update)

constexpr int64_t kNumMicroSteps = 6;
constexpr double kOverflow = 4096.0;

struct Case {
  int64_t window;
  int64_t overflow;  // the micro-step that overflows; kNumMicroSteps: none
  Exit exit;
  int64_t exit_at;  // a micro-step
  bool unscales;

  std::vector<double> factors() const {
    std::vector<double> factors(kNumMicroSteps, 1.0);
    if (overflow < kNumMicroSteps) factors[overflow] = kOverflow;
    return factors;
  }
  /// Whether the micro-step is the last one of its window.
  bool ends_window(int64_t i) const { return (i + 1) % window == 0 || i + 1 == kNumMicroSteps; }

  nlohmann::json to_json() const {
    auto first = factors();
    if (exit == Exit::request) {
      first.resize(exit_at + 1);
    } else if (exit != Exit::none) {
      first[exit_at] = -1.0;
    }
    return {{"window", window}, {"unscales", unscales}, {"runs", {first, factors()}}};
  }
  std::string text() const {
    return c10::str(enum_name(exit), " at ", exit_at, ", overflow at ", overflow, ", windows of ",
                    window, unscales ? ", unscaled" : "");
  }
};

/// Multiplies the model's output by the batch's factor.
class FactorTrainer : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;

 protected:
  StepOutput calculate_train_batch_loss(const Batch& batch) override {
    return {.loss = model()(batch.input()).sum() * batch.target().sum(), .batch_size = 1};
  }
};

/// Returns the scale, growth tracker and weights after each window.
std::vector<std::vector<double>> train(const Case& chosen) {
  torch::nn::Linear linear(torch::nn::LinearOptions(2, 1).bias(false));
  {
    const torch::NoGradGuard no_grad;
    linear->weight.copy_(torch::tensor({{0.5, -0.25}}));
  }
  FactorTrainer trainer(
      linear, nullptr,
      std::make_shared<torch::optim::SGD>(linear->parameters(),
                                          torch::optim::SGDOptions(0.125).momentum(0.5)),
      {.default_callbacks = {},
       .accelerator = {.device = test_device(),
                       .precision = Precision::fp16,
                       .grad_scaler = {.init_scale = 64.0, .growth_interval = 2}}});
  std::vector<std::vector<double>> steps;
  const auto record = [&] {
    const StateDict state = trainer.accelerator().grad_scaler()->state_dict();
    const auto weight = linear->weight.detach().cpu();
    steps.push_back({state.get_double("scale"),
                     static_cast<double>(state.get_int("_growth_tracker")),
                     weight[0][0].item<double>(), weight[0][1].item<double>()});
  };
  const auto factors = torch::tensor(chosen.factors(), torch::kFloat);
  TrainOptions options{.train_dataset = TensorDataset(
                           torch::tensor({{1.0F, 2.0F}}).repeat({kNumMicroSteps, 1}), factors),
                       .per_device_batch_size = 1,
                       .train_dataloader_options = {.shuffle = false},
                       .num_epochs = 1,
                       .gradient_accumulation_steps = chosen.window};
  if (chosen.unscales) options.gradient_clip_norm = std::numeric_limits<double>::infinity();

  const auto leave = [&](Trainer& at, bool is_in_update) {
    if (at.run().micro_step() + (is_in_update ? -1 : 0) != chosen.exit_at) return;
    const Exit exit = chosen.exit;
    if (is_in_update == (exit == Exit::exception_in_update || exit == Exit::stop_in_update)) {
      // Like a callback that reads the gradients before another one ends the run.
      if (is_in_update && chosen.unscales) at.accelerator().unscale_gradients(*at.optimizer());
      if (exit == Exit::exception || exit == Exit::exception_in_update) {
        throw std::runtime_error("left");
      }
      if (exit == Exit::stop || exit == Exit::stop_in_update) throw StopTraining("left");
    }
  };
  LambdaCallbackFunctions functions;
  functions.on_train_step_end = [&](Trainer& at, const Batch&, const StepOutput&) {
    leave(at, false);
  };
  functions.on_gradients_ready = [&](Trainer& at) { leave(at, true); };
  functions.on_train_update_end = [&](Trainer& at) {
    record();
    if (chosen.exit == Exit::request && at.run().micro_step() - 1 == chosen.exit_at)
      at.request_stop();
  };
  auto first = options;
  first.callbacks = {make<LambdaCallback>(functions)};
  try {
    trainer.train(first);
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "left");
  }
  if (chosen.exit != Exit::none && chosen.exit != Exit::request) record();
  auto second = options;
  second.callbacks = {make<LambdaCallback>({.on_train_update_end = [&](Trainer&) { record(); }})};
  trainer.train(second);
  return steps;
}

TEST(OverflowTest, ScalesAndWeightsAreThoseOfPythonWhereverARunOverflowsAndEnds) {
  const SingleThread one_thread;
  std::vector<Case> cases;
  auto as_json = nlohmann::json::array();
  for (const int64_t window : {1, 2, 4}) {
    for (int64_t overflow = 0; overflow <= kNumMicroSteps; ++overflow) {
      for (const Exit exit : {Exit::none, Exit::request, Exit::exception, Exit::stop,
                              Exit::exception_in_update, Exit::stop_in_update}) {
        for (int64_t exit_at = 0; exit_at < kNumMicroSteps; ++exit_at) {
          if (exit == Exit::none && exit_at > 0) continue;
          for (const bool unscales : {false, true}) {
            const Case one{window, overflow, exit, exit_at, unscales};
            const bool is_at_end =
                exit != Exit::none && exit != Exit::exception && exit != Exit::stop;
            if (is_at_end && !one.ends_window(exit_at)) continue;
            cases.push_back(one);
            as_json.push_back(one.to_json());
          }
        }
      }
    }
  }
  ASSERT_GT(cases.size(), 300U);
  const TemporaryFolder folder;
  write_bytes(folder / "cases.json", as_json.dump());
  const auto expected = run_python_json("overflow_peer.py", {(folder / "cases.json").string()});
  SKIP_IF_MISSING(expected);
  ASSERT_EQ(expected.size(), cases.size());
  int64_t num_overflows = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(cases[i].text());
    const auto steps = train(cases[i]);
    EXPECT_EQ(steps, expected[i].get<std::vector<std::vector<double>>>());
    num_overflows += steps.front().front() < 64.0 ? 1 : 0;
  }
  EXPECT_GT(num_overflows, 30);
}

}  // namespace
}  // namespace linkboy::testing::overflow_test

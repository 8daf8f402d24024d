// Mixed precision, memory format and determinism with Accelerator and Trainer.

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <limits>

#include "linkboy/trainer.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::precision_test {
namespace {

bool autocast_is_on() { return at::autocast::is_autocast_enabled(at::kCPU); }

TEST(AutocastTest, ComputesInTheRequestedDtypeOnlyWithinItsScope) {
  const auto weight = torch::ones({4, 4});
  for (const auto& [name, dtype] :
       {std::pair(Precision::fp32, torch::kFloat), std::pair(Precision::bf16, torch::kBFloat16),
        std::pair(Precision::fp16, torch::kHalf)}) {
    const Accelerator accelerator({.device = "cpu", .precision = name});
    EXPECT_EQ(accelerator.precision(), name);
    {
      const auto autocast = accelerator.autocast();
      EXPECT_EQ(torch::mm(weight, weight).scalar_type(), dtype);
      {
        const auto inner = accelerator.autocast();
        EXPECT_EQ(torch::mm(weight, weight).scalar_type(), dtype);
      }
      EXPECT_EQ(torch::mm(weight, weight).scalar_type(), dtype);
    }
    EXPECT_FALSE(autocast_is_on());
    EXPECT_EQ(torch::mm(weight, weight).scalar_type(), torch::kFloat);
  }
}

TEST(AutocastTest, UsesTheParametersOfTheLastUpdate) {
  const Accelerator accelerator({.device = "cpu", .precision = Precision::bf16});
  auto weight = torch::ones({4, 4}).requires_grad_();
  const auto product = [&] {
    const auto autocast = accelerator.autocast();
    return torch::mm(weight, torch::eye(4)).sum().item<float>();
  };
  EXPECT_EQ(product(), 16.0F);
  {
    const torch::NoGradGuard no_grad;
    weight.mul_(2);
  }
  EXPECT_EQ(product(), 32.0F);
}

TEST(AcceleratorTest, RefusesAnUnknownPrecision) {
  EXPECT_ERROR(from_text<Precision>("fp8"), "it must be one of fp32, bf16, fp16");
  EXPECT_EQ(from_text<Precision>("no"), Precision::fp32);
}

/// Records the losses and whether autocast was enabled in each step.
class PrecisionTrainer : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;

  StepOutput calculate_train_batch_loss(const Batch& batch) override {
    train_was_on = autocast_is_on();
    auto output = QuietTrainer::calculate_train_batch_loss(batch);
    losses.push_back(output.loss.detach().to(torch::kDouble).item<double>());
    dtype = output.model_outputs.toTensor().scalar_type();
    return output;
  }
  StepOutput calculate_eval_batch_loss(const Batch& batch) override {
    eval_was_on = autocast_is_on();
    return QuietTrainer::calculate_eval_batch_loss(batch);
  }
  void backward_step(const at::Tensor& loss) override {
    backward_was_on |= autocast_is_on();
    const bool overflows = always_overflows || overflow_at == static_cast<int>(losses.size());
    QuietTrainer::backward_step(overflows ? loss * std::numeric_limits<float>::infinity() : loss);
  }

  std::vector<double> losses;
  at::ScalarType dtype = at::kFloat;
  bool train_was_on = false;
  bool eval_was_on = false;
  bool backward_was_on = false;
  int overflow_at = -1;
  bool always_overflows = false;
};

struct PrecisionRun {
  explicit PrecisionRun(Precision precision, GradScalerOptions scaler = {})
      : model(toy_model()),
        optimizer(toy_sgd(model)),
        trainer(model, torch::nn::CrossEntropyLoss(), optimizer,
                {.default_callbacks = {},
                 .accelerator = {.device = "cpu", .precision = precision, .grad_scaler = scaler}}) {
  }

  TrainResult train(TrainOptions options = {}) {
    options.train_dataset = toy_data(16);
    options.eval_dataset = toy_data(8);
    if (!options.num_epochs && !options.max_num_updates) options.num_epochs = 3;
    options.per_device_batch_size = 4;
    return trainer.train(options);
  }

  torch::nn::Sequential model;
  std::shared_ptr<torch::optim::SGD> optimizer;
  PrecisionTrainer trainer;
};

TEST(TrainerPrecisionTest, ComputesLossesInAutocastAndBackwardOutside) {
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    PrecisionRun run(precision);
    run.train();
    EXPECT_TRUE(run.trainer.train_was_on);
    EXPECT_TRUE(run.trainer.eval_was_on);
    EXPECT_FALSE(run.trainer.backward_was_on);
    EXPECT_EQ(run.trainer.dtype, precision == Precision::bf16 ? at::kBFloat16 : at::kHalf);
    EXPECT_EQ(run.trainer.run().config().precision, precision);
    for (const auto& parameter : run.model->parameters()) {
      EXPECT_EQ(parameter.scalar_type(), at::kFloat);
      EXPECT_FALSE(parameter.grad().defined());
    }
    // The tolerance corresponds to 8 and 11 bits of mantissa over 12 updates.
    PrecisionRun exact(Precision::fp32);
    exact.train();
    for (std::size_t i = 0; i < exact.trainer.losses.size(); ++i) {
      EXPECT_NEAR(run.trainer.losses[i], exact.trainer.losses[i],
                  precision == Precision::bf16 ? 0.03 : 0.004);
    }
    EXPECT_NE(run.trainer.losses, exact.trainer.losses);
  }
}

TEST(TrainerPrecisionTest, PredictsInThePrecisionOfTheRun) {
  PrecisionRun run(Precision::bf16);
  const auto outputs = run.trainer.predict({.dataset = toy_data(8)}).toTensor();
  EXPECT_EQ(outputs.scalar_type(), at::kBFloat16);
}

// Scaling by a power of two and back is exact, so the scaler must not change the losses.
TEST(TrainerPrecisionTest, ScalingDoesNotChangeClippedAccumulatedUpdates) {
  const auto losses = [](double scale) {
    PrecisionRun run(Precision::fp16, {.init_scale = scale});
    run.train({.gradient_accumulation_steps = 2, .gradient_clip_norm = 0.3});
    return run.trainer.losses;
  };
  EXPECT_EQ(losses(1024.0), losses(64.0));
}

TEST(TrainerPrecisionTest, SkippedUpdateMovesNeitherTheCountNorTheSchedule) {
  PrecisionRun run(Precision::fp16, {.init_scale = 64.0});
  run.trainer.overflow_at = 2;
  const auto result = run.train({.num_epochs = 1});
  EXPECT_EQ(run.trainer.losses.size(), 4U);
  EXPECT_EQ(result.num_updates, 3);
  EXPECT_EQ(run.trainer.accelerator().grad_scaler()->get_scale(), 32.0);
}

TEST(TrainerPrecisionTest, ReachesTheNumberOfUpdatesEvenIfSomeAreSkipped) {
  PrecisionRun run(Precision::fp16, {.init_scale = 64.0});
  run.trainer.overflow_at = 2;
  const auto result = run.train({.max_num_updates = 8});  // 4 per epoch
  EXPECT_EQ(result.num_updates, 8);
  EXPECT_EQ(result.reason, StopReason::max_num_updates);
  EXPECT_EQ(run.trainer.losses.size(), 9U);
}

TEST(TrainerPrecisionTest, APersistentOverflowIsAnErrorOnceTheScaleIsZero) {
  PrecisionRun run(Precision::fp16);
  run.trainer.always_overflows = true;
  EXPECT_ERROR(run.train({.max_num_updates = 8}), "until their scale fell to 0");
}

TEST(TrainerPrecisionTest, AResumedRunIsBitIdenticalAndKeepsTheScale) {
  const TemporaryFolder folder;
  const GradScalerOptions scaler{.init_scale = 64.0, .growth_interval = 5};
  PrecisionRun whole(Precision::fp16, scaler);
  whole.train({.num_epochs = 3});
  PrecisionRun first(Precision::fp16, scaler);
  first.train({.num_epochs = 2});
  first.trainer.save_training_state(folder / "state");
  PrecisionRun second(Precision::fp16);
  second.train({.num_epochs = 3, .resume_from = folder / "state"});
  EXPECT_TRUE(bit_equal(whole.model->parameters(), second.model->parameters()));
  const auto scale = [](PrecisionRun& run) {
    return run.trainer.accelerator().grad_scaler()->state_dict();
  };
  EXPECT_EQ(scale(whole).get_double("scale"), scale(second).get_double("scale"));
  EXPECT_EQ(scale(whole).get_int("_growth_tracker"), scale(second).get_int("_growth_tracker"));
  EXPECT_GT(scale(whole).get_double("scale"), 64.0);
}

torch::nn::Sequential toy_convolutions() {
  torch::manual_seed(3);
  return torch::nn::Sequential(torch::nn::Conv2d(3, 4, 3), torch::nn::BatchNorm2d(4),
                               torch::nn::ReLU(), torch::nn::Flatten(),
                               torch::nn::Linear(4 * 6 * 6, 3));
}

template <class Optimizer>
struct ConvolutionRun {
  explicit ConvolutionRun(bool channels_last = true)
      : optimizer(std::make_shared<Optimizer>(model->parameters(), 0.01)),
        trainer(model, torch::nn::CrossEntropyLoss(), optimizer,
                {.default_callbacks = {},
                 .accelerator = {.device = "cpu", .channels_last = channels_last}}) {}

  void train(int64_t num_epochs = 1) {
    const auto images = torch::sin(torch::arange(8 * 3 * 8 * 8, torch::kFloat)).view({8, 3, 8, 8});
    trainer.train({.train_dataset = TensorDataset(images, torch::arange(8) % 3),
                   .per_device_batch_size = 4,
                   .train_dataloader_options = {.seed = 5},
                   .num_epochs = num_epochs});
  }

  torch::nn::Sequential model = toy_convolutions();
  std::shared_ptr<Optimizer> optimizer;
  QuietTrainer trainer;
};

TEST(ChannelsLastTest, KeepsFiltersAndBatchesChannelsLastAndTheLossesClose) {
  const auto losses = [](bool channels_last) {
    ConvolutionRun<torch::optim::AdamW> run(channels_last);
    run.train(3);
    const auto batch = run.trainer.run().train_dataloader()->iterate(1)->next();
    for (const auto& images : {run.model->parameters()[0], batch->input()}) {
      EXPECT_EQ(images.is_contiguous(at::MemoryFormat::ChannelsLast), channels_last);
    }
    return run.trainer.run_history().get_metric_values("train_loss_epoch");
  };
  const auto plain = losses(false);
  const auto last = losses(true);
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(plain[i], last[i], 1e-5);
}

template <class Optimizer>
void expect_loaded_state_follows_the_model() {
  const TemporaryFolder folder;
  ConvolutionRun<Optimizer> whole;
  whole.train();
  whole.trainer.save_checkpoint(folder / "half.pt");
  whole.train();
  ConvolutionRun<Optimizer> loaded;
  loaded.trainer.load_checkpoint(folder / "half.pt");
  loaded.train();
  EXPECT_TRUE(bit_equal(loaded.model->parameters(), whole.model->parameters()));
}

TEST(ChannelsLastTest, ACheckpointLoadedBeforeTheFirstRunContinuesBitIdentically) {
  expect_loaded_state_follows_the_model<torch::optim::AdamW>();
  expect_loaded_state_follows_the_model<torch::optim::Adagrad>();
  expect_loaded_state_follows_the_model<torch::optim::RMSprop>();
}

TEST(ChannelsLastTest, AdagradSumsHaveTheLayoutOfTheirParameters) {
  const auto sum = [](bool channels_last) {
    ConvolutionRun<torch::optim::Adagrad> run(channels_last);
    run.train();
    return static_cast<const torch::optim::AdagradParamState&>(
               *run.optimizer->state().at(run.model->parameters()[0].unsafeGetTensorImpl()))
        .sum();
  };
  EXPECT_TRUE(torch::allclose(sum(true), sum(false), 1e-4));
}

TEST(DeterministicTest, EnablesTheDeterministicAlgorithmsOfLibTorch) {
  const bool before = at::globalContext().deterministicAlgorithms();
  const Accelerator accelerator({.device = "cpu", .deterministic = true});
  EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
  EXPECT_TRUE(at::globalContext().deterministicCuDNN());
  at::globalContext().setDeterministicAlgorithms(before, false);
  at::globalContext().setDeterministicCuDNN(false);
}

}  // namespace
}  // namespace linkboy::testing::precision_test

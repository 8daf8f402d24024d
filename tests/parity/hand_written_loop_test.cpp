// The Trainer's numbers are bit-identical to those of a hand-written loop.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/schedulers/cosine_scheduler.hpp"
#include "precision/fused_step.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::hand_written_loop_test {
namespace {

constexpr int64_t kSamples = 52;
constexpr int64_t kBatchSize = 4;  // 13 batches: windows of 4, and a last one of 1
constexpr int64_t kEpochs = 2;

torch::nn::Sequential make_mlp() {
  using namespace torch::nn;
  return Sequential(Flatten(), Linear(64, 32), ReLU(), Linear(32, 16), ReLU(), Linear(16, 10));
}

torch::nn::Sequential make_cnn() {
  using namespace torch::nn;
  return Sequential(Conv2d(Conv2dOptions(1, 4, 3).padding(1)), BatchNorm2d(4), ReLU(), MaxPool2d(2),
                    Conv2d(Conv2dOptions(4, 8, 3).padding(1)), BatchNorm2d(8), ReLU(), MaxPool2d(2),
                    Flatten(), Linear(32, 10));
}

struct Case {
  std::string name;
  bool is_cnn;
  bool is_adamw;
  int64_t accumulation;
  std::optional<double> clip_value;
  std::optional<double> clip_norm;
  bool has_schedule;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

struct Outcome {
  std::vector<double> losses;
  std::vector<torch::Tensor> tensors;
};

std::shared_ptr<torch::optim::Optimizer> make_optimizer(const Case& c,
                                                        const torch::nn::Sequential& model) {
  if (c.is_adamw) {
    return std::make_shared<torch::optim::AdamW>(model->parameters(),
                                                 torch::optim::AdamWOptions(3e-3));
  }
  return std::make_shared<torch::optim::SGD>(
      model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-4));
}

torch::nn::Sequential make_model(const Case& c) {
  torch::manual_seed(11);
  return c.is_cnn ? make_cnn() : make_mlp();
}

std::pair<torch::Tensor, torch::Tensor> make_data() {
  torch::manual_seed(5);
  return {torch::randn({kSamples, 1, 8, 8}), torch::randint(10, {kSamples}, torch::kLong)};
}

std::vector<torch::Tensor> tensors_of(torch::nn::Sequential model) {
  std::vector<torch::Tensor> tensors;
  for (const auto& [name, tensor] : Model(model).named_tensors()) tensors.push_back(tensor);
  return tensors;
}

/// torch::nn::utils::clip_grad_norm_ divides max_norm by (norm + 1e-6), and Python multiplies by
/// the reciprocal. The results differ in the last bit. linkboy's numbers equal Python's.
void clip_norm_as_python(const std::vector<torch::Tensor>& parameters, double max_norm) {
  std::vector<torch::Tensor> norms;
  for (const auto& parameter : parameters) norms.push_back(parameter.grad().norm());
  const auto coefficient =
      ((torch::stack(norms).norm() + 1e-6).reciprocal() * max_norm).clamp_max(1.0);
  for (const auto& parameter : parameters) parameter.grad().mul_(coefficient);
}

Outcome train_by_hand(const Case& c) {
  auto model = make_model(c);
  auto optimizer = make_optimizer(c, model);
  const auto [x, y] = make_data();
  const int64_t num_batches = kSamples / kBatchSize;
  const int64_t updates_per_epoch = (num_batches + c.accumulation - 1) / c.accumulation;
  const double total = static_cast<double>(kEpochs * updates_per_epoch);
  const double base = c.is_adamw ? 3e-3 : 0.05;
  int64_t updates = 0;
  Outcome outcome;
  model->train();
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    for (int64_t i = 0; i < num_batches; ++i) {
      const int64_t window_start = i / c.accumulation * c.accumulation;
      const int64_t window = std::min(c.accumulation, num_batches - window_start);
      auto loss = torch::nn::functional::cross_entropy(
          model->forward(x.narrow(0, i * kBatchSize, kBatchSize)),
          y.narrow(0, i * kBatchSize, kBatchSize));
      outcome.losses.push_back(loss.item<double>());
      (loss / window).backward();
      if (i + 1 != window_start + window) continue;
      if (c.clip_value) torch::nn::utils::clip_grad_value_(model->parameters(), *c.clip_value);
      if (c.clip_norm) clip_norm_as_python(model->parameters(), *c.clip_norm);
      if (c.has_schedule) {
        const double progress = std::pow(updates, 1.0) / std::pow(total, 1.0);
        optimizer->param_groups()[0].options().set_lr(1e-6 + 0.5 * (base - 1e-6) *
                                                                 (1.0 + std::cos(M_PI * progress)));
      }
      EXPECT_EQ(fused_step(*optimizer), FusedGradients::all);
      optimizer->zero_grad();
      ++updates;
    }
  }
  outcome.tensors = tensors_of(model);
  return outcome;
}

Outcome train_by_trainer(const Case& c) {
  class KeepLosses : public Callback {
   public:
    void on_train_step_end(Trainer&, const Batch&, const StepOutput& output) override {
      losses.push_back(output.loss.item<double>());
    }
    std::vector<double> losses;
  };
  auto model = make_model(c);
  auto keep = std::make_shared<KeepLosses>();
  QuietTrainer trainer(model, torch::nn::CrossEntropyLoss(), make_optimizer(c, model),
                       {.callbacks = default_callbacks({keep}), .accelerator = {.device = "cpu"}});
  const auto [x, y] = make_data();
  TrainOptions options{.train_dataset = TensorDataset(x, y),
                       .num_epochs = kEpochs,
                       .per_device_batch_size = kBatchSize,
                       .gradient_accumulation_steps = c.accumulation,
                       .gradient_clip_value = c.clip_value,
                       .gradient_clip_norm = c.clip_norm};
  options.train_dataloader_options.shuffle = false;
  if (c.has_schedule) options.create_scheduler_fn = cosine();
  trainer.train(options);
  return {keep->losses, tensors_of(model)};
}

class HandWrittenLoopTest : public ::testing::TestWithParam<Case> {};

TEST_P(HandWrittenLoopTest, LossesAndWeightsAreBitIdentical) {
  const SingleThread single_thread;
  const Outcome by_hand = train_by_hand(GetParam());
  const Outcome by_trainer = train_by_trainer(GetParam());
  EXPECT_EQ(by_hand.losses, by_trainer.losses);
  EXPECT_TRUE(bit_equal(by_hand.tensors, by_trainer.tensors));
  EXPECT_NE(by_hand.losses.front(), by_hand.losses.back());
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (bool is_cnn : {false, true}) {
    for (bool is_adamw : {false, true}) {
      for (int64_t accumulation : {1, 4}) {
        const std::string name = std::string(is_cnn ? "Cnn" : "Mlp") +
                                 (is_adamw ? "AdamW" : "SgdMomentum") +
                                 (accumulation == 1 ? "Plain" : "Accumulated");
        cases.push_back({name, is_cnn, is_adamw, accumulation, {}, {}, false});
        cases.push_back({name + "ClipValue", is_cnn, is_adamw, accumulation, 0.01, {}, false});
        cases.push_back({name + "ClipNorm", is_cnn, is_adamw, accumulation, {}, 0.1, false});
        cases.push_back({name + "Cosine", is_cnn, is_adamw, accumulation, {}, {}, true});
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, HandWrittenLoopTest, ::testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace linkboy::testing::hand_written_loop_test

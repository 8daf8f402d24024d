#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "linkboy/trainer.hpp"
#include "support/in_every_event.hpp"
#include "support/test_device.hpp"

namespace linkboy::testing {

inline torch::Tensor toy_inputs(int64_t rows) {
  return torch::sin(torch::arange(rows * 4, torch::kFloat).reshape({rows, 4}) * 0.7);
}

/// Returns `rows` samples with 4 features and one of 3 labels, the same on every machine.
inline TensorDataset toy_data(int64_t rows) {
  return TensorDataset(toy_inputs(rows), torch::arange(rows) * 7 % 3);
}

/// Returns a model from 4 features to 3 scores. The weights are the same on every machine.
inline torch::nn::Sequential toy_model() {
  torch::nn::Sequential model(torch::nn::Linear(4, 5), torch::nn::ReLU(), torch::nn::Linear(5, 3));
  const torch::NoGradGuard no_grad;
  double phase = 0.0;
  for (auto& parameter : model->parameters()) {
    const auto steps = torch::arange(parameter.numel(), torch::kFloat) + phase;
    parameter.copy_(torch::cos(steps * 1.3).reshape(parameter.sizes()) * 0.5);
    phase += 1.0;
  }
  return model;
}

inline std::shared_ptr<torch::optim::SGD> toy_sgd(const torch::nn::Sequential& model,
                                                  double lr = 0.1, double momentum = 0.9) {
  return std::make_shared<torch::optim::SGD>(model->parameters(),
                                             torch::optim::SGDOptions(lr).momentum(momentum));
}

inline std::vector<double> rates_of(const torch::optim::Optimizer& optimizer) {
  return get_param_group_field(optimizer, ParamGroupField::lr);
}

/// A Trainer that stores its lines instead of printing them.
class QuietTrainer : public Trainer {
 public:
  using Trainer::Trainer;
  void print(std::string_view line) override {
    lines.emplace_back(line);
    if (on_print) on_print();
  }

  std::vector<std::string> lines;
  std::function<void()> on_print{};
};

/// The toy model with cross entropy and SGD, by default on the test device, without callbacks other
/// than `callbacks`. `net` replaces the model.
template <class TrainerType>
struct ToyOf {
  explicit ToyOf(CallbackList callbacks = {}, double lr = 0.1,
                 AcceleratorOptions accelerator = {.device = test_device()},
                 torch::nn::Sequential net = toy_model())
      : model(std::move(net)),
        optimizer(toy_sgd(model, lr)),
        trainer(model, torch::nn::CrossEntropyLoss(), optimizer,
                {.callbacks = std::move(callbacks),
                 .default_callbacks = {},
                 .accelerator = std::move(accelerator)}) {}

  /// Trains, if `options` do not say otherwise, one epoch with 8 samples.
  TrainResult train(TrainOptions options = {}) {
    if (!options.train_dataset && !options.train_dataloader) options.train_dataset = toy_data(8);
    if (!options.num_epochs && !options.max_num_updates) options.num_epochs = 1;
    return trainer.train(options);
  }

  /// Adds a callback that calls `function` in this event.
  void on(Event event, std::function<void(Trainer&)> function) {
    trainer.callback_handler().add(in_event(event, std::move(function)));
  }

  /// Returns the values of a metric in the last run.
  std::vector<double> values(std::string_view metric) const {
    return trainer.run_history().get_metric_values(metric);
  }

  torch::nn::Sequential model;
  std::shared_ptr<torch::optim::SGD> optimizer;
  TrainerType trainer;
};
using Toy = ToyOf<QuietTrainer>;

/// Limits LibTorch to one thread within its scope, because the numbers of a run depend on the
/// number of threads.
class SingleThread {
 public:
  SingleThread() : before_(torch::get_num_threads()) { torch::set_num_threads(1); }
  ~SingleThread() { torch::set_num_threads(before_); }

 private:
  int before_;
};

inline std::vector<torch::Tensor> copies_of(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> copies;
  for (const auto& tensor : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

/// Whether two lists of tensors are bit-identical, whatever devices they are on.
inline bool bit_equal(const std::vector<torch::Tensor>& left,
                      const std::vector<torch::Tensor>& right) {
  if (left.size() != right.size()) return false;
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (!torch::equal(left[i].cpu(), right[i].cpu())) return false;
  }
  return true;
}

}  // namespace linkboy::testing

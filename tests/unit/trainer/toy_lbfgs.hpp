#pragma once

#include <torch/torch.h>

#include <memory>
#include <utility>

#include "support/toy.hpp"

/// The toy model with an LBFGS, for the tests of closures.
namespace linkboy::testing {

using Lbfgs = torch::optim::LBFGS;

inline std::shared_ptr<Lbfgs> toy_lbfgs(const torch::nn::Sequential& model) {
  return std::make_shared<Lbfgs>(
      model->parameters(),
      torch::optim::LBFGSOptions(0.5).max_iter(5).history_size(4).line_search_fn("strong_wolfe"));
}

struct LbfgsToy {
  explicit LbfgsToy(torch::nn::Sequential net = toy_model(),
                    AcceleratorOptions accelerator = {.device = "cpu"})
      : model(std::move(net)),
        trainer(model, torch::nn::CrossEntropyLoss(), optimizer,
                {.default_callbacks = {}, .accelerator = std::move(accelerator)}) {}

  torch::nn::Sequential model;
  std::shared_ptr<Lbfgs> optimizer = toy_lbfgs(model);
  QuietTrainer trainer;
};

inline TrainOptions toy_options(int64_t num_epochs = 3) {
  return {.train_dataset = toy_data(10),
          .num_epochs = num_epochs,
          .per_device_batch_size = 4,
          .train_dataloader_options = {.seed = 5}};
}

}  // namespace linkboy::testing

#pragma once

#include <memory>
#include <utility>

#include "support/toy.hpp"

namespace linkboy::testing {

/// Returns a Trainer with cross entropy on the CPU. The default optimizer is that of `toy_sgd`.
template <class TrainerType = QuietTrainer, class Module>
TrainerType cpu_trainer(const Module& model, CallbackList callbacks,
                        std::shared_ptr<torch::optim::Optimizer> optimizer = nullptr) {
  if (!optimizer) {
    optimizer = std::make_shared<torch::optim::SGD>(model->parameters(),
                                                    torch::optim::SGDOptions(0.1).momentum(0.9));
  }
  return TrainerType(model, torch::nn::CrossEntropyLoss(), std::move(optimizer),
                     TrainerOptions{.callbacks = std::move(callbacks),
                                    .default_callbacks = {},
                                    .accelerator = {.device = "cpu"}});
}

}  // namespace linkboy::testing

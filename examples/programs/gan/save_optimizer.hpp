#pragma once

#include <torch/optim/optimizer.h>

#include <linkboy/callback.hpp>
#include <memory>

namespace gan {

/// Keeps an optimizer's state in the training states: the Trainer saves only the optimizer that it
/// was given.
class SaveOptimizer : public linkboy::Callback {
 public:
  explicit SaveOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer)
      : optimizer_(std::move(optimizer)) {}

  linkboy::StateDict state_dict() const override;
  void load_state_dict(const linkboy::StateDict& state) override;

 private:
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace gan

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <linkboy/callback.hpp>

namespace fashion_mnist {

/// Records the share of samples whose highest score is that of their class, as `eval_accuracy`,
/// after each evaluation: of all processes' samples. Counts on the device and reads the count once.
class Accuracy : public linkboy::Callback {
 public:
  void on_eval_epoch_start(linkboy::Trainer& trainer) override;
  void on_eval_step_end(linkboy::Trainer& trainer, const linkboy::Batch& batch,
                        const linkboy::StepOutput& output) override;
  void on_eval_epoch_end(linkboy::Trainer& trainer) override;

 private:
  at::Tensor num_correct_;
  int64_t num_samples_ = 0;
};

}  // namespace fashion_mnist

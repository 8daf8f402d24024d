#include "accuracy.hpp"

#include <torch/types.h>

#include <linkboy/trainer.hpp>

namespace fashion_mnist {

void Accuracy::on_eval_epoch_start(linkboy::Trainer& trainer) {
  num_correct_ = torch::zeros({}, torch::TensorOptions(torch::kLong).device(trainer.device()));
  num_samples_ = 0;
}

void Accuracy::on_eval_step_end(linkboy::Trainer&, const linkboy::Batch& batch,
                                const linkboy::StepOutput& output) {
  const at::Tensor predicted = output.model_outputs.toTensor().argmax(1);
  num_correct_ += (predicted == batch.target()).sum();
  num_samples_ += batch.size();
}

void Accuracy::on_eval_epoch_end(linkboy::Trainer& trainer) {
  const auto num_correct = static_cast<double>(num_correct_.item<int64_t>());
  trainer.run_history().update_metric("eval_accuracy",
                                      num_correct / static_cast<double>(num_samples_));
}

}  // namespace fashion_mnist

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
  // Of several processes one may have had no batch at all: counts are added, not shares averaged.
  const at::Tensor counts =
      torch::stack({num_correct_, torch::full_like(num_correct_, num_samples_)});
  const at::Tensor sums = trainer.accelerator().reduce(counts, linkboy::ReduceOp::sum).cpu();
  trainer.run_history().update_metric("eval_accuracy",
                                      sums[0].item<double>() / sums[1].item<double>());
}

}  // namespace fashion_mnist

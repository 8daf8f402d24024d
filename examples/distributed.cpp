// Runs unchanged with one process or several:
//
//     distributed
//     torchrun --no-python --nproc-per-node 2 distributed

#include <torch/torch.h>

#include <algorithm>

#include <linkboy/callbacks/convert_sync_batch_norm.hpp>
#include <linkboy/trainer.hpp>

/// Records the largest error of an evaluation. Each process sees only its share of the samples, so
/// the results of all processes are gathered.
class LargestError : public linkboy::Callback {
 public:
  void on_eval_epoch_start(linkboy::Trainer& trainer) override {
    largest_ = torch::zeros({}, trainer.accelerator().device());
  }

  void on_eval_step_end(linkboy::Trainer&, const linkboy::Batch& batch,
                        const linkboy::StepOutput& output) override {
    const auto errors = (output.model_outputs.toTensor() - batch.target()).abs();
    largest_ = torch::maximum(largest_, errors.max());
  }

  void on_eval_epoch_end(linkboy::Trainer& trainer) override {
    const double largest = trainer.accelerator().gather(largest_).max().item<double>();
    trainer.run_history().update_metric(trainer.run().metric_name("largest_error"), largest);
  }

 private:
  at::Tensor largest_;
};

/// Returns points [N, 8] and a linear function of them with noise, [N, 1].
linkboy::TensorDataset make_data(int64_t num_points) {
  const auto points = torch::randn({num_points, 8});
  return {points, points.sum(1, /*keepdim=*/true) + torch::randn({num_points, 1})};
}

int main() {
  // All processes create the same data, and Trainer divides the batches among them.
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::BatchNorm1d(32),
                              torch::nn::ReLU(), torch::nn::Linear(32, 1));
  auto optimizer = std::make_shared<torch::optim::SGD>(model->parameters(), 0.05);
  linkboy::Trainer trainer(
      model, torch::nn::MSELoss(), optimizer,
      {.callbacks = {linkboy::convert_sync_batch_norm(), std::make_shared<LargestError>()}});

  // An update uses 64 samples for any number of processes that divides 64.
  const int64_t num_processes = trainer.accelerator().num_processes();
  trainer.train({.train_dataset = make_data(4096),
                 .eval_dataset = make_data(1000),
                 .per_device_batch_size = std::max<int64_t>(64 / num_processes, 1),
                 .num_epochs = 3});

  const linkboy::RunHistory& history = trainer.run_history();
  trainer.print(c10::str("processes: ", num_processes,
                         ", loss: ", history.get_latest_metric("eval_loss_epoch"),
                         ", largest error: ", history.get_latest_metric("eval_largest_error")));
}

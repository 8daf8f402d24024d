// Trains the same model on any number of processes. See the tutorial "From one process to four".
//
//     one_to_four
//     torchrun --no-python --nproc-per-node 4 one_to_four

#include <torch/torch.h>

#include <linkboy/callbacks/lambda_callback.hpp>
#include <linkboy/cli.hpp>
#include <linkboy/metrics/regression.hpp>
#include <linkboy/trainer.hpp>

constexpr int64_t kTotalBatchSize = 64;

/// Returns points [N, 8] and a linear function of them with noise, [N, 1].
linkboy::TensorDataset make_data(int64_t num_points) {
  const auto points = torch::randn({num_points, 8});
  return {points, points.sum(1, /*keepdim=*/true) + torch::randn({num_points, 1})};
}

void run() {
  torch::manual_seed(0);  // the same data and the same weights on every rank
  torch::nn::Sequential net(torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1));
  auto optimizer = std::make_shared<torch::optim::AdamW>(net->parameters(), 0.01);

  // Each rank counts its own samples; `gather` returns the counts of all ranks.
  int64_t num_seen = 0;
  auto count = linkboy::lambda_callback(
      {.on_train_step_end = [&num_seen](linkboy::Trainer&, const linkboy::Batch& batch,
                                        const linkboy::StepOutput&) { num_seen += batch.size(); }});

  linkboy::Trainer trainer(net, torch::nn::MSELoss(), optimizer,
                           {.metrics = {{"mae", linkboy::mean_absolute_error()}},
                            .callbacks = {count},
                            .default_callbacks = {}});
  const linkboy::Accelerator& accelerator = trainer.accelerator();
  const int64_t num_processes = accelerator.num_processes();
  trainer.train({.train_dataset = make_data(4096),
                 .eval_dataset = make_data(1001),
                 .per_device_batch_size = kTotalBatchSize / num_processes,
                 .num_epochs = 3});

  const auto seen =
      trainer.accelerator().gather(torch::tensor({num_seen}, trainer.accelerator().device()));
  const linkboy::RunHistory& history = trainer.run_history();
  trainer.print(c10::str("samples per rank: ", seen.sum().item<int64_t>() / num_processes,
                         ", updates: ", trainer.num_updates()));
  trainer.print(c10::str("loss: ", history.get_latest_metric("eval_loss_epoch"),
                         ", mean absolute error: ", history.get_latest_metric("eval_mae")));
  trainer.save_checkpoint("model.pt");  // collective; rank 0 writes the file
}

int main(int argc, char** argv) {
  return linkboy::cli::run_main(argc, argv, [](const linkboy::cli::Arguments&) { run(); });
}

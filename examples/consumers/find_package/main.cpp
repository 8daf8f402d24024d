#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/loss.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <cstdio>

#include <linkboy/callbacks/early_stopping.hpp>
#include <linkboy/cli.hpp>
#include <linkboy/linkboy.hpp>
#include <linkboy/schedulers/curves.hpp>
#include <linkboy/version.hpp>

int main(int argc, char** argv) {
  return linkboy::cli::run_main(argc, argv, [](const linkboy::cli::Arguments&) {
    torch::manual_seed(1);
    torch::nn::Linear model(2, 1);
    auto optimizer = std::make_shared<torch::optim::AdamW>(model->parameters(), 0.1);
    linkboy::Trainer trainer(
        model, torch::nn::MSELoss(), optimizer,
        {.callbacks = {linkboy::early_stopping({.monitor = "train_loss_epoch"})},
         .default_callbacks = {}});
    const auto x = torch::rand({64, 2});
    trainer.train({.train_dataset = linkboy::TensorDataset(x, x.sum(1, /*keepdim=*/true)),
                   .num_epochs = 30,
                   .create_scheduler_fn = linkboy::cosine()});
    std::printf("linkboy %s: loss %.4f\n", LINKBOY_VERSION,
                trainer.run_history().get_latest_metric("train_loss_epoch"));
  });
}

// A training loop with an Accelerator. See docs/coming_from/lightning_and_accelerate.md.

#include <torch/torch.h>

#include <numbers>

#include <linkboy/accelerator.hpp>
#include <linkboy/cli.hpp>
#include <linkboy/data/data_loader.hpp>
#include <linkboy/model.hpp>

linkboy::TensorDataset make_spirals(int64_t num_points) {
  const auto labels = torch::randint(2, {num_points}, torch::kLong);
  const auto radii = torch::rand(num_points);
  const auto angles = 8.0 * radii + std::numbers::pi * labels;
  return {torch::stack({radii * angles.cos(), radii * angles.sin()}, 1), labels};
}

void run() {
  linkboy::Accelerator accelerator({.precision = linkboy::Precision::bf16});
  accelerator.set_gradient_accumulation_steps(2);
  torch::manual_seed(0);
  torch::nn::Sequential net(torch::nn::Linear(2, 64), torch::nn::ReLU(), torch::nn::Linear(64, 64),
                            torch::nn::ReLU(), torch::nn::Linear(64, 2));
  torch::optim::AdamW optimizer(net->parameters(), 0.01);
  linkboy::Model model(net);
  accelerator.prepare(model, &optimizer);
  const auto train = accelerator.prepare(
      linkboy::make_data_loader(make_spirals(2000), {.batch_size = 25, .shuffle = true}));
  const auto test = accelerator.prepare(
      linkboy::make_data_loader(make_spirals(500), {.batch_size = 100, .even_batches = false}));

  for (int64_t epoch = 1; epoch <= 10; ++epoch) {
    model.train();
    auto batches = train->iterate(epoch);
    for (int64_t i = 0; auto batch = batches->next(); ++i) {
      const auto window = accelerator.begin_micro_step(i, train->size());
      torch::Tensor loss;
      {
        const auto scope = accelerator.autocast();
        loss = torch::cross_entropy_loss(model(batch->input()), batch->target());
      }
      accelerator.backward(loss);
      if (!window.is_complete()) continue;
      accelerator.unscale_gradients(optimizer);
      accelerator.clip_grad_norm(model.parameters(), 1.0);
      accelerator.optimizer_step(optimizer);
      accelerator.zero_grad(optimizer);
    }
  }

  model.eval();
  const torch::NoGradGuard no_grad;
  int64_t num_right = 0, num_samples = 0;
  auto batches = test->iterate(1);
  while (auto batch = batches->next()) {
    const auto classes = model(batch->input()).argmax(1);
    const auto right = accelerator.gather_for_metrics(classes.eq(batch->target()));
    num_right += right.sum().item<int64_t>();
    num_samples += right.size(0);
  }
  accelerator.join_uneven_loop();
  accelerator.print(c10::str(num_samples, " samples, accuracy: ",
                             static_cast<double>(num_right) / static_cast<double>(num_samples)));
}

int main(int argc, char** argv) {
  return linkboy::cli::run_main(argc, argv, [](const linkboy::cli::Arguments&) { run(); });
}

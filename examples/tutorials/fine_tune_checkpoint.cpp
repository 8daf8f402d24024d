// Fine-tunes a model that Python trained. See the tutorial "Fine-tune a Python checkpoint".
//
//     fine_tune_checkpoint BASE.pt TUNED.pt

#include <torch/torch.h>

#include <cstdio>
#include <iostream>

#include <linkboy/callbacks/freeze_layers.hpp>
#include <linkboy/checkpoint/checkpoint.hpp>
#include <linkboy/cli.hpp>
#include <linkboy/trainer.hpp>

/// The class Net of python_side.py. Its members have the same names, so that the weights fit.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t num_classes) {
    body = register_module("body",
                           torch::nn::Sequential(torch::nn::Linear(16, 64), torch::nn::ReLU(),
                                                 torch::nn::Linear(64, 64), torch::nn::ReLU()));
    head = register_module("head", torch::nn::Linear(64, num_classes));
  }
  torch::Tensor forward(const torch::Tensor& points) { return head(body->forward(points)); }

  torch::nn::Sequential body{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Net);

void run(const std::string& base, const std::string& tuned) {
  torch::manual_seed(0);
  Net net(3);
  const linkboy::LoadReport report = linkboy::Model(net).load_state_dict(
      linkboy::read_checkpoint(base), {.rename = {{"head.", "old_head."}}, .strict = false});
  for (const auto& name : report.missing) std::cout << "new: " << name << '\n';

  auto freezer = std::make_shared<linkboy::ModelFreezer>(net);
  freezer->freeze();  // all layer groups except the last, so that only the head is trained
  auto optimizer = std::make_shared<torch::optim::AdamW>(freezer->get_trainable_parameters(), 0.01);
  auto unfreeze =
      linkboy::freeze_layers(freezer, {.unfreeze_at = {{.epoch = 4, .from_index = 0, .lr = 1e-3}}});

  const auto data = linkboy::read_checkpoint("few.pt");
  const auto& points = data.get_tensor("points");
  const auto& classes = data.get_tensor("classes");
  const linkboy::TensorDataset train(points.slice(0, 0, 300), classes.slice(0, 0, 300));
  const linkboy::TensorDataset test(points.slice(0, 300), classes.slice(0, 300));

  linkboy::Trainer trainer(net, torch::nn::CrossEntropyLoss(), optimizer,
                           {.callbacks = {unfreeze}, .default_callbacks = {}});
  trainer.train({.train_dataset = train, .per_device_batch_size = 20, .num_epochs = 10});
  const auto scores = trainer.predict({.dataset = test}).toTensor();
  const auto right = scores.argmax(1).eq(classes.slice(0, 300));
  std::printf("accuracy in C++: %.3f\n", right.to(torch::kDouble).mean().item<double>());
  trainer.save_checkpoint(tuned, {{"note", "fine-tuned in C++"}});
}

int main(int argc, char** argv) {
  return linkboy::cli::run_main(argc, argv, [](const linkboy::cli::Arguments& arguments) {
    if (arguments.size() != 2)
      throw linkboy::cli::UsageError("two arguments are required: BASE and TUNED.");
    run(arguments[0], arguments[1]);
  });
}

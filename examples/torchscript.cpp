// Trains a TorchScript model that Python exported, and saves it so that Python can load it again.
// C++ does not need the model's Python class. export_torchscript.py is the Python side.

#include <torch/script.h>
#include <torch/torch.h>

#include <cstdio>
#include <filesystem>
#include <optional>

#include <linkboy/checkpoint/checkpoint.hpp>
#include <linkboy/cli.hpp>
#include <linkboy/data/image_transforms.hpp>
#include <linkboy/trainer.hpp>
#include "parts/shapes.hpp"

/// Creates a model from TorchScript source, so that the example also runs without Python.
torch::jit::Module make_own_model() {
  torch::jit::Module module("Net");
  module.register_attribute("training", c10::BoolType::get(), true);
  const auto add_weight = [&module](const char* name, at::IntArrayRef sizes) {
    const at::Tensor weight = torch::nn::init::kaiming_normal_(at::empty(sizes));
    module.register_parameter(name, weight.requires_grad_(), /*is_buffer=*/false);
  };
  add_weight("weight1", {16, 3, 3, 3});
  add_weight("weight2", {32, 16, 3, 3});
  add_weight("head", {shapes::kNumClasses, 32 * 7 * 7});
  module.define(R"(
    def forward(self, images):
        x = torch.max_pool2d(torch.relu(torch.conv2d(images, self.weight1, padding=1)), 2)
        x = torch.max_pool2d(torch.relu(torch.conv2d(x, self.weight2, padding=1)), 2)
        x = torch.dropout(torch.flatten(x, 1), 0.1, self.training)
        return torch.matmul(x, self.head.t())
  )");
  return module;
}

void train(torch::jit::Module script, const std::filesystem::path& output) {
  linkboy::Model model(script);  // shares the module
  LINKBOY_CHECK(!model.parameters().empty(),
                "the model has no parameters to train; export it without torch.jit.freeze.");
  const linkboy::Batch test = shapes::make_shapes(512, 28, /*seed=*/2);
  const linkboy::TensorDataset test_set(test.tensors());
  const linkboy::DataLoaderOptions loading{.transform = linkboy::normalise({0.4}, {0.25})};
  linkboy::Trainer trainer(model, torch::nn::CrossEntropyLoss(),
                           std::make_shared<torch::optim::AdamW>(model.parameters(), 3e-3));
  const linkboy::TensorDataset train_set(shapes::make_shapes(1024, 28, /*seed=*/1).tensors());
  trainer.train({.train_dataset = train_set,
                 .eval_dataset = test_set,
                 .per_device_batch_size = 32,
                 .train_dataloader_options = loading,
                 .eval_dataloader_options = loading,
                 .num_epochs = 5});

  const at::Tensor scores =
      trainer.predict({.dataset = test_set, .dataloader_options = loading}).toTensor();
  std::filesystem::create_directories(output);
  script.to(at::kCPU);
  script.save(output / "model.pt");
  linkboy::write_checkpoint(
      output / "test_set.pt",
      {{"images", test.input()}, {"classes", test.target()}, {"scores", scores}});
  const double accuracy = scores.argmax(1).eq(test.target()).to(at::kDouble).mean().item<double>();
  std::printf("accuracy: %.3f, model: %s\n", accuracy, (output / "model.pt").c_str());
}

int main(int argc, char** argv) {
  return linkboy::cli::run_main(argc, argv, [](const linkboy::cli::Arguments& arguments) {
    std::optional<std::filesystem::path> model;
    std::filesystem::path output = "output/torchscript";
    linkboy::cli::CommandLine command_line("torchscript", "Trains a TorchScript model on shapes.");
    command_line.add_group("Files")
        .add("model", "FILE", &model,
             "TorchScript model from images [N, 3, 28, 28] to 4 scores. Default: a built-in model.")
        .add("output", "FOLDER", &output, "Folder for model.pt (trained) and test_set.pt.");
    if (!command_line.parse(arguments)) return;
    torch::manual_seed(1);
    train(model ? torch::jit::load(*model) : make_own_model(), output);
  });
}

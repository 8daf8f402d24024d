// Trains a TorchScript model that Python has exported, and saves it for Python to load again:
// the class that it was defined by is not needed on this side. export_torchscript.py is the other.

#include <torch/script.h>
#include <torch/torch.h>

#include <cstdio>
#include <filesystem>
#include <linkboy/checkpoint/checkpoint.hpp>
#include <linkboy/cli.hpp>
#include <linkboy/data/image_transforms.hpp>
#include <linkboy/trainer.hpp>
#include <optional>

#include "parts/shapes.hpp"

namespace {

namespace cli = linkboy::cli;

struct Options {
  std::optional<std::filesystem::path> model;
  std::filesystem::path output = "output/torchscript";
};

std::optional<Options> parse_options(const cli::Arguments& arguments) {
  Options options;
  cli::CommandLine command_line("torchscript",
                                "Trains a TorchScript model on images of shapes: [N, 3, 28, 28] to "
                                "4 scores.");
  command_line.add_group("Files")
      .add("model", "FILE", &options.model,
           "The model; export_torchscript.py exports one. Default: one that is made here.")
      .add("output", "FOLDER", &options.output,
           "Gets model.pt, the trained model, and test_set.pt.");
  if (!command_line.parse(arguments)) return std::nullopt;
  return options;
}

at::Tensor make_weight(at::IntArrayRef sizes) {
  return torch::nn::init::kaiming_normal_(at::empty(sizes)).requires_grad_();
}

/// A model in TorchScript's own language, so that the example runs without Python.
std::filesystem::path write_own_model(const std::filesystem::path& folder) {
  torch::jit::Module module("Net");
  module.register_attribute("training", c10::BoolType::get(), true);
  module.register_parameter("weight1", make_weight({16, 3, 3, 3}), /*is_buffer=*/false);
  module.register_parameter("weight2", make_weight({32, 16, 3, 3}), /*is_buffer=*/false);
  module.register_parameter("head", make_weight({shapes::kNumClasses, 32 * 7 * 7}),
                            /*is_buffer=*/false);
  module.define(R"(
    def forward(self, images):
        x = torch.max_pool2d(torch.relu(torch.conv2d(images, self.weight1, padding=1)), 2)
        x = torch.max_pool2d(torch.relu(torch.conv2d(x, self.weight2, padding=1)), 2)
        x = torch.dropout(torch.flatten(x, 1), 0.1, self.training)
        return torch.matmul(x, self.head.t())
  )");
  std::filesystem::create_directories(folder);
  const std::filesystem::path path = folder / "untrained.pt";
  module.save(path);
  std::printf("no --model: takes %s, which is made here\n", path.c_str());
  return path;
}

void train(const std::filesystem::path& path, const std::filesystem::path& output) {
  LINKBOY_CHECK(std::filesystem::exists(path), "there is no file ", path,
                "; `python3 examples/export_torchscript.py FILE` makes one, and without --model "
                "none is needed.");
  torch::jit::Module script = torch::jit::load(path);
  linkboy::Model model(script);  // shares it
  LINKBOY_CHECK(!model.parameters().empty(), path,
                " has no parameters to train; export it without torch.jit.freeze.");

  const linkboy::TensorDataset train_set(shapes::make_shapes(1024, 28, /*seed=*/1).tensors());
  const linkboy::Batch test = shapes::make_shapes(512, 28, /*seed=*/2);
  const linkboy::TensorDataset test_set(test.tensors());
  const linkboy::Transform normalise = linkboy::normalise({0.4}, {0.25});
  linkboy::Trainer trainer(
      model, torch::nn::CrossEntropyLoss(),
      std::make_shared<torch::optim::AdamW>(model.parameters(), torch::optim::AdamWOptions(3e-3)));
  trainer.train({.train_dataset = train_set,
                 .num_epochs = 5,
                 .eval_dataset = test_set,
                 .per_device_batch_size = 32,
                 .train_dataloader_options = {.transform = normalise},
                 .eval_dataloader_options = {.transform = normalise}});

  const at::Tensor scores =
      trainer.predict({.dataset = test_set, .dataloader_options = {.transform = normalise}});
  const double accuracy = scores.argmax(1).eq(test.target()).to(at::kDouble).mean().item<double>();

  std::filesystem::create_directories(output);
  script.to(at::kCPU);
  script.save(output / "model.pt");
  linkboy::write_checkpoint(
      output / "test_set.pt",
      {{"images", test.input()}, {"classes", test.target()}, {"scores", scores}});
  std::printf("accuracy: %.3f, model: %s\n", accuracy, (output / "model.pt").c_str());
}

}  // namespace

int main(int argc, char** argv) {
  return cli::run_main(argc, argv, [](const cli::Arguments& arguments) {
    const auto options = parse_options(arguments);
    if (!options) return;
    torch::manual_seed(1);
    train(options->model ? *options->model : write_own_model(options->output), options->output);
  });
}

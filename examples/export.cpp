// Trains a model and exports it for programs without its code: as a package that C++ and Python
// run, as an ExportedProgram that Python loads, and as ONNX. check_export.py is the Python side.

#include <torch/torch.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <string>

#include <linkboy/checkpoint/checkpoint.hpp>
#include <linkboy/cli.hpp>
#include <linkboy/compile/export_model.hpp>
#include <linkboy/data/image_transforms.hpp>
#include <linkboy/trainer.hpp>
#include "parts/shapes.hpp"

namespace fs = std::filesystem;

linkboy::Model train() {
  linkboy::Model model(shapes::make_cnn());
  linkboy::Trainer trainer(model, torch::nn::CrossEntropyLoss(),
                           std::make_shared<torch::optim::AdamW>(model.parameters(), 3e-3));
  const linkboy::TensorDataset data(shapes::make_shapes(1024, 28, /*seed=*/1).tensors());
  trainer.train({.train_dataset = data,
                 .per_device_batch_size = 32,
                 .train_dataloader_options = {.transform = linkboy::normalise({0.4}, {0.25})},
                 .num_epochs = 5});
  return model;
}

/// Runs the package as a program without the model's code does, with any number of images.
double largest_difference(const linkboy::Model& package, const at::Tensor& images,
                          const at::Tensor& scores) {
  double largest = 0.0;
  for (const int64_t count : {1, 7, 200}) {
    const at::Tensor difference = package(images.slice(0, 0, count)) - scores.slice(0, 0, count);
    largest = std::max(largest, difference.abs().max().item<double>());
  }
  return largest;
}

void print_line(const std::string& line) { std::puts(line.c_str()); }

int main(int argc, char** argv) {
  return linkboy::cli::run_main(argc, argv, [](const linkboy::cli::Arguments& arguments) {
    fs::path output = "output/export";
    bool has_onnx = false;
    linkboy::cli::CommandLine command_line("export", "Trains and exports a model.");
    command_line.add_group("Files")
        .add("output", "FOLDER", &output, "Folder for the exported models and test_set.pt.")
        .add_switch("onnx", &has_onnx,
                    "Also export ONNX, which needs the Python package onnxscript.");
    if (!command_line.parse(arguments)) return;
    using enum linkboy::ExportFormat;
    std::map<fs::path, linkboy::ExportFormat> files = {{output / "package.pt2", package},
                                                       {output / "program.pt2", exported_program}};
    if (has_onnx) files.emplace(output / "model.onnx", onnx);
    for (const auto& [path, format] : files) linkboy::check_can_export(path, format);
    torch::manual_seed(1);
    linkboy::Model model = train();

    const linkboy::Batch test = shapes::make_shapes(200, 28, /*seed=*/2);
    const at::Tensor images = (test.input() / 255 - 0.4) / 0.25;
    for (const auto& [path, format] : files) {
      linkboy::export_model(model, images, path, {.format = format, .tell_fn = print_line});
    }

    const torch::NoGradGuard no_grad;
    model.eval();
    const at::Tensor scores = model(images);
    linkboy::write_checkpoint(output / "test_set.pt", {{"images", images}, {"scores", scores}});
    const linkboy::Model exported = linkboy::load_exported_model(output / "package.pt2");
    std::printf("scores of the package are equal to 1e-4: %s\n",
                largest_difference(exported, images, scores) < 1e-4 ? "yes" : "no");
  });
}

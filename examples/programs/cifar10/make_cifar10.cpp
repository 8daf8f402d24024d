// Writes a small dataset of images in the format of CIFAR-10, so that the examples run without a
// download.

#include <fmt/format.h>

#include <cstdio>

#include <linkboy/cli.hpp>

#include "shapes.hpp"

int main(int argc, char** argv) {
  namespace cli = linkboy::cli;
  return cli::run_main(argc, argv, [](const cli::Arguments& arguments) {
    constexpr int64_t kMaxImages = 1'000'000;
    std::filesystem::path directory = "small";
    cifar10::ShapesOptions options;
    cli::CommandLine command_line(
        "make_cifar10",
        "Writes images of ten shapes in the format of CIFAR-10's binary version: data_batch_1.bin "
        "to\ndata_batch_5.bin and test_batch.bin. Existing files with other content are not "
        "overwritten.");
    command_line.add_group("Options")
        .add("directory", "DIR", &directory, "Folder for the files; created if it is missing.")
        .add("train", "N", &options.num_train_images, "Total images in the five training files.",
             cli::in_range(5, kMaxImages))
        .add("test", "N", &options.num_test_images, "Images in the test file.",
             cli::in_range(1, kMaxImages))
        .add("seed", "N", &options.seed, "Seed of the images.");
    if (!command_line.parse(arguments)) return;
    cifar10::write_shapes(directory, options);
    fmt::print("{}: {} training images, {} test images\n", directory.string(),
               options.num_train_images, options.num_test_images);
  });
}

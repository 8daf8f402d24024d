// Writes a small set of images in the format of CIFAR-10, so that the examples run without a
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
        "to\ndata_batch_5.bin and test_batch.bin. Files that are there already are not "
        "overwritten.");
    command_line.add_group("Options")
        .add("directory", "DIR", &directory, "Folder of the files; made if need be.")
        .add("train", "N", &options.num_train_images, "Images in the five training files together.",
             cli::in_range(5, kMaxImages))
        .add("test", "N", &options.num_test_images, "Images in the test file.",
             cli::in_range(1, kMaxImages))
        .add("seed", "N", &options.seed, "Another seed gives other images.");
    if (!command_line.parse(arguments)) return;
    cifar10::write_shapes(directory, options);
    fmt::print("{}: {} images to train on, {} to test\n", directory.string(),
               options.num_train_images, options.num_test_images);
  });
}

#include "recipe.hpp"

#include <linkboy/data/image_transforms.hpp>
#include <linkboy/schedulers/composite.hpp>
#include <linkboy/schedulers/curves.hpp>

namespace cifar10 {
namespace cli = linkboy::cli;

Images read_images(const std::filesystem::path& folder, linkboy::vision::Split split) {
  try {
    return linkboy::vision::read_cifar10(folder, split);
  } catch (const linkboy::FileError& error) {
    throw linkboy::FileError(std::string(error.what()) +
                             " Name the folder with --data, or write a small dataset with "
                             "make_cifar10.");
  }
}

linkboy::Transform normalise_pixels() {
  return linkboy::normalise({0.4914, 0.4822, 0.4465}, {0.2023, 0.1994, 0.2010});
}

Recipe read_recipe(const std::string& program, const std::string& description,
                   const cli::Arguments& arguments) {
  Recipe recipe;
  const auto add_options = [&](cli::CommandLine& command_line) {
    command_line.add_group("Data, network and tests")
        .add("data", "DIR", &recipe.data,
             "Folder with the files of CIFAR-10's binary version or of make_cifar10.")
        .add("depth", "18|34", &recipe.depth, "Number of layers of the ResNet.",
             [](int64_t depth) { return depth == 18 || depth == 34 ? "" : "18 or 34"; })
        .add("test-interval", "N", &recipe.test_interval,
             "Tests after every N epochs and after the last epoch.", cli::at_least(1));
  };
  recipe.settings = cli::engine_settings(
      program, arguments,
      {.description = description,
       .defaults = {.train = {.num_epochs = 200},
                    .train_dataloader = {.batch_size = 128, .shuffle = true, .num_workers = 1},
                    // Each image counts once, so some processes may have one batch fewer.
                    .eval_dataloader = {.batch_size = 128, .num_workers = 1, .even_batches = false},
                    .optimizer = linkboy::sgd({.lr = 0.1, .momentum = 0.9, .weight_decay = 5e-4}),
                    // Constant within each epoch, like PyTorch's CosineAnnealingLR.
                    .scheduler = linkboy::by_epoch(linkboy::cosine({.min_lr = 0.0}))},
       .add_options = add_options});
  // The ResNet's last feature maps are 1 x 1, and batch norm cannot train on a single image.
  if (recipe.settings.train_dataloader.batch_size.value_or(0) < 2) {
    throw cli::UsageError("--batch-size must be an integer of at least 2.");
  }
  return recipe;
}

linkboy::DataLoaderOptions train_loader_options(linkboy::DataLoaderOptions options,
                                                const Images& images) {
  // Batch norm cannot train on a last batch of a single image either.
  options.drop_last =
      options.drop_last.value_or(false) || images.labels.size(0) % options.batch_size.value() == 1;
  options.transform = linkboy::compose({linkboy::random_crop(32, {.padding = 4}),
                                        linkboy::random_horizontal_flip(), normalise_pixels()});
  return options;
}

}  // namespace cifar10

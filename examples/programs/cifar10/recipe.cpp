#include "recipe.hpp"

#include <torch/cuda.h>

#include <utility>

#include <linkboy/data/image_transforms.hpp>
#include <linkboy/schedulers/composite.hpp>
#include <linkboy/schedulers/curves.hpp>

namespace cifar10 {
namespace {

namespace cli = linkboy::cli;

linkboy::Transform normalise_pixels() {
  return linkboy::normalise({0.4914, 0.4822, 0.4465}, {0.2023, 0.1994, 0.2010});
}

}  // namespace

Images read_images(const std::filesystem::path& folder, linkboy::vision::Split split) {
  try {
    return linkboy::vision::read_cifar10(folder, split);
  } catch (const linkboy::FileError& error) {
    throw linkboy::FileError(std::string(error.what()) +
                             " Name the folder with --data, or write a small dataset with "
                             "make_cifar10.");
  }
}

linkboy::AcceleratorOptions Options::accelerator() const {
  const bool on_cuda = device != "cpu" && torch::cuda::is_available();
  const std::string automatic = on_cuda ? "fp16" : "fp32";
  return {.device = device,
          .precision =
              linkboy::from_text<linkboy::Precision>(precision == "auto" ? automatic : precision)};
}

std::optional<Options> parse_options(const std::string& program, const std::string& description,
                                     const cli::Arguments& arguments) {
  constexpr int64_t kMaxWorkers = 1024;
  constexpr int64_t kMaxCount = 1'000'000'000;
  Options options;
  cli::CommandLine command_line(program, description);
  command_line.add_group("Data and network")
      .add("data", "DIR", &options.data,
           "Folder with the files of CIFAR-10's binary version or of make_cifar10.")
      .add("depth", "18|34", &options.depth, "Number of layers of the ResNet.",
           [](int64_t depth) { return depth == 18 || depth == 34 ? "" : "18 or 34"; });
  command_line.add_group("Training")
      .add("epochs", "N", &options.epochs, "Passes over the training images.",
           cli::in_range(1, kMaxCount))
      .add("max-updates", "N", &options.max_updates,
           "Total number of updates; overrides the number of epochs.", cli::in_range(1, kMaxCount))
      // The ResNet's last feature maps are 1 x 1, and batch norm needs two values per channel.
      .add("batch-size", "N", &options.batch_size, "Images per batch of each process.",
           cli::in_range(2, kMaxCount))
      .add("lr", "X", &options.lr, "Learning rate of the first epoch.", cli::not_negative())
      .add("test-interval", "N", &options.test_interval,
           "Tests after every N epochs and after the last epoch.", cli::at_least(1));
  command_line.add_group("Machine")
      .add("device", "NAME", &options.device,
           "cpu, cuda, cuda:1, ...; auto uses a CUDA device if there is one.")
      .add_choice("precision", &options.precision, {"auto", "no", "bf16", "fp16"},
                  "Mixed precision of the network; auto selects fp16 on a CUDA device and no mixed "
                  "precision on others. fp16 is slow on a CPU.")
      .add("num-workers", "N", &options.num_workers, "Threads that prepare batches.",
           cli::in_range(0, kMaxWorkers))
      .add("seed", "N", &options.seed, "Seed of the weights, the order of images and the crops.");
  if (!command_line.parse(arguments)) return std::nullopt;
  return options;
}

linkboy::DataLoaderOptions train_loader_options(const Options& options, const Images& images) {
  return {.batch_size = options.batch_size,
          .shuffle = true,
          // Batch norm cannot train on a last batch of a single image.
          .drop_last = images.labels.size(0) % options.batch_size == 1,
          .num_workers = options.num_workers,
          .transform = linkboy::compose({linkboy::random_crop(32, {.padding = 4}),
                                         linkboy::random_horizontal_flip(), normalise_pixels()})};
}

linkboy::DataLoaderOptions test_loader_options(const Options& options) {
  return {.batch_size = options.batch_size,
          .num_workers = options.num_workers,
          // Each image counts once, so some processes may have one batch fewer than others.
          .even_batches = false,
          .transform = normalise_pixels()};
}

std::shared_ptr<torch::optim::SGD> make_optimizer(std::vector<at::Tensor> parameters,
                                                  const Options& options) {
  return std::make_shared<torch::optim::SGD>(
      std::move(parameters), torch::optim::SGDOptions(options.lr).momentum(0.9).weight_decay(5e-4));
}

linkboy::CreateSchedulerFn cosine_by_epoch() {
  return linkboy::by_epoch(linkboy::cosine({.min_lr = 0.0}));
}

}  // namespace cifar10

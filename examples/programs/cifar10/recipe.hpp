#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <linkboy/accelerator.hpp>
#include <linkboy/cli.hpp>
#include <linkboy/data/data_loader.hpp>
#include <linkboy/scheduler.hpp>
#include <linkboy/vision/cifar.hpp>

/// The code that cifar10_trainer and cifar10_engine share: everything except the loop.
namespace cifar10 {

inline constexpr int64_t kNumClasses = 10;

using Images = linkboy::vision::LabelledImages;

/// Reads the images of one split from `folder`, which `--data` names.
/// @throws linkboy::FileError in the cases of linkboy::vision::read_cifar10. The message also says
///         how to get the data.
Images read_images(const std::filesystem::path& folder, linkboy::vision::Split split);

/// The options of the command line, with the defaults of Colossal-AI's tutorial.
struct Options {
  std::filesystem::path data = "cifar-10-batches-bin";
  int64_t depth = 34;
  int64_t epochs = 200;
  std::optional<int64_t> max_updates{};
  int64_t batch_size = 128;
  double lr = 0.1;
  int64_t test_interval = 1;
  std::string device = "auto";
  std::string precision = "auto";
  int64_t num_workers = 1;
  uint64_t seed = 0;

  linkboy::AcceleratorOptions accelerator() const;
};

/// Parses the command line.
/// @return The options; nullopt if `--help` was given and the help was printed.
/// @throws linkboy::cli::UsageError in the cases of CommandLine::parse.
std::optional<Options> parse_options(const std::string& program, const std::string& description,
                                     const linkboy::cli::Arguments& arguments);

/// Options of the loaders. Training images are cropped, mirrored and shuffled.
linkboy::DataLoaderOptions train_loader_options(const Options& options, const Images& images);
linkboy::DataLoaderOptions test_loader_options(const Options& options);

/// Returns SGD with the tutorial's momentum and weight decay.
std::shared_ptr<torch::optim::SGD> make_optimizer(std::vector<at::Tensor> parameters,
                                                  const Options& options);

/// Returns a half-cosine from the optimizer's learning rate to 0 that is constant within each
/// epoch, like PyTorch's CosineAnnealingLR if it is stepped once per epoch.
linkboy::CreateSchedulerFn cosine_by_epoch();

}  // namespace cifar10

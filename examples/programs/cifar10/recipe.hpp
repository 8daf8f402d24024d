#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <filesystem>
#include <linkboy/accelerator.hpp>
#include <linkboy/cli.hpp>
#include <linkboy/data/data_loader.hpp>
#include <linkboy/scheduler.hpp>
#include <linkboy/vision/cifar.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

/// What cifar10_trainer and cifar10_engine have in common: all but the loop.
namespace cifar10 {

inline constexpr int64_t kNumClasses = 10;

using Images = linkboy::vision::LabelledImages;

/// The images of the folder that `--data` names.
/// @throws linkboy::FileError as linkboy::vision::read_cifar10, with where to get data.
Images read_images(const std::filesystem::path& folder, linkboy::vision::Split split);

/// The command line; the defaults are those of Colossal-AI's tutorial.
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

/// @return Nothing if the help was asked for and printed.
/// @throws linkboy::cli::UsageError as CommandLine::parse.
std::optional<Options> parse_options(const std::string& program, const std::string& description,
                                     const linkboy::cli::Arguments& arguments);

/// How the images are read; training images are cropped, mirrored and shuffled.
linkboy::DataLoaderOptions train_loader_options(const Options& options, const Images& images);
linkboy::DataLoaderOptions test_loader_options(const Options& options);

/// SGD with the tutorial's momentum and weight decay.
std::shared_ptr<torch::optim::SGD> make_optimizer(std::vector<at::Tensor> parameters,
                                                  const Options& options);

/// Half a cosine from the optimizer's learning rate to 0, the same within each epoch: PyTorch's
/// CosineAnnealingLR, stepped after each epoch.
linkboy::CreateSchedulerFn cosine_by_epoch();

}  // namespace cifar10

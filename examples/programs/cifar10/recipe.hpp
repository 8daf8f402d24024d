#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include <linkboy/cli.hpp>
#include <linkboy/data/data_loader.hpp>
#include <linkboy/vision/cifar.hpp>

/// The code that cifar10_trainer and cifar10_engine share: everything except the loop.
namespace cifar10 {

inline constexpr int64_t kNumClasses = 10;

using Images = linkboy::vision::LabelledImages;

/// Reads the images of one split from `folder`, which `--data` names.
/// @throws linkboy::FileError in the cases of linkboy::vision::read_cifar10. The message also says
///         how to get the data.
Images read_images(const std::filesystem::path& folder, linkboy::vision::Split split);

/// The options of the command line and the configuration file, with the defaults of Colossal-AI's
/// tutorial.
struct Recipe {
  std::filesystem::path data = "cifar-10-batches-bin";
  int64_t depth = 34;
  int64_t test_interval = 1;
  linkboy::cli::EngineSettings settings;
};

/// Reads the options.
/// @throws linkboy::cli::ExitStatus and linkboy::cli::UsageError in the cases of
///         linkboy::cli::engine_settings.
Recipe read_recipe(const std::string& program, const std::string& description,
                   const linkboy::cli::Arguments& arguments);

/// Adds the crops and flips of the training images to the options of a loader.
linkboy::DataLoaderOptions train_loader_options(linkboy::DataLoaderOptions options,
                                                const Images& images);

/// Scales the pixels like the tutorial.
linkboy::Transform normalise_pixels();

}  // namespace cifar10

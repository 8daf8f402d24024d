#pragma once

#include <torch/torch.h>

#include <linkboy/cli.hpp>
#include <linkboy/linkboy.hpp>

#include <algorithm>
#include <any>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

/// Declares the names that the code in the documentation uses without declaring them. Nothing is
/// defined, because the code is compiled but not linked.
namespace documentation {

namespace F = torch::nn::functional;

struct Net : torch::nn::Module {
  at::Tensor forward(const at::Tensor& images);
  torch::nn::Conv2d stem{nullptr};
  torch::nn::Linear body{nullptr};
  torch::nn::Linear head{nullptr};
};

struct LeNet : Net {};

extern std::shared_ptr<Net> net;
extern std::shared_ptr<torch::optim::AdamW> optimizer;
extern torch::nn::CrossEntropyLoss loss;
extern linkboy::Dataset train;
extern linkboy::cli::Arguments arguments;
extern linkboy::Dataset test;
extern linkboy::Dataset images;
extern linkboy::Dataset rare;
extern linkboy::Dataset night;
extern linkboy::Model model;
extern linkboy::Trainer& trainer;
extern linkboy::CallbackList callbacks;
extern linkboy::TrainOptions options;
extern linkboy::Accelerator& accelerator;
extern const linkboy::Batch& batch;
extern at::Tensor outputs;
extern at::Tensor targets;
extern std::shared_ptr<linkboy::ModelFreezer> freezer;

}  // namespace documentation

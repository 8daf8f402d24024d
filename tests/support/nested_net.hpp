#pragma once

#include <torch/torch.h>

#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/at_update.hpp"
#include "support/toy.hpp"

namespace linkboy::testing {

struct InnerBlockImpl : torch::nn::Module {
  InnerBlockImpl() {
    linear = register_module("linear", torch::nn::Linear(6, 6));
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
    dropout = register_module("dropout", torch::nn::Dropout(0.5));
  }
  torch::Tensor forward(const torch::Tensor& x) { return dropout(norm(linear(x))); }

  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
};
TORCH_MODULE(InnerBlock);

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    linear = register_module("linear", torch::nn::Linear(6, 6));
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
    inner = register_module("inner", InnerBlock());
  }
  torch::Tensor forward(const torch::Tensor& x) { return inner(norm(linear(x))); }

  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  InnerBlock inner{nullptr};
};
TORCH_MODULE(Block);

/// A network from 4 features to 3 scores with three layer groups. The middle group is nested and
/// contains batch norms. The initial weights are the same each time.
struct NestedNetImpl : torch::nn::Module {
  NestedNetImpl() {
    torch::manual_seed(3);
    input = register_module("input", torch::nn::Linear(4, 6));
    block = register_module("block", Block());
    output = register_module("output", torch::nn::Linear(6, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) { return output(block(input(x))); }

  torch::nn::Linear input{nullptr}, output{nullptr};
  Block block{nullptr};
};
TORCH_MODULE(NestedNet);

using Names = std::set<std::string>;

inline Names together(const std::vector<Names>& all) {
  Names result;
  for (const Names& names : all) result.insert(names.begin(), names.end());
  return result;
}

inline Names frozen_names(const torch::nn::Module& model) {
  Names names;
  for (const auto& item : model.named_parameters()) {
    if (!item.value().requires_grad()) names.insert(item.key());
  }
  return names;
}

inline Names modules_in_eval(const torch::nn::Module& model) {
  Names names;
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    if (!item.value()->is_training()) names.insert(item.key());
  }
  return names;
}

inline TrainOptions fine_tuning_run(int64_t num_epochs) {
  return {.train_dataset = toy_data(24), .per_device_batch_size = 6, .num_epochs = num_epochs};
}

/// Stores the learning rates of each update.
class LrTrainer : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;
  std::vector<std::vector<double>> lrs;

 protected:
  void optimizer_step() override {
    lrs.push_back(get_param_group_field(*optimizer(), ParamGroupField::lr));
    QuietTrainer::optimizer_step();
  }
};

/// Saves the training state after the update with this number.
struct SaveOnce : AtUpdate {
  SaveOnce(std::filesystem::path directory, int64_t update)
      : AtUpdate(update, [directory = std::move(directory)](Trainer& trainer) {
          trainer.save_training_state(directory);
        }) {}
};

}  // namespace linkboy::testing

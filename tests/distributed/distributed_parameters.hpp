// Nets and runs whose parameters are distributed over the ranks.

#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "distributed/parameter_shards.hpp"
#include "distributed/ranks.hpp"
#include "linkboy/memory/activation_checkpoint.hpp"
#include "support/environment_variable.hpp"

namespace linkboy::testing {

/// AdamW turns the last bits of small gradients into updates of any size. Only of two ranks, the
/// sum does not depend on their order.
inline constexpr double kTolerance = 1e-4;

/// Distributes all parameters, in units of about three layers.
inline AcceleratorOptions zero3(double bucket_cap_mb = 0.06) {
  return together({.bucket_cap_mb = bucket_cap_mb, .zero_stage = 3, .zero_whole_below = 0});
}

inline std::shared_ptr<ParameterShards> shards_of(const torch::nn::Module& module) {
  return std::dynamic_pointer_cast<ParameterShards>(
      parameter_gate::owner_of(module.parameters().at(0)));
}

struct Mlp : torch::nn::Module {
  Mlp() {
    layers = register_module(
        "layers", torch::nn::Sequential(
                      torch::nn::Linear(4, 64), torch::nn::ReLU(), torch::nn::Linear(64, 96),
                      torch::nn::LayerNorm(torch::nn::LayerNormOptions({96})), torch::nn::GELU(),
                      torch::nn::Linear(96, 64), torch::nn::ReLU(), torch::nn::Linear(64, 32)));
  }
  torch::Tensor forward(const torch::Tensor& input) { return layers->forward(input); }
  torch::nn::Sequential layers{nullptr};
};

struct Cnn : torch::nn::Module {
  Cnn() {
    layers = register_module(
        "layers", torch::nn::Sequential(
                      torch::nn::Unflatten(torch::nn::UnflattenOptions(1, {1, 2, 2})),
                      torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 32, 3).padding(1).bias(false)),
                      torch::nn::BatchNorm2d(32), torch::nn::ReLU(),
                      torch::nn::Conv2d(torch::nn::Conv2dOptions(32, 32, 3).padding(1)),
                      torch::nn::Flatten(), torch::nn::Linear(128, 32)));
  }
  torch::Tensor forward(const torch::Tensor& input) { return layers->forward(input); }
  torch::nn::Sequential layers{nullptr};
};

/// Its embedding is also its last layer, and a parameter is used without a module.
struct Tied : torch::nn::Module {
  Tied() {
    embedding = register_module("embedding", torch::nn::Embedding(12, 32));
    block = register_module("block", torch::nn::Linear(32, 32));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({32})));
    scale = register_parameter("scale", torch::ones({32}));
    head = register_module("head", torch::nn::Linear(12, 32));
  }
  torch::Tensor forward(const torch::Tensor& input) {
    const auto tokens = (input.abs() * 1000).to(torch::kLong).remainder(12);
    auto hidden = embedding->forward(tokens);
    hidden = hidden + linkboy::checkpoint(
                          [this](const torch::Tensor& x) {
                            return torch::gelu(block->forward(norm->forward(x)));
                          },
                          hidden);
    const auto logits = (hidden * scale).matmul(embedding->weight.t());
    return head->forward(logits.mean(1));
  }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::Linear block{nullptr}, head{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::Tensor scale;
};

struct Lstm : torch::nn::Module {
  Lstm() {
    lstm = register_module(
        "lstm", torch::nn::LSTM(torch::nn::LSTMOptions(1, 32).num_layers(2).batch_first(true)));
    head = register_module("head", torch::nn::Linear(32, 32));
  }
  torch::Tensor forward(const torch::Tensor& input) {
    return head->forward(std::get<0>(lstm->forward(input.unsqueeze(2))).select(1, -1));
  }
  torch::nn::LSTM lstm{nullptr};
  torch::nn::Linear head{nullptr};
};

template <class Net>
struct Training {
  explicit Training(AcceleratorOptions options, CallbackList callbacks = {})
      : net((torch::manual_seed(4), std::make_shared<Net>())),
        optimizer(std::make_shared<torch::optim::AdamW>(net->parameters(), 0.01)),
        trainer(net, torch::nn::CrossEntropyLoss(), optimizer,
                {.callbacks = std::move(callbacks),
                 .default_callbacks = {},
                 .accelerator = std::move(options)}) {}

  /// Copies of the whole parameters, which do not change any more.
  std::vector<torch::Tensor> weights() { return copies_of(net->parameters()); }

  std::shared_ptr<Net> net;
  std::shared_ptr<torch::optim::AdamW> optimizer;
  QuietTrainer trainer;
};

inline TrainOptions some_updates(int64_t updates_per_epoch = 10, int64_t num_epochs = 2) {
  TrainOptions options = run_of({.updates_per_epoch = updates_per_epoch, .num_epochs = num_epochs});
  options.train_dataloader_options.seed = 5;
  return options;
}

/// Trains without ZeRO and with distributed parameters, and compares the weights and the losses.
template <class Net = Mlp>
void expect_as_without_zero(const TrainOptions& options, AcceleratorOptions accelerator = zero3(),
                            const std::function<CallbackList()>& make_callbacks = {},
                            double tolerance = kTolerance) {
  const auto callbacks = [&] { return make_callbacks ? make_callbacks() : CallbackList(); };
  AcceleratorOptions without = accelerator;
  without.distributed.zero_stage = 0;
  without.parallel = {};
  Training<Net> plain(without, callbacks());
  plain.trainer.train(options);
  Training<Net> sharded(accelerator, callbacks());
  sharded.trainer.train(options);
  expect_close(sharded.weights(), plain.weights(), tolerance, tolerance);
  for (const std::string& name : plain.trainer.run_history().get_metric_names()) {
    const auto expected = plain.trainer.run_history().get_metric_values(name);
    const auto values = sharded.trainer.run_history().get_metric_values(name);
    ASSERT_EQ(values.size(), expected.size()) << name;
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_NEAR(values[i], expected[i], 10 * tolerance) << name;
    }
  }
  EXPECT_TRUE(same_on_all_ranks(sharded.trainer.accelerator(), sharded.weights()));
}

/// With and without the memory that the ranks of a host share.
class Zero3TestBase : public ::testing::TestWithParam<const char*> {
 protected:
  bool shares_memory() const { return *GetParam() == '1' && test_device() == "cpu"; }

 private:
  EnvironmentVariable shares_memory_{"LINKBOY_SHARED_MEMORY", GetParam()};
};

}  // namespace linkboy::testing

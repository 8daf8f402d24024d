// Which models can be compiled: each is recorded, and the calls of its program are made again,
// which has to give the bits of the recorded step.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "compile/compiled_step.hpp"
#include "linkboy/memory/activation_checkpoint.hpp"
#include "linkboy/vision/resnet.hpp"
#include "model.hpp"
#include "models.hpp"
#include "support/interpreted_steps.hpp"

namespace linkboy::testing::recorded_models_test {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

constexpr const char* kAnySize = "any size";
constexpr const char* kOneSize = "one size";

/// A module with a function as `forward`.
struct Net : nn::Module {
  Net(std::vector<std::shared_ptr<nn::Module>> parts, std::function<Tensor(const Tensor&)> of)
      : function(std::move(of)) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      register_module(std::to_string(i), std::move(parts[i]));
    }
  }
  Tensor forward(const Tensor& x) { return function(x); }
  std::function<Tensor(const Tensor&)> function;
};

/// A net of one module, which is called with one tensor.
template <class Holder>
Model net_of(Holder holder) {
  return std::make_shared<Net>(std::vector<std::shared_ptr<nn::Module>>{holder.ptr()},
                               [holder](const Tensor& x) mutable { return holder->forward(x); });
}

template <class Holder, class Function>
Model net_of(Holder holder, const Function& function) {
  return std::make_shared<Net>(
      std::vector<std::shared_ptr<nn::Module>>{holder.ptr()},
      [holder, function](const Tensor& x) mutable { return function(holder, x); });
}

using MakeInput = std::function<Tensor(int64_t)>;

/// Random numbers of this shape for each sample.
MakeInput numbers(std::vector<int64_t> shape) {
  return [shape = std::move(shape)](int64_t num_samples) {
    std::vector<int64_t> sizes{num_samples};
    sizes.insert(sizes.end(), shape.begin(), shape.end());
    return torch::randn(sizes);
  };
}

MakeInput tokens(int64_t length) {
  return [length](int64_t num_samples) { return torch::randint(16, {num_samples, length}); };
}

/// Returns what can be done with a training step: kAnySize, kOneSize, or why it is refused.
std::string result_of(Model model, const Batch& batch) {
  model.train();
  NamedTensors state;
  std::vector<Tensor> trained;
  for (auto& named : model.named_tensors()) {
    if (named.second.requires_grad()) trained.push_back(named.second);
    state.push_back(std::move(named));
  }
  const StepWork work{.run = [&](const Batch& of) -> StepOutput {
    const Tensor outputs = model(of.input());
    const Tensor loss = outputs.is_complex() ? outputs.abs().mean() : outputs.pow(2).mean();
    return {.loss = loss, .model_outputs = outputs, .batch_size = of.size()};
  }};
  try {
    RecordedStep step = record_until_settled([&] {
      RecordedStep each = record_step(work, state, trained, batch);
      if (!each.recording.problems.empty()) throw CompileError(each.recording.problems.front());
      return each;
    });
    Program program = Program::of(step.recording, batch, [&](const Batch& other) {
      return record_step(work, state, trained, other).recording;
    });
    const bool has_any_size = program.has_any_size();
    const auto package = std::make_shared<InterpretedPackage>(program);
    CompiledStep(std::move(program), package, std::move(step)).check(batch, 1e-30);
    return has_any_size ? kAnySize : kOneSize;
  } catch (const CompileError& error) {
    return error.what();
  }
}

TEST(RecordedModelsTest, EachModelIsCompiledOrRefusedWithTheRightWords) {
  struct Case {
    std::string name;
    Model model;
    MakeInput input;
    std::string expected = kAnySize;
  };
  const vision::ResNetOptions small_images{.num_classes = 4, .has_small_stem = true};
  const auto first_of_tuple = [](auto& rnn, const Tensor& x) {
    return std::get<0>(rnn->forward(x));
  };
  torch::manual_seed(2);
  const std::vector<Case> cases = {
      {"fashion_mnist mlp", fashion_mnist::make_model("mlp"), numbers({1, 28, 28})},
      {"fashion_mnist cnn", fashion_mnist::make_model("cnn"), numbers({1, 28, 28})},
      {"fashion_mnist resnet18", fashion_mnist::make_model("resnet18"), numbers({1, 28, 28})},
      {"byte_gpt", byte_gpt::Gpt(byte_gpt::GptOptions{.length = 8, .layers = 2, .width = 16}),
       tokens(8)},
      {"resnet18", vision::resnet18(small_images), numbers({3, 16, 16})},
      {"resnet50", vision::resnet50(small_images), numbers({3, 16, 16})},
      {"conv1d", net_of(nn::Conv1d(nn::Conv1dOptions(3, 4, 3).stride(2))), numbers({3, 9})},
      {"conv3d", net_of(nn::Conv3d(nn::Conv3dOptions(2, 3, 2))), numbers({2, 4, 4, 4})},
      {"transposed convolution",
       net_of(nn::ConvTranspose2d(nn::ConvTranspose2dOptions(3, 2, 3).stride(2))),
       numbers({3, 4, 4})},
      {"depthwise convolution", net_of(nn::Conv2d(nn::Conv2dOptions(4, 4, 3).groups(4))),
       numbers({4, 5, 5})},
      {"norms",
       net_of(nn::Sequential(nn::Conv2d(4, 4, 1), nn::GroupNorm(2, 4), nn::InstanceNorm2d(4),
                             nn::LayerNorm(nn::LayerNormOptions({5, 5})),
                             nn::LocalResponseNorm(2))),
       numbers({4, 5, 5})},
      {"pools and resizes",
       net_of(nn::Sequential(nn::Conv2d(4, 4, 1), nn::MaxPool2d(2), nn::AvgPool2d(2),
                             nn::Upsample(nn::UpsampleOptions()
                                              .scale_factor({{2.0, 2.0}})
                                              .mode(torch::kBilinear)
                                              .align_corners(false)),
                             nn::PixelShuffle(2), nn::AdaptiveAvgPool2d(1))),
       numbers({4, 8, 8})},
      {"activations",
       net_of(nn::Sequential(nn::Linear(4, 8), nn::GELU(), nn::SiLU(), nn::ELU(), nn::PReLU(),
                             nn::LeakyReLU(), nn::Softplus(), nn::GLU(), nn::Tanh(),
                             nn::LogSoftmax(1))),
       numbers({4})},
      {"dropouts",
       net_of(nn::Sequential(nn::Conv2d(2, 3, 1), nn::Dropout(0.3), nn::Dropout2d(0.3),
                             nn::AlphaDropout(0.1))),
       numbers({2, 3, 3})},
      {"bidirectional gru",
       net_of(nn::GRU(nn::GRUOptions(3, 4).batch_first(true).bidirectional(true)), first_of_tuple),
       numbers({5, 3})},
      {"lstm cell",
       net_of(nn::LSTMCell(3, 4),
              [](auto& cell, const Tensor& x) { return std::get<0>(cell->forward(x)); }),
       numbers({3})},
      {"embedding", net_of(nn::Embedding(16, 4)), tokens(6)},
      {"bag of embeddings",
       net_of(nn::EmbeddingBag(nn::EmbeddingBagOptions(16, 4).mode(torch::kMean))), tokens(6)},
      {"fourier transform",
       net_of(nn::Linear(8, 8),
              [](auto& linear, const Tensor& x) { return torch::fft_rfft(linear(x)); }),
       numbers({8})},
      {"recomputed activations",
       net_of(nn::Linear(4, 4),
              [](auto& linear, const Tensor& x) {
                return checkpoint([&](const Tensor& in) { return linear(in).tanh(); },
                                  x.clone().requires_grad_());
              }),
       numbers({4})},
      {"mean over pairs",
       net_of(nn::Linear(4, 4),
              [](auto& linear, const Tensor& x) {
                const Tensor y = linear(x);
                return y.mm(y.t()) / (y.size(0) * y.size(0));
              }),
       numbers({4}), kOneSize},
      {"transformer encoder",
       net_of(nn::TransformerEncoder(nn::TransformerEncoderOptions(
                  nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16), 2)),
              [](auto& encoder, const Tensor& x) { return encoder->forward(x.transpose(0, 1)); }),
       numbers({5, 8}), "aten::equal lets the values of a tensor decide"},
      {"lstm",
       net_of(nn::LSTM(nn::LSTMOptions(3, 4).batch_first(true).num_layers(2)), first_of_tuple),
       numbers({5, 3}), "aten::mkldnn_rnn_layer_backward needs a workspace"},
      {"recomputed dropout",
       net_of(nn::Linear(4, 4),
              [](auto& linear, const Tensor& x) {
                return checkpoint(
                    [&](const Tensor& in) { return torch::dropout(linear(in), 0.5, true); },
                    x.clone().requires_grad_());
              }),
       numbers({4}), "after the step has set the state of the generator"},
      {"sparse gradients", net_of(nn::Embedding(nn::EmbeddingOptions(16, 4).sparse(true))),
       tokens(6), "Sparse"},
      {"mixture of experts",
       net_of(nn::Linear(4, 4),
              [](auto& linear, const Tensor& x) { return linear(x.index({x.select(1, 0) > 0})); }),
       numbers({4}), "lets the values of a tensor decide"},
      {"number of a tensor",
       net_of(nn::Linear(4, 4),
              [](auto& linear, const Tensor& x) {
                return linear(x) / x.abs().max().template item<double>();
              }),
       numbers({4}), "aten::_local_scalar_dense lets the values of a tensor decide"},
      {"noise of the host",
       net_of(nn::Linear(4, 4),
              [](auto& linear, const Tensor& x) { return linear(x) * (1.0 + std::rand() % 1000); }),
       numbers({4}), "it does other work each time"},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.name);
    EXPECT_THAT(result_of(each.model, {{"input", each.input(6)}}),
                ::testing::HasSubstr(each.expected));
  }
}

}  // namespace
}  // namespace linkboy::testing::recorded_models_test

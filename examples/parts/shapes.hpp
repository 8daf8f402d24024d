#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include <cstdint>

#include <linkboy/data/batch.hpp>

/// Generated images, which need no download, and a network for them. Several examples use both.
namespace shapes {

inline constexpr int64_t kNumClasses = 4;

/// Draws a disc, square, cross or ring in each image, with a random bright colour, size and
/// position, on a dark and noisy background. The same seed produces the same images.
/// @return The images [count, 3, side, side], uint8, and the classes [count], int64.
inline linkboy::Batch make_shapes(int64_t count, int64_t side, uint64_t seed) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto uniform = [&generator](at::IntArrayRef sizes, double low, double high) {
    return at::rand(sizes, generator) * (high - low) + low;
  };
  // Distances from the centre of the shape; the image extends from -1 to 1.
  const at::Tensor grid = at::linspace(-1, 1, side);
  const at::Tensor x = (grid.view({1, 1, side}) - uniform({count, 1, 1}, -0.3, 0.3)).abs();
  const at::Tensor y = (grid.view({1, side, 1}) - uniform({count, 1, 1}, -0.3, 0.3)).abs();
  const at::Tensor distance = at::sqrt(x * x + y * y);
  const at::Tensor radius = uniform({count, 1, 1}, 0.4, 0.65);

  const at::Tensor disc = distance < radius;
  const at::Tensor square = at::maximum(x, y) < 0.9 * radius;
  const at::Tensor cross = (at::maximum(x, y) < radius) & (at::minimum(x, y) < 0.35 * radius);
  const at::Tensor ring = disc & (distance > 0.5 * radius);
  const at::Tensor classes = at::randint(kNumClasses, {count}, generator, at::kLong);
  const at::Tensor is_shape =
      at::stack({disc, square, cross, ring}, 1)
          .gather(1, classes.view({count, 1, 1, 1}).expand({count, 1, side, side}));

  const at::Tensor image = at::where(is_shape, uniform({count, 3, 1, 1}, 0.4, 1.0),
                                     uniform({count, 3, 1, 1}, 0.0, 0.5)) +
                           0.15 * at::randn({count, 3, side, side}, generator);
  return {image.clamp(0, 1).mul(255).to(at::kByte), classes};
}

/// Returns a small CNN that maps images [N, 3, H, W] of any size from 8 x 8 to scores
/// [N, kNumClasses].
inline torch::nn::Sequential make_cnn() {
  namespace nn = torch::nn;
  nn::Sequential layers;
  int64_t in = 3;
  for (const int64_t out : {16, 32, 64}) {
    layers->push_back(nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1).bias(false)));
    layers->push_back(nn::BatchNorm2d(out));
    layers->push_back(nn::ReLU());
    if (out != 64) layers->push_back(nn::MaxPool2d(2));
    in = out;
  }
  layers->push_back(nn::AdaptiveAvgPool2d(1));
  layers->push_back(nn::Flatten());
  layers->push_back(nn::Linear(in, kNumClasses));
  return layers;
}

}  // namespace shapes

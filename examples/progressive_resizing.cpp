// Progressive resizing: the first epochs train on small images, which is cheap, and the last epochs
// on images of full size. The network accepts any size because it ends with a global average pool.

#include <torch/torch.h>

#include <array>
#include <cstdio>

#include <linkboy/data/image_transforms.hpp>
#include <linkboy/metrics/classification.hpp>
#include <linkboy/schedulers/curves.hpp>
#include <linkboy/trainer.hpp>

#include "parts/shapes.hpp"

namespace {

constexpr int64_t kFullSize = 28;

/// The size of the images in each epoch.
constexpr std::array<int64_t, 6> kSizes = {12, 12, 20, 20, 28, 28};

/// Resizes a batch to the size of its epoch. The context contains the epoch, regardless of the
/// thread that runs the transform.
linkboy::Batch resize(linkboy::Batch batch, const linkboy::TransformContext& context) {
  namespace F = torch::nn::functional;
  const int64_t size = kSizes.at(context.epoch - 1);
  if (size == kFullSize) return batch;
  const auto options = F::InterpolateFuncOptions()
                           .size(std::vector<int64_t>{size, size})
                           .mode(torch::kBilinear)
                           .align_corners(false)
                           .antialias(true);
  return {F::interpolate(batch.input(), options), batch.target()};
}

/// Returns the number of pixels in the run, divided by that of a run whose epochs are all at full
/// size.
double part_of_pixels() {
  double pixels = 0.0;
  for (const int64_t size : kSizes) pixels += static_cast<double>(size * size);
  return pixels / static_cast<double>(kFullSize * kFullSize * kSizes.size());
}

}  // namespace

int main() {
  torch::manual_seed(1);
  const linkboy::TensorDataset train(shapes::make_shapes(1024, kFullSize, /*seed=*/1).tensors());
  const linkboy::TensorDataset test(shapes::make_shapes(512, kFullSize, /*seed=*/2).tensors());

  auto net = shapes::make_cnn();
  auto optimizer = std::make_shared<torch::optim::SGD>(net->parameters(),
                                                       torch::optim::SGDOptions(0.1).momentum(0.9));
  linkboy::Trainer trainer(
      net, torch::nn::CrossEntropyLoss(), optimizer,
      {.metrics = {{"accuracy", linkboy::accuracy({.num_classes = shapes::kNumClasses})}}});

  // All sizes belong to one run, so that the schedule covers them all.
  const linkboy::Transform normalise = linkboy::normalise({0.4}, {0.25});
  trainer.train({.train_dataset = train,
                 .eval_dataset = test,
                 .per_device_batch_size = 32,
                 .train_dataloader_options = {.transform = linkboy::compose({normalise, resize})},
                 .eval_dataloader_options = {.transform = normalise},
                 .num_epochs = kSizes.size(),
                 .create_scheduler_fn = linkboy::cosine()});

  std::printf("accuracy: %.3f at full size, trained on %.0f %% of the pixels\n",
              trainer.run_history().get_latest_metric("eval_accuracy"), 100.0 * part_of_pixels());
}

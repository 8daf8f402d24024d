// Fine-tunes a ResNet-18 with weights from torchvision. First only a new head is trained, then all
// layers, with a smaller learning rate for the backbone than for the head.

#include <torch/torch.h>

#include <cstdio>
#include <filesystem>
#include <optional>

#include <linkboy/callbacks/freeze_layers.hpp>
#include <linkboy/checkpoint/checkpoint.hpp>
#include <linkboy/cli.hpp>
#include <linkboy/data/image_transforms.hpp>
#include <linkboy/metrics/classification.hpp>
#include <linkboy/schedulers/curves.hpp>
#include <linkboy/trainer.hpp>
#include <linkboy/vision/resnet.hpp>
#include "parts/shapes.hpp"

/// Returns images labelled with their strongest colour channel. This task is so easy that even a
/// backbone with random weights learns it.
linkboy::TensorDataset make_images(int64_t count, uint64_t seed) {
  const at::Tensor images = shapes::make_shapes(count, /*side=*/32, seed).input();
  return {images, images.to(at::kFloat).mean({2, 3}).argmax(1)};
}

/// Loads all weights except those of the head, whose classes differ, and the batch-norm counters,
/// which older files do not have.
void load_backbone(linkboy::Model model, const std::filesystem::path& path) {
  linkboy::StateDict state = linkboy::read_checkpoint(path);
  for (const auto& [name, value] : model.state_dict().entries()) {
    if (name.starts_with("fc.") || name.ends_with(".num_batches_tracked")) state.set(name, value);
  }
  model.load_state_dict(state);
}

void fine_tune(linkboy::vision::ResNet net) {
  // Freezes all layer groups except the last one, fc. The batch norms still update their running
  // statistics, because they stay in training mode.
  auto freezer = std::make_shared<linkboy::ModelFreezer>(
      net, linkboy::ModelFreezerOptions{.freeze_batch_norms = true});
  freezer->freeze();
  auto optimizer = std::make_shared<torch::optim::AdamW>(freezer->get_trainable_parameters(), 3e-3);
  auto unfreeze = linkboy::freeze_layers(
      freezer, {.unfreeze_at = {{.epoch = 2, .from_index = -2, .to_index = 0, .lr = 3e-4}}});
  // The mean and standard deviation of ImageNet, on which torchvision trains the backbone.
  const linkboy::DataLoaderOptions loading{
      .transform = linkboy::normalise({0.485, 0.456, 0.406}, {0.229, 0.224, 0.225})};

  linkboy::Trainer trainer(
      net, torch::nn::CrossEntropyLoss(), optimizer,
      {.metrics = {{"accuracy", linkboy::accuracy({.num_classes = 3})}}, .callbacks = {unfreeze}});
  trainer.train({.train_dataset = make_images(256, /*seed=*/1),
                 .eval_dataset = make_images(160, /*seed=*/2),
                 .per_device_batch_size = 16,
                 .train_dataloader_options = loading,
                 .eval_dataloader_options = loading,
                 .num_epochs = 4,
                 .create_scheduler_fn = linkboy::cosine()});
  const std::vector<double> accuracies = trainer.run_history().get_metric_values("eval_accuracy");
  std::printf("accuracy: %.3f with the new head alone, %.3f with all layers\n", accuracies.front(),
              accuracies.back());
}

int main(int argc, char** argv) {
  return linkboy::cli::run_main(argc, argv, [](const linkboy::cli::Arguments& arguments) {
    std::optional<std::filesystem::path> weights;
    linkboy::cli::CommandLine command_line("fine_tuning", "Fine-tunes a ResNet-18 on 3 classes.");
    command_line.add_group("Model").add(
        "weights", "FILE", &weights,
        "State dict of torchvision's resnet18, .pt or .safetensors. Default: random weights.");
    if (!command_line.parse(arguments)) return;
    torch::manual_seed(1);
    auto net = linkboy::vision::resnet18({.num_classes = 3});
    if (weights) load_backbone(net, *weights);
    fine_tune(net);
  });
}

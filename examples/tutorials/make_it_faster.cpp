// Times two ways to load the same samples. See the tutorial "Make it faster, and prove it".

#include <torch/torch.h>

#include <algorithm>
#include <cstdio>

#include <linkboy/callbacks/performance_monitor.hpp>
#include <linkboy/cli.hpp>
#include <linkboy/data/image_transforms.hpp>
#include <linkboy/trainer.hpp>

constexpr int64_t kNumImages = 2000;

at::Tensor make_images() { return torch::randint(256, {kNumImages, 3, 32, 32}, torch::kByte); }

/// Reads one sample at a time and converts it to floats, as many hand-written programs do.
class SlowImages : public torch::data::Dataset<SlowImages> {
 public:
  explicit SlowImages(at::Tensor images) : images_(std::move(images)) {}
  torch::data::Example<> get(std::size_t i) override {
    const at::Tensor image = images_[static_cast<int64_t>(i)].to(torch::kFloat) / 255.0;
    return {(image - 0.5) / 0.25, torch::tensor(static_cast<int64_t>(i) % 2)};
  }
  std::optional<std::size_t> size() const override { return images_.size(0); }

 private:
  at::Tensor images_;
};

struct Timing {
  double samples_per_second, data_share, loss;
};

Timing time_run(linkboy::Dataset dataset, linkboy::DataLoaderOptions loading) {
  torch::manual_seed(0);
  torch::nn::Sequential net(torch::nn::Flatten(), torch::nn::Linear(3072, 32), torch::nn::ReLU(),
                            torch::nn::Linear(32, 2));
  auto optimizer = std::make_shared<torch::optim::SGD>(net->parameters(), 0.01);
  auto monitor = linkboy::performance_monitor();
  linkboy::Trainer trainer(net, torch::nn::CrossEntropyLoss(), optimizer,
                           {.callbacks = {monitor}, .default_callbacks = {}});
  trainer.train({.train_dataset = std::move(dataset),
                 .per_device_batch_size = 50,
                 .train_dataloader_options = std::move(loading),
                 .num_epochs = 2});
  const linkboy::TrainPerformance last = *monitor->last_epoch();  // the first epoch is a warm-up
  return {last.samples_per_second(), last.data.mean() / last.step_time(),
          trainer.run_history().get_latest_metric("train_loss_epoch")};
}

void run() {
  torch::manual_seed(1);
  const at::Tensor images = make_images();
  const linkboy::TensorDataset bytes(images, torch::arange(kNumImages) % 2);
  std::vector<double> ratios;
  Timing slow{}, fast{};
  for (int round = 0; round < 5; ++round) {
    slow = time_run(SlowImages(images), {});
    fast = time_run(bytes, {.transform = linkboy::normalise({0.5}, {0.25})});
    ratios.push_back(fast.samples_per_second / slow.samples_per_second);
  }
  std::ranges::sort(ratios);
  std::printf("sample by sample: %.0f samples/s, fraction of the time spent loading %.2f\n",
              slow.samples_per_second, slow.data_share);
  std::printf("batch by batch: %.0f samples/s, fraction of the time spent loading %.2f\n",
              fast.samples_per_second, fast.data_share);
  std::printf("ratio of 5 pairs: median %.1f, from %.1f to %.1f\n", ratios[2], ratios[0],
              ratios[4]);
  std::printf("training loss: %.3f and %.3f\n", slow.loss, fast.loss);
}

int main(int argc, char** argv) {
  return linkboy::cli::run_main(argc, argv, [](const linkboy::cli::Arguments&) { run(); });
}

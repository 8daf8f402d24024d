// Measures the samples per second of a loader that augments uint8 images of CIFAR-10's size in
// memory: a random crop (32, padding 4), a flip and a normalisation.
//
//     linkboy_image_transforms [num_workers, default 2] [--seconds 2]
//
// For each line "go" on standard input, the program runs complete epochs for at least --seconds,
// and prints a line of JSON. "quit" ends it. benchmarks/peers/image_transforms.py has the same
// protocol, so that a driver can run the two in turns.

#include <ATen/ops/randint.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>

#include "linkboy/data/data_loader.hpp"
#include "linkboy/data/image_transforms.hpp"

namespace linkboy::benchmarks {
namespace {

constexpr int64_t kNumSamples = 50'000;
constexpr int64_t kBatchSize = 128;

int64_t run_epoch(DataLoader& loader, int64_t epoch) {
  int64_t num_samples = 0;
  auto batches = loader.iterate(epoch);
  while (const auto batch = batches->next()) num_samples += batch->size();
  return num_samples;
}

int run(int64_t num_workers, double seconds) {
  const auto images = at::randint(256, {kNumSamples, 3, 32, 32}, at::kByte);
  const auto labels = at::randint(10, {kNumSamples}, at::kLong);
  auto loader = make_data_loader(TensorDataset(images, labels),
                                 {.batch_size = kBatchSize,
                                  .shuffle = true,
                                  .num_workers = num_workers,
                                  .seed = 0,
                                  .transform = compose({
                                      random_crop(32, {.padding = 4}),
                                      random_horizontal_flip(),
                                      normalise({0.4914, 0.4822, 0.4465}, {0.2470, 0.2435, 0.2616}),
                                  })});
  int64_t epoch = 1;
  run_epoch(*loader, epoch);  // a warm-up, which is not measured
  for (std::string line; std::getline(std::cin, line) && line != "quit";) {
    if (line != "go") continue;
    const auto start = std::chrono::steady_clock::now();
    int64_t num_samples = 0;
    double taken = 0.0;
    do {
      num_samples += run_epoch(*loader, ++epoch);
      taken = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    } while (taken < seconds);
    std::printf("{\"samples_per_second\": %.1f}\n", static_cast<double>(num_samples) / taken);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace linkboy::benchmarks

int main(int argc, char** argv) {
  int64_t num_workers = 2;
  double seconds = 2.0;
  try {
    for (int i = 1; i < argc; ++i) {
      if (std::strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) {
        seconds = std::stod(argv[++i]);
      } else {
        num_workers = std::stoll(argv[i]);
      }
    }
    return linkboy::benchmarks::run(num_workers, seconds);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\nusage: %s [num_workers] [--seconds S]\n", error.what(), argv[0]);
    return 2;
  }
}

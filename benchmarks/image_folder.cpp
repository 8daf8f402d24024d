// Measures the images per second of a loader over JPEG files. It decodes them, resizes the shorter
// side to 256, crops 224 x 224 from the centre (with --train: a random resized crop and a flip),
// and normalises.
//
//     linkboy_image_folder FOLDER [num_workers, default 2] [--train] [--seconds 3]
//
// FOLDER contains a folder per class; `peers/image_folder.py FOLDER --make` writes one. For each
// line "go" on standard input, the program runs complete epochs for at least --seconds, and prints
// a line of JSON. "quit" ends it. benchmarks/peers/image_folder.py has the same protocol, so that a
// driver can run the two in turns.

#include "linkboy/vision/image_folder.hpp"

#include <chrono>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>

#include "linkboy/data/data_loader.hpp"
#include "linkboy/data/image_transforms.hpp"

namespace linkboy::benchmarks {
namespace {

constexpr int64_t kBatchSize = 32;

struct Arguments {
  std::string folder;
  int64_t num_workers = 2;
  bool train = false;
  double seconds = 3.0;
};

int64_t run_epoch(DataLoader& loader, int64_t epoch) {
  int64_t num_samples = 0;
  auto batches = loader.iterate(epoch);
  while (const auto batch = batches->next()) num_samples += batch->size();
  return num_samples;
}

int run(const Arguments& arguments) {
  vision::ImageFolderOptions options{.resize = 256, .center_crop = 224};
  std::vector<Transform> transforms;
  if (arguments.train) {
    options = {.random_resized_crop = vision::RandomResizedCrop{.size = 224}};
    transforms.push_back(random_horizontal_flip());
  }
  transforms.push_back(normalise({0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}));
  const auto folder = std::make_shared<vision::ImageFolder>(arguments.folder, options);
  auto loader = make_data_loader(folder, {.batch_size = kBatchSize,
                                          .shuffle = true,
                                          .num_workers = arguments.num_workers,
                                          .seed = 0,
                                          .transform = compose(transforms)});
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
    } while (taken < arguments.seconds);
    std::printf("{\"samples_per_second\": %.1f}\n", static_cast<double>(num_samples) / taken);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace linkboy::benchmarks

int main(int argc, char** argv) {
  linkboy::benchmarks::Arguments arguments;
  try {
    for (int i = 1; i < argc; ++i) {
      const std::string_view argument = argv[i];
      if (argument == "--train") {
        arguments.train = true;
      } else if (argument == "--seconds" && i + 1 < argc) {
        arguments.seconds = std::stod(argv[++i]);
      } else if (arguments.folder.empty()) {
        arguments.folder = argument;
      } else {
        arguments.num_workers = std::stoll(argv[i]);
      }
    }
    return linkboy::benchmarks::run(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\nusage: %s FOLDER [num_workers] [--train] [--seconds S]\n",
                 error.what(), argv[0]);
    return 2;
  }
}

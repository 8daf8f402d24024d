// linkboy's side of compare_ddp.py: one rank. peers/ddp.py is Python's side.
//
//     linkboy_ddp WORK --steps N
//
// WORK is mlp (784-128-64-10) or wide_mlp (784-1024-1024-10). The program creates its data, then
// answers each line of its standard input with a line of JSON: the seconds that N steps took, and
// the loss after them.
//
//   run       runs an epoch of Trainer together with the other ranks
//   view      the same, with `gradient_as_bucket_view`
//   sharded   the same, with `zero_stage` 3, so that each rank has half of each parameter
//   alone     the same, with a separate model and without communication
//   reduce    N times: only all-reduces, with the sizes of the gradient buckets
//   quit      ends the program
//
// Trainer uses its default callbacks; standard output and standard error are redirected to
// /dev/null. Batches have 64 samples on each rank.

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/loss.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>
#include <torch/version.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "linkboy/accelerator.hpp"
#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"
#include "mlp.hpp"

namespace linkboy::benchmarks {
namespace {

constexpr int64_t kNumFeatures = 784;
constexpr int64_t kNumClasses = 10;
constexpr int64_t kBatchSize = 64;
constexpr int64_t kNumCheckedSamples = 256;
constexpr uint64_t kSeed = 0;

struct Samples {
  at::Tensor input;
  at::Tensor target;

  TensorDataset first(int64_t count) const {
    return TensorDataset(input.slice(0, 0, count), target.slice(0, 0, count));
  }
};

/// Creates the images of peers/models.py: noise plus one pattern per class.
Samples make_samples(int64_t count) {
  constexpr double kStrength = 0.1;
  torch::manual_seed(kSeed);
  at::Tensor input = at::randn({count, kNumFeatures});
  const at::Tensor patterns = at::randn({kNumClasses, kNumFeatures});
  const int64_t whole = count / kNumClasses * kNumClasses;
  input.slice(0, 0, whole).view({-1, kNumClasses, kNumFeatures}).add_(patterns, kStrength);
  return {std::move(input), at::arange(count).remainder(kNumClasses)};
}

/// A Trainer with a separate model.
class Side {
 public:
  Side(const std::string& work, TensorDataset data, AcceleratorOptions options)
      : data_(std::move(data)),
        net_(make_net(work)),
        trainer_(net_, torch::nn::CrossEntropyLoss(),
                 std::make_shared<torch::optim::AdamW>(net_->parameters(),
                                                       torch::optim::AdamWOptions(1e-3)),
                 {.accelerator = std::move(options)}) {}

  void run() {
    trainer_.train({.train_dataset = data_,
                    .per_device_batch_size = kBatchSize,
                    .num_epochs = 1,
                    .reset_run_history = false});
  }

  double loss(const Samples& samples) const {
    const at::NoGradGuard no_grad;
    const at::Tensor output = net_->forward(samples.input.slice(0, 0, kNumCheckedSamples));
    const at::Tensor target = samples.target.slice(0, 0, kNumCheckedSamples);
    return at::cross_entropy_loss(output, target).item<double>();
  }

  const Mlp& net() const { return *net_; }

 private:
  static std::shared_ptr<Mlp> make_net(const std::string& work) {
    torch::manual_seed(kSeed);
    return work == "mlp" ? std::make_shared<Mlp>(128, 64) : std::make_shared<Mlp>(1024, 1024);
  }

  Dataset data_;
  std::shared_ptr<Mlp> net_;
  Trainer trainer_;
};

/// Creates tensors with the sizes of the gradient buckets. Starting from the last parameter, the
/// first bucket has at least 1 MiB, and each of the others except the last has at least 25 MiB.
std::vector<at::Tensor> make_buckets(const Mlp& net) {
  const auto parameters = net.parameters();
  std::vector<at::Tensor> buckets;
  int64_t size = 0;
  int64_t limit = 1 << 18;
  for (auto parameter = parameters.rbegin(); parameter != parameters.rend(); ++parameter) {
    size += parameter->numel();
    if (size < limit && parameter + 1 != parameters.rend()) continue;
    buckets.push_back(at::zeros({size}));
    size = 0;
    limit = 25 << 18;
  }
  return buckets;
}

/// Returns the original standard output, and redirects standard output and standard error to
/// /dev/null.
std::FILE* take_standard_output() {
  std::FILE* replies = fdopen(dup(STDOUT_FILENO), "w");
  LINKBOY_CHECK(replies && std::freopen("/dev/null", "w", stdout), "cannot redirect the output");
  LINKBOY_CHECK(std::freopen("/dev/null", "w", stderr), "cannot redirect the errors");
  return replies;
}

template <class... Values>
void reply(std::FILE* replies, const char* format, Values... values) {
  std::fprintf(replies, format, values...);
  std::fflush(replies);
}

void serve(const std::string& work, int64_t num_steps) {
  std::FILE* replies = take_standard_output();
  try {
    const Accelerator accelerator({.device = "cpu"});
    const Samples samples = make_samples(num_steps * kBatchSize * accelerator.num_processes());
    const TensorDataset all = samples.first(samples.input.size(0));
    // Sets the members one by one, because GCC 12 wrongly warns that the members of a temporary are
    // uninitialised.
    AcceleratorOptions options;
    options.device = "cpu";
    Side together(work, all, options);
    options.distributed.gradient_as_bucket_view = true;
    Side view(work, all, options);
    options.distributed.zero_stage = 3;
    Side sharded(work, all, options);
    options.distributed.zero_stage = 0;
    options.process_group = std::make_shared<ProcessGroup>();
    Side alone(work, samples.first(num_steps * kBatchSize), options);
    const auto buckets = make_buckets(alone.net());
    reply(replies, "{\"compiler\": \"%s\", \"torch\": \"%s\"}\n", __VERSION__, TORCH_VERSION);
    for (std::string word; std::getline(std::cin, word) && word != "quit";) {
      Side& side = word == "alone"     ? alone
                   : word == "view"    ? view
                   : word == "sharded" ? sharded
                                       : together;
      const auto start = std::chrono::steady_clock::now();
      if (word != "reduce") side.run();
      for (int64_t i = 0; word == "reduce" && i < num_steps; ++i) {
        for (const auto& bucket : buckets) accelerator.process_group().all_reduce(bucket);
      }
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
      reply(replies, "{\"seconds\": %.6f, \"steps\": %lld, \"loss\": %.9g}\n", time.count(),
            static_cast<long long>(num_steps), side.loss(samples));
    }
  } catch (const std::exception& error) {
    // Removes quotes and backslashes, which would end or change the JSON string.
    std::string message = error.what();
    message = message.substr(0, message.find('\n'));
    std::erase_if(message, [](char c) { return c == '"' || c == '\\'; });
    reply(replies, "{\"error\": \"%s\"}\n", message.c_str());
  }
}

}  // namespace
}  // namespace linkboy::benchmarks

int main(int argc, char** argv) {
  const std::string work = argc == 4 ? argv[1] : "";
  const int64_t steps = argc == 4 && std::string(argv[2]) == "--steps" ? std::atoll(argv[3]) : 0;
  if ((work != "mlp" && work != "wide_mlp") || steps < 1) {
    std::fprintf(stderr, "usage: linkboy_ddp mlp|wide_mlp --steps N\n");
    return 2;
  }
  at::set_num_threads(1);
  linkboy::benchmarks::serve(work, steps);
}

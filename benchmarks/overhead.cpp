// Measures the overhead of Trainer: its steps per second compared with those of hand-written loops.
//
// All sides train the MLP 784-128-64-10 with AdamW on one thread, with batches of 64 from 60,000
// samples in memory. Each step gathers the batch and runs forward, cross entropy, backward, update
// and zero_grad.
//
//   Trainer     linkboy::Trainer with its default callbacks and its default loader (shuffled, no
//               workers). It also tracks the loss, stops on NaN and prints progress, which is
//               redirected to /dev/null. A round is one call of `train`, including its set-up.
//   bar, no bar, low overhead
//               Trainer with a drawn progress bar, without progress output, and with
//               low_overhead_callbacks().
//   loop        A minimal hand-written loop: the same shuffle, one index_select per tensor, and the
//               same fused update through linkboy::Accelerator. It does not read the loss. The
//               final weights must be bit-identical to those of Trainer.
//   loop again  The same loop a second time. Its ratio to `loop` shows the accuracy of the others.
//   LibTorch    A loop without linkboy: torch::data's loader over a dataset of single samples with
//               RandomSampler and Stack, and torch::optim::AdamW's own step.
//
// The sides take turns in one process with short rounds, and each round begins with a different
// side. Ratios are computed within a round.

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/loss.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <iterator>
#include <memory>
#include <vector>

#include "libtorch_loader.hpp"
#include "linkboy/callbacks/progress_bar.hpp"
#include "linkboy/trainer.hpp"
#include "median.hpp"
#include "mlp.hpp"

namespace linkboy::benchmarks {
namespace {

constexpr int64_t kNumSamples = 60'000;
constexpr int64_t kBatchSize = 64;
constexpr uint64_t kSeed = 0;

struct Samples {
  at::Tensor input = at::randn({kNumSamples, 784});
  at::Tensor target = at::randint(10, {kNumSamples}, at::kLong);
};

/// One way to train the model, which has the same initial weights on every side.
class Side {
 public:
  explicit Side(const Samples& samples) : samples_(samples) {
    torch::manual_seed(kSeed);
    net_ = std::make_shared<Mlp>();
    optimizer_ =
        std::make_shared<torch::optim::AdamW>(net_->parameters(), torch::optim::AdamWOptions(1e-3));
  }
  virtual ~Side() = default;

  virtual void run(int64_t num_steps) = 0;

  bool has_weights_of(const Side& other) const {
    const auto ours = net_->parameters();
    const auto theirs = other.net_->parameters();
    return std::equal(ours.begin(), ours.end(), theirs.begin(), theirs.end(),
                      [](const at::Tensor& a, const at::Tensor& b) { return a.equal(b); });
  }

 protected:
  const Samples& samples_;
  std::shared_ptr<Mlp> net_;
  std::shared_ptr<torch::optim::AdamW> optimizer_;
};

// ---- Trainer ------------------------------------------------------------------------------------

class SilentTrainer final : public Trainer {
 public:
  using Trainer::Trainer;
  void print(std::string_view) override {}
};

/// Returns the default callbacks, with the progress output redirected to `stream`.
CallbackList default_callbacks_into(std::FILE* stream, ProgressBarOptions::Mode mode) {
  CallbackList callbacks = default_callbacks();
  for (auto& callback : callbacks) {
    if (!std::dynamic_pointer_cast<ProgressBar>(callback)) continue;
    callback = make<ProgressBar>({.mode = mode, .stream = stream});
  }
  return callbacks;
}

class TrainerSide final : public Side {
 public:
  TrainerSide(const Samples& samples, CallbackList callbacks)
      : Side(samples),
        dataset_(TensorDataset(samples.input, samples.target)),
        trainer_(net_, torch::nn::CrossEntropyLoss(), optimizer_,
                 {.callbacks = std::move(callbacks), .default_callbacks = {}}) {}

  void run(int64_t num_steps) override {
    trainer_.train({.train_dataset = dataset_,
                    .per_device_batch_size = kBatchSize,
                    .train_dataloader_options = {.seed = kSeed},
                    .max_num_updates = num_steps,
                    .reset_run_history = false});
  }

 private:
  Dataset dataset_;
  SilentTrainer trainer_;
};

// ---- Hand-written loops -------------------------------------------------------------------------

class LoopSide final : public Side {
 public:
  using Side::Side;

  void run(int64_t num_steps) override {
    net_->train();
    while (num_steps > 0) num_steps -= run_epoch(num_steps);
  }

 private:
  int64_t run_epoch(int64_t max_steps) {
    const RandomPermutation permutation(kNumSamples, kSeed, ++epoch_);
    int64_t steps = 0;
    for (int64_t begin = 0; begin < kNumSamples && steps < max_steps; begin += kBatchSize) {
      const at::Tensor indices = at::empty({std::min(kBatchSize, kNumSamples - begin)}, at::kLong);
      auto* index = indices.mutable_data_ptr<int64_t>();
      for (int64_t i = 0; i < indices.size(0); ++i) index[i] = permutation[begin + i];
      const at::Tensor input = samples_.input.index_select(0, indices);
      const at::Tensor target = samples_.target.index_select(0, indices);

      const at::Tensor loss = loss_function_(net_->forward(input), target);
      loss.backward();
      accelerator_.optimizer_step(*optimizer_);
      optimizer_->zero_grad();
      ++steps;
    }
    return steps;
  }

  torch::nn::CrossEntropyLoss loss_function_;
  Accelerator accelerator_{{.device = "cpu"}};
  int64_t epoch_ = 0;
};

class LibTorchSide final : public Side {
 public:
  explicit LibTorchSide(const Samples& samples)
      : Side(samples), batches_(samples.input, samples.target, kBatchSize) {}

  void run(int64_t num_steps) override {
    net_->train();
    for (int64_t step = 0; step < num_steps; ++step) {
      const auto batch = batches_.next();
      const at::Tensor loss = loss_function_(net_->forward(batch.data), batch.target);
      loss.backward();
      optimizer_->step();
      optimizer_->zero_grad();
    }
  }

 private:
  torch::nn::CrossEntropyLoss loss_function_;
  LibTorchBatches batches_;
};

// ---- Measurement --------------------------------------------------------------------------------

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// The duration of each round of a side in seconds: wall-clock time, and processor time of this
/// thread, which does not include time given to other processes.
struct Times {
  std::vector<double> wall{};
  std::vector<double> cpu{};
};

void run_round(Side& side, int64_t num_steps, Times& times) {
  const double cpu_start = cpu_seconds();
  const auto start = std::chrono::steady_clock::now();
  side.run(num_steps);
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
  times.cpu.push_back(cpu_seconds() - cpu_start);
  times.wall.push_back(wall.count());
}

/// Returns the ratio of the speeds of two sides for each round.
std::vector<double> speed_ratios(const std::vector<double>& seconds,
                                 const std::vector<double>& other_seconds) {
  std::vector<double> ratios;
  std::transform(other_seconds.begin(), other_seconds.end(), seconds.begin(),
                 std::back_inserter(ratios), std::divides<>());
  return ratios;
}

void print_ratio(const char* name, const Times& times, const Times& other) {
  const auto ratios = speed_ratios(times.wall, other.wall);
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  std::printf("%-24s %12.4f %12.4f %9.3f..%-9.3f %12.4f\n", name,
              median(other.wall) / median(times.wall), median(ratios), *least, *most,
              median(speed_ratios(times.cpu, other.cpu)));
}

void compare(int64_t num_rounds, int64_t num_steps) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> nowhere(std::fopen("/dev/null", "w"),
                                                                std::fclose);
  const Samples samples;
  using Mode = ProgressBarOptions::Mode;
  TrainerSide trainer(samples, default_callbacks_into(nowhere.get(), Mode::plain));
  LoopSide loop(samples);
  LoopSide loop_again(samples);
  LibTorchSide libtorch(samples);
  TrainerSide bar(samples, default_callbacks_into(nowhere.get(), Mode::bar));
  TrainerSide no_bar(samples, default_callbacks_into(nowhere.get(), Mode::none));
  TrainerSide low(samples, low_overhead_callbacks());
  constexpr int kNumSides = 7;
  Side* const sides[kNumSides] = {&trainer, &loop, &loop_again, &libtorch, &bar, &no_bar, &low};
  const char* const names[kNumSides] = {"Trainer", "loop",   "loop again",  "LibTorch",
                                        "bar",     "no bar", "low overhead"};

  Times warm_up;
  for (Side* side : sides) run_round(*side, num_steps, warm_up);
  Times times[kNumSides];
  for (int64_t round = 0; round < num_rounds; ++round) {
    for (int64_t turn = 0; turn < kNumSides; ++turn) {
      const auto i = (round + turn) % kNumSides;
      run_round(*sides[i], num_steps, times[i]);
    }
  }

  std::printf(
      "MLP 784-128-64-10, AdamW, batch 64, one thread: %lld rounds of %lld steps per side\n\n",
      static_cast<long long>(num_rounds), static_cast<long long>(num_steps));
  std::printf("%-24s %12s %12s %12s\n", "medians", "steps/s", "us/step", "CPU us/step");
  for (int i = 0; i < kNumSides; ++i) {
    const double steps = static_cast<double>(num_steps);
    std::printf("%-24s %12.1f %12.1f %12.1f\n", names[i], steps / median(times[i].wall),
                1e6 * median(times[i].wall) / steps, 1e6 * median(times[i].cpu) / steps);
  }
  std::printf("\n%-24s %12s %12s %20s %12s\n", "ratio of steps/s", "of medians", "median",
              "least..most", "by CPU time");
  print_ratio("Trainer / loop", times[0], times[1]);
  print_ratio("loop again / loop", times[2], times[1]);
  print_ratio("low overhead / loop", times[6], times[1]);
  print_ratio("bar / no bar", times[4], times[5]);
  print_ratio("Trainer / LibTorch", times[0], times[3]);
  std::printf(
      "\nWeights of Trainer and loop are %s.\n",
      trainer.has_weights_of(loop) ? "bit-identical" : "DIFFERENT: they did not do the same work");
}

/// Parses `--name value` pairs. A value must be an integer of at least 1.
bool parse(int argc, char** argv, int64_t& num_rounds, int64_t& num_steps) {
  for (int i = 1; i < argc; i += 2) {
    int64_t* value = nullptr;
    if (std::strcmp(argv[i], "--rounds") == 0) value = &num_rounds;
    if (std::strcmp(argv[i], "--steps") == 0) value = &num_steps;
    if (!value || i + 1 == argc) return false;
    const char* end = argv[i + 1] + std::strlen(argv[i + 1]);
    const auto [stop, error] = std::from_chars(argv[i + 1], end, *value);
    if (error != std::errc() || stop != end || *value < 1) return false;
  }
  return true;
}

}  // namespace
}  // namespace linkboy::benchmarks

int main(int argc, char** argv) {
  int64_t num_rounds = 60;
  int64_t num_steps = 200;
  if (!linkboy::benchmarks::parse(argc, argv, num_rounds, num_steps)) {
    std::fprintf(stderr, "usage: linkboy_overhead [--rounds N] [--steps N_PER_ROUND]\n");
    return 2;
  }
  at::set_num_threads(1);
  linkboy::benchmarks::compare(num_rounds, num_steps);
}

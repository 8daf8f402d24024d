// linkboy's side of compare_peers.py. peers/ contains the Python sides.
//
//     linkboy_workloads WORK --steps N --threads N [--first-update] [--execution compiled]
//
// WORK is mlp, cnn, resnet18 or gpt (training with Trainer, data in memory), or step (updates of
// 1,000 small tensors). The program creates its data, then answers each line "run" with a line of
// JSON: the seconds that N steps took, the loss after them, and the peak memory of the process. For
// a model, a run is one epoch of a dataset with N batches. "quit" ends the program. With
// --first-update, it trains immediately and answers after the first update.
//
// Trainer uses its default callbacks; standard output and standard error are redirected to
// /dev/null.

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/loss.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cnn.hpp"
#include "linkboy/accelerator.hpp"
#include "linkboy/compile/compiled_steps.hpp"
#include "linkboy/trainer.hpp"
#include "linkboy/vision/resnet.hpp"
#include "mlp.hpp"
#include "model.hpp"
#include "turns.hpp"

namespace linkboy::benchmarks {
namespace {

constexpr int64_t kNumClasses = 10;
constexpr int64_t kLength = 64;  // of the sequences of gpt
constexpr int64_t kNumCheckedSamples = 256;
constexpr uint64_t kSeed = 0;

struct Arguments {
  std::string work;
  int64_t num_steps = 0;
  int64_t num_threads = 1;
  bool first_update = false;
  ExecutionMode execution = ExecutionMode::eager;
};

struct Samples {
  at::Tensor input;
  at::Tensor target;
};

/// Creates noise plus one pattern per class. For images, a pattern is a grid of 4 x 4 patches.
Samples make_samples(int64_t count, const std::vector<int64_t>& shape) {
  constexpr double kStrength = 0.1;
  torch::manual_seed(kSeed);
  std::vector<int64_t> sizes = shape;
  sizes.insert(sizes.begin(), count);
  at::Tensor input = at::randn(sizes);
  at::Tensor patterns;
  if (shape.size() == 1) {
    patterns = at::randn({kNumClasses, shape[0]});
  } else {
    patterns = at::randn({kNumClasses, shape[0], 4, 4})
                   .repeat_interleave(shape[1] / 4, 2)
                   .repeat_interleave(shape[2] / 4, 3);
  }
  // Adds in place, because temporary tensors would count as memory of the run.
  const int64_t whole = count / kNumClasses * kNumClasses;
  sizes[0] = kNumClasses;
  sizes.insert(sizes.begin(), whole / kNumClasses);
  input.slice(0, 0, whole).view(sizes).add_(patterns, kStrength);
  return {std::move(input), at::arange(count).remainder(kNumClasses)};
}

/// Creates sequences in which each byte determines the next one, except for noise of four values.
/// The target of a byte is the byte after it.
Samples make_sequences(int64_t count) {
  constexpr int64_t kNumNoiseValues = 4;
  torch::manual_seed(kSeed);
  const at::Tensor tokens = at::empty({count, kLength + 1}, at::kLong);
  tokens.select(1, 0).copy_(at::randint(0, byte_gpt::kNumBytes, {count}, at::kLong));
  const at::Tensor noise = at::randint(0, kNumNoiseValues, {count, kLength}, at::kLong);
  for (int64_t i = 0; i < kLength; ++i) {
    const at::Tensor next = tokens.select(1, i) * 5 + 17 + noise.select(1, i);
    tokens.select(1, i + 1).copy_(next.remainder(byte_gpt::kNumBytes));
  }
  return {tokens.slice(1, 0, kLength).contiguous(), tokens.slice(1, 1).contiguous()};
}

Samples make_dataset(const std::string& work, int64_t count) {
  if (work == "gpt") return make_sequences(count);
  if (work == "resnet18") return make_samples(count, {3, 32, 32});
  if (work == "cnn") return make_samples(count, {1, 28, 28});
  return make_samples(count, {784});
}

Model make_model(const std::string& work) {
  torch::manual_seed(kSeed);
  if (work == "gpt") {
    return byte_gpt::Gpt(
        byte_gpt::GptOptions{.length = kLength, .layers = 4, .width = 128, .heads = 4});
  }
  if (work == "resnet18") {
    return vision::resnet18({.num_classes = kNumClasses, .has_small_stem = true});
  }
  if (work == "cnn") return std::make_shared<Cnn>();
  return std::make_shared<Mlp>();
}

/// The mean of the losses of all targets. The outputs have one more dimension, that of the classes.
at::Tensor cross_entropy(const at::Tensor& outputs, const at::Tensor& targets) {
  return at::cross_entropy_loss(outputs.flatten(0, -2), targets.flatten());
}

LossFunction make_loss_function(const std::string& work) {
  if (work == "gpt") return cross_entropy;
  return torch::nn::CrossEntropyLoss();
}

class Work {
 public:
  virtual ~Work() = default;
  virtual void run() = 0;
  /// The check value, which is compared between all sides.
  virtual double loss() = 0;
};

/// Calls `notify` after the first update.
class FirstUpdate final : public Callback {
 public:
  explicit FirstUpdate(std::function<void()> notify) : notify_(std::move(notify)) {}
  void on_train_update_end(Trainer&) override {
    if (notify_) notify_();
    notify_ = nullptr;
  }

 private:
  std::function<void()> notify_;
};

class Training final : public Work {
 public:
  Training(Model model, LossFunction loss_function, Samples samples, int64_t batch_size,
           ExecutionMode execution, const CallbackList& more_callbacks)
      : samples_(std::move(samples)),
        batch_size_(batch_size),
        execution_(execution),
        trainer_(model, std::move(loss_function),
                 std::make_shared<torch::optim::AdamW>(model.parameters(),
                                                       torch::optim::AdamWOptions(1e-3)),
                 {.callbacks = more_callbacks}) {}

  void run() override {
    trainer_.train({.train_dataset = TensorDataset(samples_.input, samples_.target),
                    .per_device_batch_size = batch_size_,
                    .num_epochs = 1,
                    .execution_mode = execution_,
                    .create_step_executor_fn = create_step_executor_fn_,
                    .reset_run_history = false});
  }

  double loss() override {
    const at::NoGradGuard no_grad;
    const at::Tensor output = trainer_.model()(samples_.input.slice(0, 0, kNumCheckedSamples));
    const at::Tensor target = samples_.target.slice(0, 0, kNumCheckedSamples);
    return cross_entropy(output, target).item<double>();
  }

 private:
  Samples samples_;
  int64_t batch_size_;
  ExecutionMode execution_;
  CreateStepExecutorFn create_step_executor_fn_ =
      compiled_steps({.on_failure = CompileOptions::OnFailure::error});
  Trainer trainer_;
};

/// Updates 1,000 tensors with constant gradients.
class OptimizerSteps final : public Work {
 public:
  explicit OptimizerSteps(int64_t num_steps) : num_steps_(num_steps) {
    constexpr int64_t kNumTensors = 1000;
    torch::manual_seed(kSeed);
    for (int64_t i = 0; i < kNumTensors; ++i) {
      at::Tensor parameter = at::randn({16, 16}).requires_grad_();
      parameter.mutable_grad() = at::randn({16, 16});
      parameters_.push_back(std::move(parameter));
    }
    optimizer_ =
        std::make_unique<torch::optim::AdamW>(parameters_, torch::optim::AdamWOptions(1e-3));
  }

  void run() override {
    for (int64_t i = 0; i < num_steps_; ++i) accelerator_.optimizer_step(*optimizer_);
  }

  double loss() override {
    double sum = 0.0;
    for (const auto& parameter : parameters_) sum += parameter.square().mean().item<double>();
    return sum / static_cast<double>(parameters_.size());
  }

 private:
  int64_t num_steps_;
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<torch::optim::AdamW> optimizer_;
  Accelerator accelerator_;
};

std::unique_ptr<Work> make_work(const Arguments& arguments, const CallbackList& more_callbacks) {
  const int64_t steps = arguments.num_steps;
  if (arguments.work == "step") return std::make_unique<OptimizerSteps>(steps);
  const auto& work = arguments.work;
  const int64_t batch_size = work == "gpt" ? 8 : work == "resnet18" ? 32 : 64;
  Samples samples = make_dataset(work, steps * batch_size);
  return std::make_unique<Training>(make_model(work), make_loss_function(work), std::move(samples),
                                    batch_size, arguments.execution, more_callbacks);
}

void serve(const Arguments& arguments) {
  const Turns turns;
  CallbackList more_callbacks;
  if (arguments.first_update) {
    more_callbacks.push_back(
        std::make_shared<FirstUpdate>([&] { turns.reply("{\"first_update\": true}\n"); }));
  }
  try {
    const auto work = make_work(arguments, more_callbacks);
    if (arguments.first_update) return work->run();
    turns.serve(
        arguments.num_steps, [&] { work->run(); }, [&] { return work->loss(); });
  } catch (const std::exception& error) {
    turns.reply_error(error);
  }
}

bool parse(int argc, char** argv, Arguments& arguments) {
  if (argc < 2) return false;
  arguments.work = argv[1];
  for (int i = 2; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--first-update") {
      arguments.first_update = true;
      continue;
    }
    if (name == "--execution") {
      if (++i == argc) return false;
      arguments.execution = enum_from_text<ExecutionMode>(argv[i]);
      continue;
    }
    int64_t* value = name == "--steps"     ? &arguments.num_steps
                     : name == "--threads" ? &arguments.num_threads
                                           : nullptr;
    if (!value || ++i == argc || !parse_number(argv[i], *value)) return false;
  }
  const auto& work = arguments.work;
  return arguments.num_steps > 0 &&
         (work == "mlp" || work == "cnn" || work == "resnet18" || work == "gpt" || work == "step");
}

}  // namespace
}  // namespace linkboy::benchmarks

int main(int argc, char** argv) {
  linkboy::benchmarks::Arguments arguments;
  if (!linkboy::benchmarks::parse(argc, argv, arguments)) {
    std::fprintf(stderr,
                 "usage: linkboy_workloads mlp|cnn|resnet18|gpt|step --steps N [--threads N] "
                 "[--first-update] [--execution eager|compiled]\n");
    return 2;
  }
  at::set_num_threads(static_cast<int>(arguments.num_threads));
  linkboy::benchmarks::serve(arguments);
}

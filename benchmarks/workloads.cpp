// linkboy's side of compare_peers.py. peers/ contains the Python sides.
//
//     linkboy_workloads WORK --steps N --threads N [--first-update] [--execution compiled]
//
// WORK is mlp, cnn or resnet18 (training with Trainer, data in memory), or step (updates of 1,000
// small tensors). The program creates its data, then answers each line "run" with a line of JSON:
// the seconds that N steps took, the loss after them, and the peak memory of the process. For a
// model, a run is one epoch of a dataset with N batches. "quit" ends the program. With
// --first-update, it trains immediately and answers after the first update.
//
// Trainer uses its default callbacks; standard output and standard error are redirected to
// /dev/null.

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/loss.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>
#include <torch/version.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "linkboy/accelerator.hpp"
#include "linkboy/compile/compiled_steps.hpp"
#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"
#include "linkboy/vision/resnet.hpp"
#include "mlp.hpp"

namespace linkboy::benchmarks {
namespace {

constexpr int64_t kNumClasses = 10;
constexpr int64_t kNumCheckedSamples = 256;
constexpr uint64_t kSeed = 0;

struct Arguments {
  std::string work;
  int64_t num_steps = 0;
  int64_t num_threads = 1;
  bool first_update = false;
  ExecutionMode execution = ExecutionMode::eager;
};

class Cnn final : public torch::nn::Module {
 public:
  Cnn() {
    register_module("conv1", conv1_);
    register_module("conv2", conv2_);
    register_module("hidden", hidden_);
    register_module("output", output_);
  }

  at::Tensor forward(const at::Tensor& images) {
    at::Tensor x = at::max_pool2d(at::relu(conv1_(images)), 2);
    x = at::max_pool2d(at::relu(conv2_(x)), 2);
    return output_(at::relu(hidden_(x.flatten(1))));
  }

 private:
  torch::nn::Conv2d conv1_{torch::nn::Conv2dOptions(1, 32, 5)};
  torch::nn::Conv2d conv2_{torch::nn::Conv2dOptions(32, 64, 5)};
  torch::nn::Linear hidden_{64 * 4 * 4, 128};
  torch::nn::Linear output_{128, kNumClasses};
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
  Training(Model model, Samples samples, int64_t batch_size, ExecutionMode execution,
           const CallbackList& more_callbacks)
      : samples_(std::move(samples)),
        batch_size_(batch_size),
        execution_(execution),
        trainer_(model, torch::nn::CrossEntropyLoss(),
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
    return at::cross_entropy_loss(output, target).item<double>();
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
  const bool is_resnet = arguments.work == "resnet18";
  const int64_t batch_size = is_resnet ? 32 : 64;
  const int64_t count = steps * batch_size;
  const Samples samples = is_resnet                 ? make_samples(count, {3, 32, 32})
                          : arguments.work == "cnn" ? make_samples(count, {1, 28, 28})
                                                    : make_samples(count, {784});
  torch::manual_seed(kSeed);
  const vision::ResNetOptions small_images{.num_classes = kNumClasses, .has_small_stem = true};
  Model model = is_resnet                 ? Model(vision::resnet18(small_images))
                : arguments.work == "cnn" ? Model(std::make_shared<Cnn>())
                                          : Model(std::make_shared<Mlp>());
  return std::make_unique<Training>(std::move(model), samples, batch_size, arguments.execution,
                                    more_callbacks);
}

/// Returns the peak resident memory of this process in bytes.
int64_t peak_bytes() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(line.find(':') + 1)) * 1024;
  }
  return 0;
}

/// Returns the original standard output, and redirects standard output to /dev/null.
std::FILE* take_standard_output() {
  std::FILE* replies = fdopen(dup(STDOUT_FILENO), "w");
  LINKBOY_CHECK(replies && std::freopen("/dev/null", "w", stdout), "cannot redirect the output");
  return replies;
}

template <class... Values>
void reply(std::FILE* replies, const char* format, Values... values) {
  std::fprintf(replies, format, values...);
  std::fflush(replies);
}

void serve(const Arguments& arguments) {
  std::FILE* replies = take_standard_output();
  LINKBOY_CHECK(std::freopen("/dev/null", "w", stderr), "cannot redirect the errors");
  CallbackList more_callbacks;
  if (arguments.first_update) {
    more_callbacks.push_back(
        std::make_shared<FirstUpdate>([replies] { reply(replies, "{\"first_update\": true}\n"); }));
  }
  try {
    const auto work = make_work(arguments, more_callbacks);
    if (arguments.first_update) return work->run();
    reply(replies, "{\"compiler\": \"%s\", \"torch\": \"%s\"}\n", __VERSION__, TORCH_VERSION);
    for (std::string line; std::getline(std::cin, line) && line == "run";) {
      const auto start = std::chrono::steady_clock::now();
      work->run();
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
      reply(replies, "{\"seconds\": %.6f, \"steps\": %lld, \"loss\": %.9g, \"peak_bytes\": %lld}\n",
            time.count(), static_cast<long long>(arguments.num_steps), work->loss(),
            static_cast<long long>(peak_bytes()));
    }
  } catch (const std::exception& error) {
    // Removes quotes and backslashes, which would end or change the JSON string.
    std::string message = error.what();
    message = message.substr(0, message.find('\n'));
    std::erase_if(message, [](char c) { return c == '"' || c == '\\'; });
    reply(replies, "{\"error\": \"%s\"}\n", message.c_str());
  }
}

bool parse_number(const char* text, int64_t& value) {
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  return error == std::errc() && stop == end && value >= 1;
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
         (work == "mlp" || work == "cnn" || work == "resnet18" || work == "step");
}

}  // namespace
}  // namespace linkboy::benchmarks

int main(int argc, char** argv) {
  linkboy::benchmarks::Arguments arguments;
  if (!linkboy::benchmarks::parse(argc, argv, arguments)) {
    std::fprintf(stderr,
                 "usage: linkboy_workloads mlp|cnn|resnet18|step --steps N [--threads N] "
                 "[--first-update] [--execution eager|compiled]\n");
    return 2;
  }
  at::set_num_threads(static_cast<int>(arguments.num_threads));
  linkboy::benchmarks::serve(arguments);
}

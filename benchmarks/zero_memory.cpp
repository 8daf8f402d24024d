// Measures the memory of a rank with each ZeRO stage: 32 layers of 1024 x 1024, AdamW.
//
//     tests/distributed/launch RANKS linkboy_zero_memory 0|1|2|3
//
// Prints three sizes in MiB, each the maximum over the ranks: the optimizer state, the gradients
// after a backward pass, and the growth of the process by the model and its first five steps.

#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "linkboy/accelerator.hpp"
#include "linkboy/memory/memory_use.hpp"

namespace linkboy::benchmarks {
namespace {

constexpr double kMebi = 1 << 20;
constexpr int kNumLayers = 32;
constexpr int64_t kWidth = 1024;

double state_bytes(const torch::optim::AdamW& optimizer) {
  std::size_t bytes = 0;
  for (const auto& entry : optimizer.state()) {
    const auto& state = static_cast<const torch::optim::AdamWParamState&>(*entry.second);
    bytes += state.exp_avg().nbytes() + state.exp_avg_sq().nbytes();
  }
  return static_cast<double>(bytes);
}

double gradient_bytes(const std::vector<at::Tensor>& parameters) {
  std::size_t bytes = 0;
  for (const auto& parameter : parameters) {
    if (parameter.grad().defined()) bytes += parameter.grad().nbytes();
  }
  return static_cast<double>(bytes);
}

void measure(int64_t stage) {
  Accelerator accelerator({.device = "cpu", .distributed = {.zero_stage = stage}});
  const double before = resident_mib() * kMebi;
  torch::nn::Sequential net;
  for (int layer = 0; layer < kNumLayers; ++layer)
    net->push_back(torch::nn::Linear(kWidth, kWidth));
  Model model(net);
  torch::optim::AdamW optimizer(net->parameters(), 1e-3);
  accelerator.prepare(model, &optimizer);
  const at::Tensor input = at::ones({8, kWidth});
  double gradients = 0.0;
  for (int step = 0; step < 5; ++step) {
    accelerator.backward(model(input).square().mean());
    gradients = gradient_bytes(net->parameters());
    accelerator.optimizer_step(optimizer);
    accelerator.zero_grad(optimizer);
  }
  const auto most = [&](double value) {
    return accelerator.reduce(at::ones({}, at::kDouble) * value, ReduceOp::max).item<double>() /
           kMebi;
  };
  const double state = most(state_bytes(optimizer));
  gradients = most(gradients);
  const double grown = most(resident_mib() * kMebi - before);
  if (accelerator.is_main_process()) {
    std::printf("stage %d: state %.1f MiB, gradients %.1f MiB, growth of the process %.1f MiB\n",
                static_cast<int>(stage), state, gradients, grown);
  }
}

}  // namespace
}  // namespace linkboy::benchmarks

int main(int argc, char** argv) {
  at::set_num_threads(1);
  // A process measures only one stage, because a second stage would reuse memory that the first
  // stage has freed.
  const int64_t stage = argc > 1 ? std::atoll(argv[1]) : 0;
  linkboy::benchmarks::measure(stage);
}

// Compares linkboy's fused step with LibTorch's own for one update of many small tensors, where the
// overhead per tensor dominates.

#include <ATen/ops/randn.h>
#include <benchmark/benchmark.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "paired.hpp"
#include "precision/fused_step.hpp"

namespace linkboy::benchmarks {
namespace {

std::vector<at::Tensor> make_parameters(int64_t num_tensors) {
  std::vector<at::Tensor> parameters;
  for (int64_t i = 0; i < num_tensors; ++i) {
    at::Tensor parameter = at::randn({16, 16}).requires_grad_();
    parameter.mutable_grad() = at::randn({16, 16});
    parameters.push_back(std::move(parameter));
  }
  return parameters;
}

template <class Optimizer, class Options>
void run_step(benchmark::State& state, const Options& options) {
  Optimizer fused(make_parameters(state.range(0)), options);
  Optimizer plain(make_parameters(state.range(0)), options);
  if (fused_step(fused) == FusedGradients::none) {
    state.SkipWithError("there is no fused step for this optimizer");
    return;
  }
  run_paired(
      state, [&] { fused_step(fused); }, [&] { plain.step(); });
}

void step_adamw(benchmark::State& state) {
  run_step<torch::optim::AdamW>(state, torch::optim::AdamWOptions(1e-4));
}

void step_sgd_momentum(benchmark::State& state) {
  run_step<torch::optim::SGD>(state, torch::optim::SGDOptions(1e-4).momentum(0.9));
}

void step_adagrad(benchmark::State& state) {
  run_step<torch::optim::Adagrad>(state, torch::optim::AdagradOptions(1e-4));
}

void step_rmsprop(benchmark::State& state) {
  run_step<torch::optim::RMSprop>(state, torch::optim::RMSpropOptions(1e-4));
}

void with_tensors(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgName("tensors")->Arg(10)->Arg(100)->Arg(1000);
  benchmark->UseManualTime()->Unit(benchmark::kMicrosecond);
}
BENCHMARK(step_adamw)->Apply(with_tensors);
BENCHMARK(step_sgd_momentum)->Apply(with_tensors);
BENCHMARK(step_adagrad)->Apply(with_tensors);
BENCHMARK(step_rmsprop)->Apply(with_tensors);

}  // namespace
}  // namespace linkboy::benchmarks

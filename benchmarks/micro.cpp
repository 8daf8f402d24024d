// Measures the work that linkboy adds to a LibTorch step: calling the callbacks and tracking the
// loss. micro_data.cpp measures data loading, and micro_optimizer.cpp the optimizer. The benchmarks
// use one thread.

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <benchmark/benchmark.h>
#include <torch/nn/modules/linear.h>

#include <utility>

#include "linkboy/callback.hpp"
#include "linkboy/extend/loss_average.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy::benchmarks {
namespace {

/// Each callback has a separate type, because callbacks of the same type would have the same name.
template <std::size_t I>
class CountingCallback final : public Callback {
 public:
  void on_train_step_start(Trainer&) override { ++count_; }

 private:
  int64_t count_ = 0;
};

template <std::size_t... I>
CallbackList make_callbacks(std::index_sequence<I...>) {
  return {std::make_shared<CountingCallback<I>>()...};
}

/// Fires one event, which every callback handles.
template <std::size_t num_callbacks>
void dispatch(benchmark::State& state) {
  Trainer trainer(torch::nn::Linear(1, 1), nullptr, nullptr, {.default_callbacks = {}});
  const CallbackHandler handler(make_callbacks(std::make_index_sequence<num_callbacks>()));
  for (auto _ : state) {
    handler.call(&Callback::on_train_step_start, trainer);
    benchmark::ClobberMemory();
  }
}
BENCHMARK(dispatch<0>);
BENCHMARK(dispatch<5>);
BENCHMARK(dispatch<50>);

void loss_average_update(benchmark::State& state) {
  LossAverage tracker;
  const at::Tensor loss = at::full({}, 2.3).requires_grad_();
  for (auto _ : state) tracker.update(loss, /*batch_size=*/64);
  benchmark::DoNotOptimize(tracker.average());
}
BENCHMARK(loss_average_update);

}  // namespace
}  // namespace linkboy::benchmarks

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  at::set_num_threads(1);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}

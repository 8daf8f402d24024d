// Measures the computation of an epoch's order, and the loading of batches of 64, with data of
// Fashion-MNIST's size.

#include <ATen/ops/index_select.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randperm.h>
#include <benchmark/benchmark.h>

#include "libtorch_loader.hpp"
#include "linkboy/data/data_loader.hpp"
#include "linkboy/data/sampler.hpp"
#include "paired.hpp"

namespace linkboy::benchmarks {
namespace {

constexpr int64_t kNumSamples = 60'000;
constexpr int64_t kNumFeatures = 784;
constexpr int64_t kBatchSize = 64;

struct Samples {
  at::Tensor input = at::rand({kNumSamples, kNumFeatures});
  at::Tensor target = at::randint(10, {kNumSamples}, at::kLong);
};

const Samples& samples() {
  static const Samples samples;
  return samples;
}

/// An endless sequence of shuffled batches from linkboy's loader.
class Batches {
 public:
  explicit Batches(int64_t num_workers)
      : loader_(make_data_loader(
            TensorDataset(samples().input, samples().target),
            {.batch_size = kBatchSize, .shuffle = true, .num_workers = num_workers, .seed = 0})),
        epoch_(loader_->iterate(number_)) {}

  Batch next() {
    auto batch = epoch_->next();
    if (!batch) {
      epoch_ = loader_->iterate(++number_);
      batch = epoch_->next();
    }
    return std::move(*batch);
  }

 private:
  std::shared_ptr<DataLoader> loader_;
  int64_t number_ = 1;
  std::unique_ptr<BatchIterator> epoch_;
};

void permutation_index(benchmark::State& state) {
  const RandomPermutation permutation(kNumSamples, /*seed=*/0, /*epoch=*/1);
  int64_t position = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(permutation[position]);
    if (++position == kNumSamples) position = 0;
  }
}
BENCHMARK(permutation_index);

/// Computes all indices of an epoch. linkboy itself computes them one by one when they are needed.
void permutation_epoch_vs_randperm(benchmark::State& state) {
  std::vector<int64_t> indices(kNumSamples);
  int64_t epoch = 0;
  run_paired(
      state,
      [&] {
        const RandomPermutation permutation(kNumSamples, /*seed=*/0, ++epoch);
        for (int64_t i = 0; i < kNumSamples; ++i) indices[i] = permutation[i];
        benchmark::ClobberMemory();
      },
      [] { benchmark::DoNotOptimize(at::randperm(kNumSamples)); });
}
BENCHMARK(permutation_epoch_vs_randperm)->UseManualTime()->Unit(benchmark::kMicrosecond);

/// Measures the time to get a batch. With workers, this is the wait of a loop without other work.
void loader_batch(benchmark::State& state) {
  Batches batches(/*num_workers=*/state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(batches.next());
  state.SetItemsProcessed(state.iterations() * kBatchSize);
}
BENCHMARK(loader_batch)
    ->ArgName("workers")
    ->Arg(0)
    ->Arg(2)
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

/// Compares the loader with the two calls that gather a batch from given indices.
void loader_batch_vs_index_select(benchmark::State& state) {
  Batches batches(/*num_workers=*/0);
  const at::Tensor order = at::randperm(kNumSamples);
  int64_t begin = 0;
  run_paired(
      state, [&] { benchmark::DoNotOptimize(batches.next()); },
      [&] {
        if (begin + kBatchSize > kNumSamples) begin = 0;
        const at::Tensor indices = order.narrow(0, begin, kBatchSize);
        benchmark::DoNotOptimize(at::index_select(samples().input, 0, indices));
        benchmark::DoNotOptimize(at::index_select(samples().target, 0, indices));
        begin += kBatchSize;
      });
}
BENCHMARK(loader_batch_vs_index_select)->UseManualTime()->Unit(benchmark::kMicrosecond);

void loader_batch_vs_libtorch(benchmark::State& state) {
  Batches batches(/*num_workers=*/0);
  LibTorchBatches libtorch(samples().input, samples().target, kBatchSize);
  run_paired(
      state, [&] { benchmark::DoNotOptimize(batches.next()); },
      [&] { benchmark::DoNotOptimize(libtorch.next()); });
}
BENCHMARK(loader_batch_vs_libtorch)->UseManualTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace linkboy::benchmarks

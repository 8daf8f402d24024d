// Data of the size of Fashion-MNIST: the order of an epoch, and batches of 64.

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

/// Batches of linkboy's loader, shuffled, epoch after epoch.
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

/// All indices of an epoch, in memory. linkboy never does that; the loop pays index by index.
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

/// With workers: what the loop waits for a batch if it does nothing else.
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

/// Against the two calls that gather a batch, with the indices ready: what the loader adds.
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

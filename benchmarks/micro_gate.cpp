// What an operation costs if it uses a distributed parameter, and that others cost nothing.

#include <ATen/ops/ones.h>
#include <benchmark/benchmark.h>

#include <memory>

#include "distributed/parameter_gate.hpp"

namespace linkboy::benchmarks {
namespace {

struct AlwaysThere final : GatedStorages {
  void provide(c10::ArrayRef<std::size_t>, c10::ArrayRef<std::size_t>) override {}
  void take_changes(std::size_t) override {}
  void drop_changes(std::size_t) noexcept override {}
};

/// Adds two small tensors, one of which is a gated parameter or not.
void add_small_tensors(benchmark::State& state, bool is_gated) {
  const at::Tensor parameter = at::ones({8});
  const at::Tensor other = at::ones({8});
  const auto owner = std::make_shared<AlwaysThere>();
  parameter_gate::add(parameter.storage().unsafeGetStorageImpl(), owner, 0);
  parameter_gate::set_gated(parameter, is_gated);
  for (auto _ : state) benchmark::DoNotOptimize(parameter.add(other));
  parameter_gate::remove(parameter.storage().unsafeGetStorageImpl());
}
BENCHMARK_CAPTURE(add_small_tensors, of_a_plain_tensor, false);
BENCHMARK_CAPTURE(add_small_tensors, of_a_gated_parameter, true);

}  // namespace
}  // namespace linkboy::benchmarks

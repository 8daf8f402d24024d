#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/scheduler.hpp"
#include "linkboy/util/required.hpp"

namespace torch::optim {
class LRScheduler;
}

namespace linkboy {

struct TorchSchedulerOptions {
  /// Makes the LibTorch scheduler for the optimizer that it is given, which is not the run's own:
  /// it has the same number of param groups with the same learning rates.
  Required<std::function<std::unique_ptr<torch::optim::LRScheduler>(torch::optim::Optimizer&)>>
      scheduler;
};

/// Any `torch::optim::LRScheduler` as a schedule:
///
///     torch_schedule({.scheduler = [](torch::optim::Optimizer& optimizer) {
///       return std::make_unique<torch::optim::StepLR>(optimizer, 30, 0.5);
///     }})
///
/// The LibTorch scheduler works on an optimizer of its own, whose learning rates are handed on; so
/// it can be asked beforehand, saved and restored, which LibTorch's cannot. Its n-th call of `step`
/// sets f(n - 1), as LibTorch means it. `values_at` costs n steps unless it is asked in order.
class LINKBOY_API TorchScheduler final : public Scheduler {
 public:
  /// See the options.
  using Options = TorchSchedulerOptions;

  /// @throws Error if the function is empty or returns null.
  TorchScheduler(torch::optim::Optimizer& optimizer, const TorchSchedulerOptions& options,
                 const RunConfig& config);
  ~TorchScheduler() override;

  std::vector<double> values_at(int64_t update) const override;
  bool include_new_groups() override;
  void load_state_dict(const StateDict& state) override;

 private:
  struct Simulation;

  void start_simulation() const;

  TorchSchedulerOptions options_;
  mutable std::unique_ptr<Simulation> simulation_;
};

/// For `TrainOptions::create_scheduler_fn`.
inline CreateSchedulerFn torch_schedule(TorchSchedulerOptions options) {
  return scheduler_fn<TorchScheduler>(std::move(options));
}

}  // namespace linkboy

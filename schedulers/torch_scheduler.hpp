#pragma once

#include <torch/optim/schedulers/lr_scheduler.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/run/run_config.hpp"
#include "linkboy/scheduler.hpp"
#include "linkboy/util/required.hpp"

namespace linkboy {

/// A function that creates a LibTorch scheduler from (optimizer) or from (optimizer, RunConfig).
class TorchSchedulerFn {
 public:
  /// Creates an empty function, which TorchScheduler rejects.
  TorchSchedulerFn(std::nullptr_t) {}  // NOLINT(google-explicit-constructor): like std::function

  /// Converts a function of either form.
  template <class F>
  requires(!std::same_as<std::remove_cvref_t<F>, TorchSchedulerFn> &&
           (std::invocable<F&, torch::optim::Optimizer&> ||
            std::invocable<F&, torch::optim::Optimizer&, const RunConfig&>))
      // NOLINTNEXTLINE(google-explicit-constructor,bugprone-forwarding-reference-overload)
      TorchSchedulerFn(F&& function) {
    if constexpr (std::invocable<F&, torch::optim::Optimizer&, const RunConfig&>) {
      function_ = std::forward<F>(function);
    } else {
      std::function<Made(torch::optim::Optimizer&)> own(std::forward<F>(function));
      if (!own) return;
      function_ = [own = std::move(own)](torch::optim::Optimizer& optimizer, const RunConfig&) {
        return own(optimizer);
      };
    }
  }

  /// Whether there is a function.
  explicit operator bool() const { return static_cast<bool>(function_); }

  /// Calls the function.
  std::unique_ptr<torch::optim::LRScheduler> operator()(torch::optim::Optimizer& optimizer,
                                                        const RunConfig& config) const {
    return function_(optimizer, config);
  }

 private:
  using Made = std::unique_ptr<torch::optim::LRScheduler>;

  std::function<Made(torch::optim::Optimizer&, const RunConfig&)> function_{};
};

struct TorchSchedulerOptions {
  /// Creates the LibTorch scheduler. It receives a separate optimizer, which has as many param
  /// groups as the run's optimizer, with the same learning rates. If the function has a second
  /// parameter, it also receives the run's configuration, for lengths that use placeholders.
  Required<TorchSchedulerFn> scheduler;
};

/// Turns any `torch::optim::LRScheduler` into a Scheduler:
///
///     torch_schedule({.scheduler = [](torch::optim::Optimizer& optimizer) {
///       return std::make_unique<torch::optim::StepLR>(optimizer, 30, 0.5);
///     }})
///
/// If a length depends on the run:
///
///     torch_schedule({.scheduler = [](torch::optim::Optimizer& optimizer, const RunConfig& run) {
///       const RunExpression length = placeholders::num_updates_per_epoch * 2;
///       return std::make_unique<torch::optim::StepLR>(optimizer, length.resolve_count(run), 0.5);
///     }})
///
/// The LibTorch scheduler works on a separate optimizer, whose learning rates are copied to the
/// run's optimizer. Unlike a plain LibTorch scheduler, it can therefore be plotted before training,
/// saved and restored. The n-th call of its `step` sets f(n - 1), as in LibTorch. `values_at(n)`
/// needs n steps, unless n increases from call to call.
class LINKBOY_API TorchScheduler final : public Scheduler {
 public:
  /// The options type of the constructor.
  using Options = TorchSchedulerOptions;

  /// @throws OptionError if the function is empty; Error if it returns null; any error of the
  ///         function.
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
  RunConfig config_;
  mutable std::unique_ptr<Simulation> simulation_;
};

/// Returns a function for `TrainOptions::create_scheduler_fn`.
inline CreateSchedulerFn torch_schedule(TorchSchedulerOptions options) {
  return scheduler_fn<TorchScheduler>(std::move(options));
}

}  // namespace linkboy

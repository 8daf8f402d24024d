#pragma once

#include <torch/optim/schedulers/lr_scheduler.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/run/run_config.hpp"
#include "linkboy/scheduler.hpp"
#include "linkboy/util/required.hpp"

namespace linkboy {

struct LambdaSchedulerOptions {
  /// The factor after n updates: one function for all param groups, or one function per group. The
  /// functions must be pure. They are called with n from 0 to the number of updates, as in PyTorch.
  /// A value that no update uses may be invalid.
  std::vector<std::function<double(int64_t)>> lr_lambda{};
  /// If true, multiplies the factors of updates 1 to n. If false, uses only the n-th factor.
  bool is_multiplicative = false;
  ParamGroupField field = ParamGroupField::lr;
};

/// Multiplies the base value by a custom factor. Equivalent to PyTorch's LambdaLR or, if
/// `is_multiplicative` is true, to its MultiplicativeLR:
///
///     f(n) = base * lr_lambda(n)
///     f(n) = base * lr_lambda(1) * ... * lr_lambda(n)     if is_multiplicative
///
/// If `is_multiplicative` is true, `values_at(n)` needs n calls of a function, unless n increases
/// from call to call.
class LINKBOY_API LambdaScheduler final : public Scheduler {
 public:
  /// The options type of the constructor.
  using Options = LambdaSchedulerOptions;

  /// @throws OptionError if there is no function, a function is empty, or the number of functions
  ///         is neither 1 nor the number of param groups.
  LambdaScheduler(torch::optim::Optimizer& optimizer, const LambdaSchedulerOptions& options,
                  const RunConfig& config);

  std::vector<double> values_at(int64_t update) const override;

 private:
  double factor_at(std::size_t index, int64_t update) const;

  /// The product of the factors up to an update.
  struct Product {
    int64_t update = 0;
    double value = 1.0;
  };

  LambdaSchedulerOptions options_;
  mutable std::vector<Product> products_;
};
/// Makes a LambdaScheduler.
inline constexpr SchedulerMaker<LambdaScheduler> lambda_schedule{};

/// A function that creates a LibTorch scheduler.
using CreateTorchSchedulerFn = std::function<std::unique_ptr<torch::optim::LRScheduler>(
    torch::optim::Optimizer&, const RunConfig&)>;

struct TorchSchedulerOptions {
  /// Creates the LibTorch scheduler. It receives a separate optimizer, which has as many param
  /// groups as the run's optimizer, with the same learning rates, and the run's configuration, for
  /// lengths that use placeholders.
  Required<CreateTorchSchedulerFn> scheduler;
};

/// Turns any `torch::optim::LRScheduler` into a Scheduler:
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
/// Makes a TorchScheduler.
inline constexpr SchedulerMaker<TorchScheduler> torch_schedule{};

}  // namespace linkboy

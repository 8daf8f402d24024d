#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/extend/async_scalar.hpp"
#include "linkboy/extend/loss_average.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

struct EventStorageOptions {
  /// Number of values to keep for each name; older ones are dropped. Must be at least 1.
  int64_t window = 1000;

  LINKBOY_FIELDS(window);
};

/// Keeps the most recent scalars of a run, update by update, for callbacks and subclasses that
/// react to them. It corresponds to EventStorage in detectron2 and LiBai. Other callbacks find it
/// with `trainer.callback_handler().find<EventStorage>()`.
///
///     if (storage->values("train_loss", 20).mean().item<double>() > limit) ...
///
/// Records `train_loss`, the mean over the samples of the update, and `learning_rate`, the learning
/// rate of the first param group. `put_scalar` adds custom values. All values are those of this
/// process, and reading them is not collective. Updates do not wait for their loss; each value is
/// an asynchronous scalar, and only reading it may wait. A run that resumes with the same number of
/// processes continues with the saved values.
class LINKBOY_API EventStorage : public Callback {
 public:
  /// The options type for `make<EventStorage>({...})`.
  using Options = EventStorageOptions;

  /// @throws OptionError if `window` is less than 1.
  explicit EventStorage(EventStorageOptions options = {});

  /// Adds a value for the update in progress or, between updates, for the last one.
  /// @param scalar  A number, or a tensor with one element, which may be on any device.
  /// @{
  void put_scalar(std::string_view name, double scalar);
  void put_scalar(std::string_view name, const at::Tensor& scalar);
  /// @}

  /// Returns the names that have values, in alphabetical order.
  std::vector<std::string> names() const;
  /// Whether `name` has values.
  bool contains(std::string_view name) const { return values_.contains(name); }

  /// Returns the most recent value of `name`. May wait for the device.
  /// @throws Error that lists the names if `name` has no values.
  double latest(std::string_view name) const;

  /// Returns the most recent `num_values` values, or all values if there are fewer, as a double
  /// tensor of shape [n] on the CPU, oldest first. Use LibTorch's `mean()`, `median()` or `histc()`
  /// on it. May wait for the device.
  /// @throws Error if `name` has no values (the message lists the names) or `num_values` is less
  ///         than 1.
  at::Tensor values(std::string_view name, int64_t num_values) const;

  /// Returns the update number of each of these values, as an int64 tensor of shape [n]. Updates
  /// are counted from 1, as `Trainer::num_updates` counts them: the values of a skipped update
  /// have the number of the update that follows it. Until the next update, they may have a higher
  /// number.
  /// @throws Error under the same conditions as `values`.
  at::Tensor updates(std::string_view name, int64_t num_values) const;

  void on_training_run_start(Trainer& trainer) override;
  void on_train_step_end(Trainer& trainer, const Batch& batch, const StepOutput& output) override;
  void on_gradients_ready(Trainer& trainer) override;
  void on_train_update_end(Trainer& trainer) override;

  StateDict rank_state_dict() const override;
  void load_rank_state_dict(const StateDict& state) override;

 protected:
  Phase default_phase() const override { return Phase::measure; }

 private:
  struct Value {
    int64_t update;
    AsyncScalar sum;
    double divisor = 1.0;  // `sum` is divided by it

    double get() const { return sum.value() / divisor; }
  };
  using Values = std::deque<Value>;

  void put(std::string_view name, Value value);
  void renumber(int64_t update);
  Values find(std::string_view name, int64_t num_values) const;

  EventStorageOptions options_;
  std::map<std::string, Values, std::less<>> values_;
  int64_t num_updates_ = 0;  // number of the update in progress, or of the last one
  bool is_state_loaded_ = false;
  LossAverage loss_;  // loss of the update in progress
};
/// Makes an EventStorage.
inline constexpr Maker<EventStorage> event_storage{};

}  // namespace linkboy

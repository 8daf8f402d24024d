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

namespace linkboy {

struct EventStorageOptions {
  /// Newest values of each name that are kept. At least 1.
  int64_t window = 1000;

  LINKBOY_FIELDS(window);
};

/// Keeps the newest scalars of a run, update by update, for callbacks and subclasses that react to
/// them: detectron2's and LiBai's EventStorage. Another callback finds it by
/// `trainer.callback_handler().find<EventStorage>()`.
///
///     if (storage->values("train_loss", 20).mean().item<double>() > limit) ...
///
/// Records `train_loss`, the mean over the samples of the update, and `learning_rate` of the first
/// param group. `put_scalar` adds values of your own. The values are those of this process; reading
/// is not collective. No update waits for its loss: a value is on its way from the device until it
/// is read. A resumed run continues with the values of the saved one.
class LINKBOY_API EventStorage : public Callback {
 public:
  /// What `make<EventStorage>({...})` takes.
  using Options = EventStorageOptions;

  /// @throws OptionError if the window is less than 1.
  explicit EventStorage(EventStorageOptions options = {});

  /// Adds a value of the update in progress; between updates, of the last one.
  /// @param scalar  One element; it may live on a device.
  /// @{
  void put_scalar(std::string_view name, double scalar);
  void put_scalar(std::string_view name, const at::Tensor& scalar);
  /// @}

  /// The names that have values, in alphabetical order.
  std::vector<std::string> names() const;
  /// Whether a name has values.
  bool contains(std::string_view name) const;

  /// Returns the newest value. May wait for the device.
  /// @throws Error that lists the names if there is none.
  double latest(std::string_view name) const;

  /// Returns the newest `num_values` values, or as many as there are: double [n] on the CPU, oldest
  /// first. `mean()`, `median()` and `histc()` of LibTorch do the rest. May wait for the device.
  /// @throws Error that lists the names if there is none, or if `num_values` is less than 1.
  at::Tensor values(std::string_view name, int64_t num_values) const;

  /// Returns the updates that these values belong to: int64 [n]. They count from 1, with skipped
  /// ones. @throws Error as `values`.
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
    double divisor = 1.0;  // of the sum

    double get() const { return sum.value() / divisor; }
  };
  using Values = std::deque<Value>;

  void put(std::string_view name, Value value);
  const Values& find(std::string_view name, int64_t num_values) const;

  EventStorageOptions options_;
  std::map<std::string, Values, std::less<>> values_;
  int64_t num_updates_ = 0;  // that have begun
  LossAverage loss_;         // of the update in progress
};

}  // namespace linkboy

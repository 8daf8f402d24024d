#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/fine_tuning/model_freezer.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

/// A range of layer groups that is unfrozen at the start of an epoch. The indexes are those of
/// ModelFreezer.
struct UnfreezeStep {
  /// The epoch of the run history, counted from 1. Must be at least 1.
  int64_t epoch = 1;
  /// One end of the range, inclusive.
  int64_t from_index = -1;
  /// The other end of the range, inclusive.
  int64_t to_index = -1;

  /// Learning rate of the param group that is added to the optimizer for these layers. If not set,
  /// the optimizer's default learning rate. Must be finite and not negative. All parameters of the
  /// group, including biases and norms, get the optimizer's default weight decay. Parameters that
  /// the optimizer already has stay in their group. To set the weight decay per parameter, create
  /// the groups with `ParameterGroupOptions::include_frozen`.
  std::optional<double> lr{};

  /// If true, also puts the modules into training mode. If false, their mode does not change.
  bool set_modules_as_training = true;
};

struct FreezeLayersOptions {
  /// The layer groups to unfreeze, and when. Example of gradual unfreezing from the last layers to
  /// the first: `{{.epoch = 2, .from_index = -2}, {.epoch = 4, .from_index = 0, .lr = 1e-4}}`.
  std::vector<UnfreezeStep> unfreeze_at{};
};

/// Keeps layers that were frozen with `FreezeOptions::set_modules_as_eval` in evaluation mode
/// during training, although the Trainer puts the model into training mode in each epoch. Unfreezes
/// layers at the given epochs.
///
/// Before the first run, adds one param group to the optimizer for each step, with the layers that
/// the step unfreezes. All training states therefore contain the same groups, and a run can resume
/// from any of them. Frozen parameters are not updated, but the scheduler sets the learning rates
/// of their groups from the start of the run. Layers that a step has unfrozen stay unfrozen in
/// later runs.
///
/// Freeze the layers before the Trainer's first run.
class LINKBOY_API FreezeLayers : public Callback {
 public:
  /// The argument types for `make<FreezeLayers>(subject, {...})`.
  /// @{
  using Subject = std::shared_ptr<ModelFreezer>;
  using Options = FreezeLayersOptions;
  /// @}

  /// @throws OptionError if `freezer` is null, an epoch is less than 1, or a learning rate is
  ///         negative or not finite; Error if an index is out of range.
  explicit FreezeLayers(std::shared_ptr<ModelFreezer> freezer, FreezeLayersOptions options = {});

  void on_init_end(Trainer& trainer) override;
  void on_training_run_start(Trainer& trainer) override;
  void on_train_epoch_start(Trainer& trainer) override;
  void on_train_step_start(Trainer& trainer) override;
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  void add_param_groups(Trainer& trainer) const;

  std::shared_ptr<ModelFreezer> freezer_;
  FreezeLayersOptions options_;
  std::vector<int64_t> applied_;  // the steps that were applied in this run or an earlier one
};
/// Makes a FreezeLayers.
inline constexpr Maker<FreezeLayers> freeze_layers{};

}  // namespace linkboy

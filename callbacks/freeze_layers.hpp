#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/fine_tuning/model_freezer.hpp"

namespace linkboy {

/// Layer groups that are unfrozen at the start of an epoch; the indexes are those of ModelFreezer.
struct UnfreezeStep {
  /// The epoch of the run history, from 1.
  int64_t epoch = 1;
  /// One end of the range; it belongs to it.
  int64_t from_index = -1;
  /// The other end; it belongs to the range, too.
  int64_t to_index = -1;

  /// Rate of the param group that the optimizer gets for them; default: the optimizer's. Not
  /// negative. All of them get the weight decay of the optimizer's defaults, biases and norms too.
  /// Parameters that the optimizer has already stay in their group: to give each its own weight
  /// decay, make the groups with `ParameterGroupOptions::include_frozen`.
  std::optional<double> lr{};

  /// Puts the modules into training mode, as UnfreezeOptions.
  bool set_modules_as_training = true;
};

struct FreezeLayersOptions {
  /// Gradual unfreezing, from the last layers to the first: `{{.epoch = 2, .from_index = -2},
  /// {.epoch = 4, .from_index = 0, .lr = 1e-4}}`.
  std::vector<UnfreezeStep> unfreeze_at{};
};

/// Keeps frozen layers in evaluation mode through training, where they were frozen so, although
/// Trainer puts the model into training mode at each epoch; and unfreezes layers at given epochs.
///
/// The param groups of layers to be unfrozen are in the optimizer from the first run on, one for
/// each step, so that training states have the same groups at all times and a run can be resumed
/// from any of them. While frozen, they are not updated; the scheduler moves their learning rates
/// along from the run's start. What a step has unfrozen stays so in later runs.
///
/// Freeze the layers before the Trainer's first run.
class LINKBOY_API FreezeLayers : public Callback {
 public:
  /// What `make<FreezeLayers>(subject, {...})` takes.
  /// @{
  using Subject = std::shared_ptr<ModelFreezer>;
  using Options = FreezeLayersOptions;
  /// @}

  /// @throws Error if the freezer is null, an index out of range, an epoch less than 1, or a
  ///         learning rate negative or not finite.
  explicit FreezeLayers(std::shared_ptr<ModelFreezer> freezer, FreezeLayersOptions options = {});

  void on_init_end(Trainer& trainer) override;
  void on_training_run_start(Trainer& trainer) override;
  void on_train_epoch_start(Trainer& trainer) override;
  void on_train_step_start(Trainer& trainer) override;

 private:
  void add_param_groups(Trainer& trainer) const;

  std::shared_ptr<ModelFreezer> freezer_;
  FreezeLayersOptions options_;
};

}  // namespace linkboy

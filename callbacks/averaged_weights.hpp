#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/export.hpp"
#include "linkboy/model.hpp"

namespace linkboy {

/// An average of a model's weights, kept next to the model: of its floating parameters and buffers,
/// on their devices, in single precision at least. Integer buffers have no average; the model's own
/// stand for them.
///
/// Puts values into the model's tensors and never replaces these, so that optimizers and recorded
/// graphs stay valid. Used by one thread.
class LINKBOY_API AveragedWeights {
 public:
  /// Takes `model`, whose modules must keep their tensors, and forgets the average; or, if it
  /// `continues`, takes that of the state that was loaded before, which also gives the model back
  /// the weights that it trains.
  /// @throws Error if that state is of another model.
  void attach(const Model& model, bool continues = false);
  /// Whether `attach` was called with a model that has tensors.
  bool is_attached() const { return !tensors_.empty(); }

  /// The average becomes the model's weights of now.
  void begin();
  /// Whether there is an average.
  bool has_begun() const { return !averages_.empty(); }

  /// average += weight * (model - average), after `begin`.
  void move_towards_model(double weight);

  /// Puts the average into the model, whose own values wait until `take_out_of_model`. Before
  /// `begin` the model's own weights are the average.
  void put_into_model();
  /// Gives the model back the weights that it trains.
  void take_out_of_model();
  /// Whether the model holds the average now.
  bool is_in_model() const { return !before_.empty(); }

  /// Copies of the averages, with the names and in the order of `Model::state_dict`.
  StateDict values() const;

  /// The average, how far it is, and the weights that wait while it is in the model.
  StateDict state_dict() const;
  /// Takes effect at the next `attach` that `continues`.
  void load_state_dict(const StateDict& state) { loaded_ = state; }
  /// Whether a state was loaded and no `attach` came since.
  bool is_loaded() const { return !loaded_.empty(); }

 private:
  NamedTensors tensors_;              // the model's own
  std::vector<at::Tensor> floating_;  // those of them that are averaged
  std::vector<at::Tensor> averages_;  // of `floating_`
  std::vector<at::Tensor> before_;    // what `tensors_` held before the averages
  StateDict loaded_;
};

/// A callback that averages the model's weights over a run. Each run begins a new average, unless
/// it is resumed.
class LINKBOY_API AveragingCallback : public Callback {
 public:
  /// Returns how often weights were added to the average in this run, before a resume included. The
  /// weights that ModelEma begins with are not counted.
  int64_t num_averaged() const { return num_averaged_; }

  void on_stop_training_error(Trainer& trainer, const StopTraining& stop) override;

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 protected:
  /// Before those that watch metrics of the average, or look at learning rates.
  Phase default_phase() const override { return Phase::average; }

  /// Call it in `on_training_run_start`.
  void start_average(Trainer& trainer);
  /// Moves the average towards the model's weights, or begins it with them, and counts that.
  /// @param weight  That of the model's weights; unset: all that were counted weigh alike.
  void average(std::optional<double> weight = {});
  /// Call it in each `on_train_update_end`. Returns false if the update was skipped.
  bool is_new_update(Trainer& trainer);
  /// Whether the run was stopped on request or by a NaN, so that it may be resumed.
  bool was_cut_short() const { return was_cut_short_; }

  /// The average.
  AveragedWeights weights_;
  /// Updates of the run until now.
  int64_t last_update_ = 0;

 private:
  int64_t num_averaged_ = 0;
  bool was_cut_short_ = false;
};

}  // namespace linkboy

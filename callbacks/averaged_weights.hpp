#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/export.hpp"
#include "linkboy/model.hpp"

namespace linkboy {

/// Keeps an average of a model's weights in addition to the model. It covers the floating-point and
/// complex parameters and buffers, and is stored on their devices in at least single precision.
/// Integer buffers are not averaged; the model's own values are used for them.
///
/// Copies values into the model's tensors and never replaces the tensors, so that optimizers and
/// recorded graphs stay valid. Not thread-safe.
class LINKBOY_API AveragedWeights {
 public:
  /// Attaches to `model` and discards the previous average. Afterwards the model's modules must not
  /// replace their tensors.
  /// @param continues  If true, restores the average of the loaded state. If that state was saved
  ///        while the average was in the model, also restores the trained weights of the model.
  /// @throws Error if the loaded state belongs to another model.
  void attach(const Model& model, bool continues = false);
  /// Whether `attach` was called with a model that has tensors.
  bool is_attached() const { return !tensors_.empty(); }

  /// Begins a new average with the model's current weights.
  void begin();
  /// Whether an average exists.
  bool has_begun() const { return !averages_.empty(); }

  /// Computes average += weight * (model - average). Call `begin` first.
  void move_towards_model(double weight);

  /// Copies the average into the model and stores the trained weights until `take_out_of_model`.
  /// Before `begin`, the model's weights do not change.
  /// @throws Error if the average is already in the model.
  void put_into_model();
  /// Restores the trained weights of the model.
  /// @throws Error if the average is not in the model.
  void take_out_of_model();
  /// Whether the average is in the model now.
  bool is_in_model() const { return !before_.empty(); }

  /// Returns copies of the averages, with the names and in the order of `Model::state_dict`.
  /// Tensors without an average are copied from the model.
  StateDict values() const;

  /// Returns the average and, while it is in the model, the trained weights. Before the next
  /// `attach`, returns a loaded state unchanged.
  StateDict state_dict() const;
  /// Stores a state. The next `attach` restores it if `continues` is true, and discards it
  /// otherwise.
  void load_state_dict(const StateDict& state) { loaded_ = state; }

  /// Returns the part of `state_dict` that can differ between the ranks of a run: the buffers or,
  /// if each rank has its own weights (local SGD), everything. Empty before `attach`.
  StateDict rank_state_dict(bool has_own_weights) const;
  /// Replaces a part of the state that `load_state_dict` has stored.
  void load_rank_state_dict(const StateDict& state);
  /// Whether a state was loaded since the last `attach`.
  bool is_loaded() const { return !loaded_.empty(); }

 private:
  NamedTensors tensors_;              // the model's tensors
  std::set<std::string> parameters_;  // the names of those that are parameters
  NamedTensors floating_;             // those that are averaged
  std::vector<at::Tensor> averages_;  // the averages of `floating_`
  std::vector<at::Tensor> before_;    // the trained values of `tensors_` while `is_in_model()`
  StateDict loaded_;
};

/// Base class of callbacks that average the model's weights over a run. Each run begins a new
/// average, unless it is resumed.
///
/// If a callback of this kind puts its average into the model at the end of the run, it does so
/// when the run ends after its last epoch, at `max_num_updates`, or for any StopReason other than
/// `stop_request` and `nan`. After a stop request (`Trainer::request_stop`, StopOnSignal,
/// TimeLimit), a NaN or an exception, the model keeps its trained weights, and a run that resumes
/// puts the average in at its own end. docs/callbacks.md has the table. If several callbacks put
/// their averages in, the model has that of the last one in the Trainer's order.
class LINKBOY_API AveragingCallback : public Callback {
 public:
  /// Returns how many times weights were added to the average in this run, including those before a
  /// resume. The weights with which ModelEma begins are not counted.
  int64_t num_averaged() const { return num_averaged_; }

  void on_stop_training_error(Trainer& trainer, const StopTraining& stop) override;

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;
  StateDict rank_state_dict() const override;
  void load_rank_state_dict(const StateDict& state) override;

 protected:
  /// Returns `average`, so that the callback is called before callbacks that monitor metrics of the
  /// average or read learning rates.
  Phase default_phase() const override { return Phase::average; }

  /// Attaches to the Trainer's model and, in a resumed run, restores the average. Call it in
  /// `on_training_run_start`.
  void start_average(Trainer& trainer);
  /// Moves the average towards the model's weights, or begins the average with them, and increments
  /// `num_averaged`.
  /// @param weight  Weight of the model's weights in the new average, in [0, 1]. If not set, all
  ///        counted weights have the same weight.
  void average(std::optional<double> weight = {});
  /// Whether the model gets the average at the end of this run. If so, takes the averages of other
  /// callbacks out of the model, so that it has the trained weights. Otherwise, if there is an
  /// average, prints that the model keeps its trained weights. Call it in `on_training_run_end`.
  bool ends_with_average(Trainer& trainer);

  /// The average.
  AveragedWeights weights_;

 private:
  int64_t num_averaged_ = 0;
  bool differs_between_ranks_ = false;
  bool has_own_weights_ = false;
  bool was_cut_short_ = false;
};

}  // namespace linkboy

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/callbacks/averaged_weights.hpp"
#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

class Batch;

struct StochasticWeightAveragingOptions {
  /// Number of updates before the averaging phase. `placeholders::num_updates_per_epoch * 5` starts
  /// the phase with epoch 6. Must be a whole number, not negative, and less than the number of
  /// updates of the run. By default, the phase is the last quarter of the run, and at least its
  /// last update.
  RunExpression start_after =
      min(ceil(placeholders::num_updates * 0.75), placeholders::num_updates - 1);
  /// Adds the weights to the average after every n-th update of the phase. If not set, adds them at
  /// the end of each epoch in the phase, and at the end of a run that ends within an epoch. Must be
  /// at least 1.
  std::optional<int64_t> every_n_updates{};

  /// The learning rate of all param groups in the phase; overrides the scheduler. If not set, the
  /// learning rates are not changed. Must be finite and not negative.
  std::optional<double> swa_lr{};
  /// Number of updates over which the learning rate of each param group changes from its previous
  /// value to `swa_lr`. Must be a whole number and not negative.
  RunExpression num_annealing_updates = 0;
  /// The curve from the previous learning rate to `swa_lr`.
  enum class Annealing { cosine, linear };
  friend LINKBOY_ENUM_NAMES(Annealing, cosine, linear);
  /// The curve of the learning rate during `num_annealing_updates`.
  Annealing annealing = Annealing::cosine;

  /// If true, calls `update_batch_norm` at the end of the run with the batches of an epoch, so that
  /// the statistics of BatchNorm layers fit the averaged weights. Those of a single stream stay in
  /// memory until another run trains on them.
  bool update_batch_norm = true;
  /// The forward pass for `update_batch_norm`. If empty, the model is called with the batch's
  /// `input()`. If the model trains BatchNorm layers, the first micro-step also performs this
  /// forward pass once, in evaluation mode, so that an error is found early.
  std::function<void(Trainer&, const Batch&)> forward{};

  /// If true, evaluates the averaged model at the end of the run. The metrics are named
  /// `swa_model_eval_loss_epoch` and so on.
  bool evaluate = true;

  LINKBOY_FIELDS(start_after, every_n_updates, swa_lr, num_annealing_updates, annealing,
                 update_batch_norm, evaluate);
  LINKBOY_FUNCTIONS(forward);
};

/// Stochastic weight averaging (Izmailov et al., 2018): computes the unweighted mean of the model's
/// weights over the last phase of a run, and puts it into the model at the end of the run.
///
/// AveragingCallback describes after which ends the model keeps its trained weights; it also keeps
/// them if the run ends before the first average. A training state that is saved after the averages
/// are in the model still contains the weights from which training continues. With SaveBestModel,
/// which is called later, set `load_saved_checkpoint` to false; otherwise it replaces the averages.
///
/// With several processes, each process keeps the same average of the parameters; the statistics of
/// BatchNorm layers are computed over the batches of all processes. The statistics of TorchScript
/// models are averaged and not recomputed.
class LINKBOY_API StochasticWeightAveraging : public AveragingCallback {
 public:
  /// The options type for `make<StochasticWeightAveraging>({...})`.
  using Options = StochasticWeightAveragingOptions;

  /// @throws OptionError if an option is out of range.
  explicit StochasticWeightAveraging(StochasticWeightAveragingOptions options = {});

  /// Returns copies of the averages, with the names of `Model::state_dict`. They do not include the
  /// pass over the data for BatchNorm layers.
  /// @throws Error if nothing has been averaged yet.
  [[nodiscard]] StateDict averaged_model_state() const;

  /// @throws Error if `start_after` or `num_annealing_updates` is not valid for the run.
  void on_training_run_start(Trainer& trainer) override;
  /// @throws Error at the first micro-step if the forward pass for BatchNorm layers fails.
  void on_train_step_end(Trainer& trainer, const Batch& batch, const StepOutput& output) override;
  /// Sets the learning rate. Between this event and the update, nothing else changes it.
  void on_gradients_ready(Trainer& trainer) override;
  void on_train_update_end(Trainer& trainer) override;
  /// @throws Any exception of the pass over the data or of the evaluation; the model then
  ///         has the weights of the last update again.
  void on_training_run_end(Trainer& trainer) override;
  void on_exception(Trainer& trainer, std::exception_ptr exception) override;

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  bool is_due(Trainer& trainer) const;
  void check_forward(Trainer& trainer, const Batch& batch) const;
  void restore_lrs(Trainer& trainer);

  StochasticWeightAveragingOptions options_;
  int64_t start_ = 0;
  int64_t num_annealing_ = 0;
  std::vector<double> lrs_before_;  // of each param group, when the phase began
  int64_t num_evaluated_ = 0;       // `num_averaged` of the average that was evaluated
  bool is_ending_ = false;  // the averages are in the model, and the run's end is in progress
  bool is_lr_changed_ = false;
  bool is_forward_unchecked_ = false;
};
/// Makes a StochasticWeightAveraging.
inline constexpr Maker<StochasticWeightAveraging> stochastic_weight_averaging{};

}  // namespace linkboy

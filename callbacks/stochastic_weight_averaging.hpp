#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/callbacks/averaged_weights.hpp"
#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"

namespace linkboy {

class Batch;

struct StochasticWeightAveragingOptions {
  /// Updates of the run before the averaging phase; whole, not negative, less than those of the
  /// run. `placeholders::num_updates_per_epoch * 5` begins it with epoch 6.
  RunExpression start_after = ceil(placeholders::num_updates * 0.75);
  /// Takes the weights into the average after every n-th update of the phase; unset: at the end of
  /// each epoch that ends in it, and of a run that ends within one. At least 1.
  std::optional<int64_t> every_n_updates{};

  /// The learning rate of all groups in the phase, whatever the scheduler says; unset: nothing is
  /// changed. Finite, not negative.
  std::optional<double> swa_lr{};
  /// Updates in which each group's learning rate goes from what it was to `swa_lr`; whole, not
  /// negative.
  RunExpression num_annealing_updates = 0;
  /// The curve on which the learning rate goes to `swa_lr`.
  enum class Annealing { cosine, linear };
  friend LINKBOY_ENUM_NAMES(Annealing, cosine, linear);
  /// See `num_annealing_updates`.
  Annealing annealing = Annealing::cosine;

  /// Passes over the training data once at the end of the run, so that the statistics of BatchNorm
  /// layers are those of the averaged weights.
  bool update_batch_norm = true;
  /// The forward pass for it. Default: the model on the batch's `input()`. If the model trains
  /// batch norms, the first step makes it once in evaluation mode, so that an error comes early.
  std::function<void(Trainer&, const Batch&)> forward{};

  /// Evaluates the averaged model at the end of the run: `swa_model_eval_loss_epoch` and so on.
  bool evaluate = true;

  LINKBOY_FIELDS(start_after, every_n_updates, swa_lr, num_annealing_updates, annealing,
                 update_batch_norm, evaluate);
};

/// Stochastic weight averaging (Izmailov et al., 2018): the equal mean of the weights that the last
/// phase of a run comes by, which the model gets at the run's end.
///
/// Not if the run was stopped on request or by a NaN, or before the first average; one that was
/// stopped otherwise is not evaluated. A training state that is saved after the exchange still has
/// the weights to continue. SaveBestModel, which loads its checkpoint later, must not load one.
///
/// Each of several processes keeps the same average of the parameters; the statistics of BatchNorm
/// are those over the batches of all. Those of TorchScript models are averaged, not updated.
class LINKBOY_API StochasticWeightAveraging : public AveragingCallback {
 public:
  /// What `make<StochasticWeightAveraging>({...})` takes.
  using Options = StochasticWeightAveragingOptions;

  /// @throws Error if an option is out of its range.
  explicit StochasticWeightAveraging(StochasticWeightAveragingOptions options = {});

  /// Copies of the averages, as `Model::state_dict` names them; without the pass over the data.
  /// @throws Error if nothing was averaged yet.
  StateDict averaged_model_state() const;

  /// @throws Error if `start_after` or `num_annealing_updates` does not fit the run.
  void on_training_run_start(Trainer& trainer) override;
  /// @throws Error, at the first step, if `forward` does not fit the model.
  void on_train_step_end(Trainer& trainer, const Batch& batch, const StepOutput& output) override;
  /// Sets the learning rate: here nothing comes between it and the update.
  void on_gradients_ready(Trainer& trainer) override;
  void on_train_update_end(Trainer& trainer) override;
  /// @throws Any exception of the pass over the data or of the evaluation; the model then
  ///         has the weights of the last update again.
  void on_training_run_end(Trainer& trainer) override;
  void on_exception(Trainer& trainer, std::exception_ptr exception) override;

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  bool is_due(Trainer& trainer, bool was_updated) const;
  void check_forward(Trainer& trainer, const Batch& batch) const;
  void restore_lrs(Trainer& trainer);

  StochasticWeightAveragingOptions options_;
  int64_t start_ = 0;
  int64_t num_annealing_ = 0;
  std::vector<double> lrs_before_;  // of each group, when the phase began
  bool is_ending_ = false;          // the averages are in the model, but what follows is not done
  bool is_lr_changed_ = false;
  bool is_forward_unchecked_ = false;
};

}  // namespace linkboy

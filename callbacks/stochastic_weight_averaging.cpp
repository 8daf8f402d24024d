// The last phase of a run: anneals the learning rate, averages the weights, and finally puts the
// mean into the model and recomputes its BatchNorm statistics.

#include "linkboy/callbacks/stochastic_weight_averaging.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "linkboy/callbacks/precise_batch_norm.hpp"
#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {
namespace {

int64_t whole_number(const char* name, const RunExpression& value, const RunConfig& config) {
  const int64_t number = value.resolve_count(config);
  LINKBOY_CHECK(number >= 0, "StochasticWeightAveraging's ", name, " is ", number,
                "; it must not be negative.");
  return number;
}

int64_t num_values(const RunHistory& history) {
  int64_t count = 0;
  for (const std::string& name : history.get_metric_names()) {
    count += history.num_metric_values(name);
  }
  return count;
}

}  // namespace

StochasticWeightAveraging::StochasticWeightAveraging(StochasticWeightAveragingOptions options)
    : options_(std::move(options)) {
  LINKBOY_CHECK_OPTION(options_.every_n_updates.value_or(1) >= 1, "every_n_updates is ",
                       *options_.every_n_updates, "; it must be at least 1.");
  const double lr = options_.swa_lr.value_or(0.0);
  LINKBOY_CHECK_OPTION(std::isfinite(lr) && lr >= 0.0, "swa_lr is ", lr,
                       "; it must be finite and not negative.");
}

StateDict StochasticWeightAveraging::averaged_model_state() const {
  LINKBOY_CHECK(weights_.has_begun(), "no weights have been averaged yet.");
  return weights_.values();
}

void StochasticWeightAveraging::on_training_run_start(Trainer& trainer) {
  const RunConfig& config = trainer.run().config();
  start_ = whole_number("start_after", options_.start_after, config);
  LINKBOY_CHECK(start_ < config.max_num_updates, "StochasticWeightAveraging's start_after is ",
                start_, ", but the run has ", config.max_num_updates,
                " updates; it must begin before the run ends.");
  num_annealing_ = whole_number("num_annealing_updates", options_.num_annealing_updates, config);
  start_average(trainer);
  if (!is_resumed()) {
    lrs_before_.clear();
    num_evaluated_ = 0;
  }
  is_lr_changed_ = !lrs_before_.empty();  // the loaded optimizer has `swa_lr`
  is_forward_unchecked_ = options_.update_batch_norm;
}

void StochasticWeightAveraging::on_train_step_end(Trainer& trainer, const Batch& batch,
                                                  const StepOutput&) {
  if (std::exchange(is_forward_unchecked_, false)) check_forward(trainer, batch);
}

/// Runs the first batch through the model. Otherwise a forward pass that does not fit the model
/// would end the run after its last update.
void StochasticWeightAveraging::check_forward(Trainer& trainer, const Batch& batch) const {
  try {
    try_forward_for_statistics(trainer, batch, options_.forward);
  } catch (const std::exception&) {
    throw Error(c10::str(
        "StochasticWeightAveraging cannot run a training batch through the model to update its "
        "BatchNorm layers at the end of the run: ",
        message_of(std::current_exception()),
        " Set StochasticWeightAveragingOptions::forward, or set update_batch_norm to false."));
  }
}

void StochasticWeightAveraging::on_gradients_ready(Trainer& trainer) {
  const int64_t num_done = trainer.num_updates() - start_;
  if (!options_.swa_lr || num_done < 0) return;
  std::vector<double> lrs = get_param_group_field(*trainer.optimizer(), ParamGroupField::lr);
  // At the start of the phase, all param groups are new.
  for (std::size_t i = lrs_before_.size(); i < lrs.size(); ++i) lrs_before_.push_back(lrs[i]);
  const double t = num_done >= num_annealing_
                       ? 1.0
                       : static_cast<double>(num_done) / static_cast<double>(num_annealing_);
  const bool is_linear = options_.annealing == StochasticWeightAveragingOptions::Annealing::linear;
  const double share = is_linear ? t : (1.0 - std::cos(std::numbers::pi * t)) / 2.0;
  for (std::size_t i = 0; i < lrs.size(); ++i) {
    lrs[i] = *options_.swa_lr * share + lrs_before_[i] * (1.0 - share);
  }
  set_param_group_field(*trainer.optimizer(), ParamGroupField::lr, lrs);
  is_lr_changed_ = true;
}

bool StochasticWeightAveraging::is_due(Trainer& trainer) const {
  const int64_t num_done = trainer.num_updates() - start_;
  if (num_done <= 0) return false;
  if (options_.every_n_updates) {
    return !trainer.was_update_skipped() && num_done % *options_.every_n_updates == 0;
  }
  return trainer.run().micro_step() == trainer.run().config().num_train_batches_per_epoch;
}

void StochasticWeightAveraging::on_train_update_end(Trainer& trainer) {
  if (is_due(trainer)) average();
}

void StochasticWeightAveraging::on_training_run_end(Trainer& trainer) {
  restore_lrs(trainer);
  if (!ends_with_average(trainer)) return;
  // Only now, after states were saved, because a longer run that resumes trains the entire epoch.
  if (trainer.run().is_epoch_cut_short() && !options_.every_n_updates &&
      trainer.num_updates() > start_) {
    average();
  }
  if (num_averaged() == 0) return;
  weights_.put_into_model();
  is_ending_ = true;
  if (options_.update_batch_norm) update_batch_norm(trainer, options_.forward);
  // A run that resumes after its end has the metrics already.
  if (options_.evaluate && trainer.run().eval_dataloader() && num_evaluated_ != num_averaged()) {
    const int64_t before = num_values(trainer.run_history());
    bool is_complete = false;
    try {
      trainer.evaluate_now({.metric_prefix = "swa_model_"});
      is_complete = true;
    } catch (const StopTraining&) {  // NOLINT(bugprone-empty-catch): the run ends now anyway
    }
    // A stop after the last set leaves the metrics; an earlier one removes those of the others.
    if (is_complete || num_values(trainer.run_history()) > before) {
      num_evaluated_ = num_averaged();
    } else {
      trainer.print("The evaluation of the averaged model was stopped");
    }
  }
  is_ending_ = false;
}

void StochasticWeightAveraging::on_exception(Trainer& trainer, std::exception_ptr) {
  restore_lrs(trainer);
  if (std::exchange(is_ending_, false)) weights_.take_out_of_model();
}

/// Restores the learning rates, so that a later run does not begin with `swa_lr`.
void StochasticWeightAveraging::restore_lrs(Trainer& trainer) {
  if (!std::exchange(is_lr_changed_, false)) return;
  std::vector<double> lrs = get_param_group_field(*trainer.optimizer(), ParamGroupField::lr);
  std::copy_n(lrs_before_.begin(), std::min(lrs_before_.size(), lrs.size()), lrs.begin());
  set_param_group_field(*trainer.optimizer(), ParamGroupField::lr, lrs);
  if (Scheduler* scheduler = trainer.scheduler()) scheduler->start();  // it may set other fields
}

StateDict StochasticWeightAveraging::state_dict() const {
  StateDict state = AveragingCallback::state_dict();
  state.set("lrs_before", lrs_before_);
  state.set("num_evaluated", num_evaluated_);
  return state;
}

void StochasticWeightAveraging::load_state_dict(const StateDict& state) {
  AveragingCallback::load_state_dict(state);
  lrs_before_ = state.get_doubles("lrs_before");
  num_evaluated_ = state.get_int("num_evaluated");
}

}  // namespace linkboy

// Updates the moving average, evaluates it in place of the weights, and saves the best one.

#include "linkboy/callbacks/model_ema.hpp"

#include <algorithm>
#include <utility>

#include "linkboy/accelerator/main_process.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {

ModelEma::ModelEma(ModelEmaOptions options)
    : options_(std::move(options)),
      metric_(options_.monitor, options_.greater_is_better),
      kept_({.max_files = 1,
             .metric = options_.monitor,
             .greater_is_better = options_.greater_is_better}) {
  LINKBOY_CHECK_OPTION(options_.decay >= 0.0 && options_.decay < 1.0, "ModelEma's decay is ",
                       options_.decay, "; it must be at least 0 and below 1.");
  LINKBOY_CHECK_OPTION(options_.start_after >= 0, "ModelEma's start_after is ",
                       options_.start_after, "; it must not be negative.");
  LINKBOY_CHECK_OPTION(options_.every_n_updates >= 1, "ModelEma's every_n_updates is ",
                       options_.every_n_updates, "; it must be at least 1.");
}

void ModelEma::swap_in(Trainer& trainer) {
  // A state may have been loaded only for an evaluation.
  if (!weights_.is_attached() && weights_.is_loaded()) weights_.attach(trainer.model(), true);
  LINKBOY_CHECK(weights_.is_attached(), "there is no average of the model yet; train first.");
  weights_.put_into_model();
}

void ModelEma::swap_out(Trainer&) { weights_.take_out_of_model(); }

StateDict ModelEma::averaged_model_state() const {
  LINKBOY_CHECK(weights_.is_attached(), "there is no average of the model yet; train first.");
  return weights_.values();
}

double ModelEma::decay_now() const {
  if (!options_.warmup) return options_.decay;
  const auto n = static_cast<double>(num_averaged());
  return std::min(options_.decay, (1.0 + n) / (10.0 + n));
}

void ModelEma::on_training_run_start(Trainer& trainer) {
  if (metric_.start_run(trainer, is_resumed(), /*reset=*/true)) kept_.clear();
  if (options_.path) {
    run_on_main_process(trainer.accelerator(), [&] { check_writable(*options_.path); });
    kept_.take_over(trainer, "the best average", [&](const auto&) { return *options_.path; });
  }
  start_average(trainer);
  if (!weights_.has_begun() && trainer.num_updates() >= options_.start_after) weights_.begin();
}

void ModelEma::on_train_update_end(Trainer& trainer) {
  const int64_t update = trainer.num_updates();
  if (trainer.was_update_skipped() || update < options_.start_after) return;
  if (!weights_.has_begun()) {
    weights_.begin();
  } else if ((update - options_.start_after) % options_.every_n_updates == 0) {
    average(1.0 - decay_now());
  }
}

void ModelEma::on_training_run_epoch_end(Trainer& trainer) {
  if (options_.evaluate && trainer.run().is_epoch_evaluated()) evaluate(trainer);
  if (options_.path) save_if_best(trainer);
}

void ModelEma::evaluate(Trainer& trainer) {
  trainer.print("Running evaluation on EMA model");
  swap_in(trainer);
  try {
    trainer.evaluate_now({.metric_prefix = "ema_model_"});
  } catch (...) {
    swap_out(trainer);
    throw;
  }
  swap_out(trainer);
}

void ModelEma::save_if_best(Trainer& trainer) {
  KeptCheckpoints::File file{trainer.run_history().current_epoch(), *options_.path};
  if (options_.evaluate && trainer.run().eval_dataloader()) {
    file.value = metric_.new_value(trainer);
    if (!file.value || !kept_.would_keep(*file.value)) return;
  }
  kept_.save(trainer, "the average of the weights", file, [&](StateDict entries) {
    // With zero_stage 3, all processes gather the parameters for it.
    const Accelerator& accelerator = trainer.accelerator();
    if (!accelerator.is_main_process() && !accelerator.has_distributed_parameters()) return;
    const StateDict weights = weights_.values();
    if (!accelerator.is_main_process()) return;
    entries.set("model_state_dict", weights);
    write_checkpoint(file.path, entries);
  });
}

void ModelEma::on_training_run_end(Trainer& trainer) {
  if (!options_.apply_at_end || weights_.is_in_model()) return;
  if (ends_with_average(trainer)) swap_in(trainer);
}

StateDict ModelEma::state_dict() const {
  StateDict state = AveragingCallback::state_dict();
  for (const auto& [key, value] : metric_.state_dict().entries()) state.set(key, value);
  return state;
}

StateDict ModelEma::file_state_dict() const { return kept_.state_dict(); }

void ModelEma::load_state_dict(const StateDict& state) {
  KeptCheckpoints kept = kept_;
  kept.clear();  // a program can load `state_dict` alone
  if (state.contains("files")) {
    kept.load_state_dict(state, options_.path.value_or("").parent_path());
  }
  metric_.load_state_dict(state);
  AveragingCallback::load_state_dict(state);
  kept_ = std::move(kept);
}

}  // namespace linkboy

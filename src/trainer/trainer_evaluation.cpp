// Trainer's evaluations.

#include <ATen/ATen.h>

#include <algorithm>

#include "accelerator/share_between_ranks.hpp"
#include "linkboy/error.hpp"
#include "linkboy/profiling/profiler_range.hpp"
#include "trainer/run_progress.hpp"
#include "trainer/run_setup.hpp"
#include "trainer/stop_control.hpp"
#include "trainer/trainer_implementation.hpp"

namespace linkboy {

/// Restores the outer evaluation when an inner one ends, also after an exception.
class Trainer::Implementation::EvaluationScope {
 public:
  explicit EvaluationScope(Implementation& trainer)
      : trainer_(trainer),
        evaluation_(trainer.evaluation_),
        loader_(trainer.eval_dataloader_),
        losses_(trainer.eval_loss_) {}
  ~EvaluationScope() {
    trainer_.eval_dataloader_ = std::move(loader_);
    // The losses of a finished evaluation stay readable, unless an outer evaluation is in progress.
    if (evaluation_.is_in_progress) trainer_.eval_loss_ = std::move(losses_);
    trainer_.evaluation_ = std::move(evaluation_);
  }
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  Implementation& trainer_;
  Evaluation evaluation_;
  std::shared_ptr<DataLoader> loader_;
  Losses losses_;
};

/// Sets aside the parts of the previous training run that an evaluation run replaces, because that
/// training run may be saved afterwards.
class Trainer::Implementation::EvaluationRunScope {
 public:
  explicit EvaluationRunScope(Implementation& trainer) : trainer_(trainer) {
    auto history = std::make_shared<InMemoryRunHistory>();
    history->set_metric_name_prefix(trainer.run_history_->metric_name_prefix());
    run_history_ = std::move(history);
    exchange();
  }
  ~EvaluationRunScope() { exchange(); }
  EvaluationRunScope(const EvaluationRunScope&) = delete;
  EvaluationRunScope& operator=(const EvaluationRunScope&) = delete;

 private:
  void exchange() noexcept {
    std::swap(progress_, trainer_.progress_);
    std::swap(run_history_, trainer_.run_history_);
    std::swap(train_dataloader_, trainer_.train_dataloader_);
    std::swap(resumed_from_, trainer_.resumed_from_);
  }

  Implementation& trainer_;
  RunProgress progress_ = RunProgress::of_evaluation();
  std::shared_ptr<RunHistory> run_history_;
  std::shared_ptr<DataLoader> train_dataloader_;
  std::filesystem::path resumed_from_;
};

Metrics Trainer::evaluate(const EvaluateOptions& options) {
  check_evaluate_options(options);
  Metrics metrics;
  impl_->guarded(options.callbacks, [&] {
    impl_->check_same_evaluation_on_all_ranks();
    impl_->share_loader_seed();
    impl_->evaluation_sets_ = {{.loader = create_eval_dataloader(options)}};
    const Implementation::EvaluationRunScope back_to_training_run(*impl_);
    impl_->callback_handler_.begin_run();
    impl_->result_ = {};
    impl_->prepare_dataloaders();
    impl_->run_config_ = create_run_config({.num_epochs = 1});
    impl_->until_stopped([&] {
      evaluation_run_start();
      fire(&Callback::on_evaluation_run_start);
      impl_->run_evaluations("evaluation_loss");
    });
    evaluation_run_end();
    impl_->call_all(&Callback::on_evaluation_run_end);
    for (const auto& name : impl_->run_history_->get_metric_names()) {
      metrics.emplace(name, impl_->run_history_->get_latest_metric(name));
    }
  });
  return metrics;
}

void Trainer::Implementation::run_evaluations(std::string_view loss_name) {
  const EvaluationScope back_to_before(*this);
  for (const EvaluationSet& set : evaluation_sets_) {
    const bool uses_intermediate_loader =
        evaluation_.uses_intermediate_loader && set.intermediate_loader;
    eval_dataloader_ = uses_intermediate_loader ? set.intermediate_loader : set.loader;
    evaluation_.is_in_progress = true;
    evaluation_.set_name = set.name;
    trainer_.run_eval_epoch(*eval_dataloader_, loss_name);
  }
}

void Trainer::evaluate_now(const IntermediateEvaluation& extra) {
  LINKBOY_CHECK(!impl_->evaluation_sets_.empty(),
                "there is no evaluation data to evaluate now; pass an eval_dataset or an "
                "eval_dataloader to train.");
  const Implementation::EvaluationScope back_to_before(*impl_);
  impl_->evaluation_.is_extra = true;
  impl_->evaluation_.uses_intermediate_loader = extra.uses_intermediate_loader;
  impl_->evaluation_.prefix = extra.metric_prefix;
  try {
    impl_->run_evaluations(extra.loss_name);
  } catch (...) {
    // A resumed run makes up for everything that would have followed the evaluation.
    impl_->progress_.reopen_end_of_epoch();
    impl_->is_cut_short_ = true;
    throw;
  }
}

void Trainer::run_eval_epoch(DataLoader& loader, std::string_view metric_name) {
  const ModelModeGuard restore_modes(impl_->model_, impl_->registered_modules_);
  const at::NoGradGuard no_grad;
  impl_->accelerator_->broadcast_buffers();
  eval_epoch_start();
  impl_->reset(impl_->eval_loss_);
  fire(&Callback::on_eval_epoch_start);
  impl_->for_each_batch(loader, impl_->run_history_->current_epoch(),
                        [this](const Batch& batch) { impl_->eval_step(batch); });
  eval_epoch_end();
  impl_->record(metric_name, impl_->eval_loss_);
  fire(&Callback::on_eval_epoch_end);
}

/// Some processes may have fewer batches than others. They wait in join_uneven_loop, which answers
/// gather_for_metrics but does not take part in agreements.
void Trainer::Implementation::for_each_batch(DataLoader& loader, int64_t epoch,
                                             c10::function_ref<void(const Batch&)> step) {
  const auto batches = loader.iterate(epoch);
  // A single process does not need the length, which may be unknown for a stream.
  const bool is_shared = stop_.is_shared();
  const int64_t num_rounds = is_shared ? -max_over_ranks(-loader.size()) : 0;
  RoundAgreement stop(stop_);
  auto batch = batches->next();
  for (int64_t round = 0; batch || round < num_rounds; ++round) {
    if (!is_shared) stop_.sync();
    LINKBOY_CHECK(batch || round >= num_rounds, "the loader ended after ", round,
                  " batches, but its size() is ", loader.size(),
                  ". With several processes, the loader must return all of them. Set "
                  "StreamOptions::batches_per_epoch to the stream's number of batches.");
    if (round < num_rounds) stop.begin_round(/*is_last=*/round + 1 == num_rounds);
    if (!batch) continue;
    step(*batch);
    batch = batches->next();
  }
  accelerator_->join_uneven_loop();
}

void Trainer::Implementation::eval_step(const Batch& batch) {
  trainer_.fire(&Callback::on_eval_step_start);
  const StepOutput output = [&] {
    const ProfilerRange range("eval_step");
    const AutocastScope autocast = accelerator_->autocast();
    return trainer_.calculate_eval_batch_loss(batch);
  }();
  track(eval_loss_, output, /*are_all_needed=*/false);
  trainer_.fire(&Callback::on_eval_step_end, batch, output);
}

}  // namespace linkboy

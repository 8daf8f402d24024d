// Trainer's evaluations.

#include <ATen/ATen.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "accelerator/share_between_ranks.hpp"
#include "data/checked_iterator.hpp"
#include "linkboy/error.hpp"
#include "linkboy/profiling/profiler_range.hpp"
#include "trainer/run_checks.hpp"
#include "trainer/run_progress.hpp"
#include "trainer/stop_control.hpp"
#include "trainer/trainer_implementation.hpp"

namespace linkboy {

/// Restores the outer evaluation when an inner one ends, also after an exception.
class Trainer::Implementation::EvaluationScope {
 public:
  explicit EvaluationScope(Implementation& trainer)
      : run_(trainer.run_),
        evaluation_(run_.evaluation),
        loader_(run_.eval_dataloader),
        losses_(run_.eval_loss) {}
  ~EvaluationScope() {
    run_.eval_dataloader = std::move(loader_);
    // The losses of a finished evaluation stay readable, unless an outer evaluation is in progress.
    if (evaluation_.is_in_progress) run_.eval_loss = std::move(losses_);
    run_.evaluation = std::move(evaluation_);
  }
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  Run& run_;
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
    Run& run = trainer_.run_;
    std::swap(progress_, run.progress);
    std::swap(run_history_, trainer_.run_history_);
    std::swap(train_dataloader_, run.train_dataloader);
    std::swap(resumed_from_, run.resumed_from);
    std::swap(after_last_update_, run.after_last_update);
  }

  Implementation& trainer_;
  RunProgress progress_ = RunProgress::of_evaluation();
  std::shared_ptr<RunHistory> run_history_;
  std::shared_ptr<DataLoader> train_dataloader_;
  std::filesystem::path resumed_from_;
  std::optional<RunParts> after_last_update_;
};

Metrics Trainer::evaluate(const EvaluateOptions& options) {
  check_evaluate_options(options);
  Metrics metrics;
  impl_->run_with_callbacks(options.callbacks, [&] {
    impl_->check_same_evaluation_on_all_ranks();
    impl_->share_loader_seed();
    impl_->run_.evaluation_sets = {{.loader = impl_->create_eval_dataloader(options)}};
    const Implementation::EvaluationRunScope back_to_training_run(*impl_);
    impl_->callback_handler_.begin_run();
    impl_->run_.result = {};
    impl_->prepare_dataloaders();
    impl_->run_.config = create_run_config({.num_epochs = 1});
    impl_->run_until_stop([&] {
      evaluation_run_start();
      fire<Event::evaluation_run_start>();
      impl_->run_evaluations("evaluation_loss");
    });
    impl_->end_run(&Trainer::evaluation_run_end, &Callback::on_evaluation_run_end);
    for (const auto& name : impl_->run_history_->get_metric_names()) {
      metrics.emplace(name, impl_->run_history_->get_latest_metric(name));
    }
  });
  return metrics;
}

void Trainer::Implementation::run_evaluations(std::string_view loss_name) {
  const EvaluationScope back_to_before(*this);
  for (const EvaluationSet& set : run_.evaluation_sets) {
    const bool uses_intermediate_loader =
        run_.evaluation.uses_intermediate_loader && set.intermediate_loader;
    run_.eval_dataloader = uses_intermediate_loader ? set.intermediate_loader : set.loader;
    run_.evaluation.is_in_progress = true;
    run_.evaluation.set_name = set.name;
    trainer_.run_eval_epoch(*run_.eval_dataloader, loss_name);
  }
}

void Trainer::evaluate_now(const IntermediateEvaluation& extra) {
  LINKBOY_CHECK(!impl_->run_.evaluation_sets.empty(),
                "there is no evaluation data to evaluate now; pass an eval_dataset or an "
                "eval_dataloader to train.");
  const Implementation::EvaluationScope back_to_before(*impl_);
  const bool is_inner = impl_->run_.evaluation.is_in_progress;
  impl_->run_.evaluation.is_extra = true;
  impl_->run_.evaluation.uses_intermediate_loader = extra.uses_intermediate_loader;
  impl_->run_.evaluation.prefix = extra.metric_prefix;
  RunHistory& history = *impl_->run_history_;
  std::map<std::string, int64_t> num_values;
  for (const std::string& name : history.get_metric_names()) {
    num_values[name] = history.num_metric_values(name);
  }
  const int64_t outer = std::exchange(impl_->run_.num_evaluated_sets, 0);
  const auto back = c10::make_scope_exit([&] {
    if (is_inner) impl_->run_.num_evaluated_sets = outer;
  });
  try {
    impl_->run_evaluations(extra.loss_name);
  } catch (...) {
    // A resumed run repeats the evaluation of all sets, and everything that would have followed.
    if (impl_->run_.num_evaluated_sets < std::ssize(impl_->run_.evaluation_sets)) {
      for (const std::string& name : history.get_metric_names()) {
        history.shorten_metric(name, num_values[name]);
      }
    }
    impl_->run_.progress.reopen_end_of_epoch();
    impl_->run_.is_cut_short = true;
    throw;
  }
}

void Trainer::run_eval_epoch(DataLoader& loader, std::string_view metric_name) {
  const ModelModeGuard restore_modes(impl_->model_, impl_->registered_modules_);
  const at::NoGradGuard no_grad;
  impl_->accelerator_->broadcast_buffers();
  eval_epoch_start();
  impl_->reset(impl_->run_.eval_loss);
  std::vector<const Callback*>
      open;  // callbacks for which the evaluation has started and not ended
  try {
    call_callbacks([&](Callback& callback) {
      open.push_back(&callback);
      callback.on_eval_epoch_start(*this);
    });
    leave_together();
    impl_->for_each_batch(loader, impl_->run_history_->current_epoch(),
                          [this](const Batch& batch) { impl_->eval_step(batch); });
    eval_epoch_end();
    impl_->record(metric_name, impl_->run_.eval_loss);
    ++impl_->run_.num_evaluated_sets;
    call_callbacks([&](Callback& callback) {
      callback.on_eval_epoch_end(*this);
      std::erase(open, &callback);
    });
    leave_together();
  } catch (...) {
    impl_->callback_handler_.for_each([&](Callback& callback) {
      if (std::find(open.begin(), open.end(), &callback) == open.end()) return;
      try {
        callback.on_eval_epoch_interrupted(*this);
      } catch (...) {  // NOLINT(bugprone-empty-catch): the first exception is the one that counts
      }
    });
    throw;
  }
}

/// Some processes may have fewer batches than others. They wait in join_uneven_loop, which answers
/// gather_for_metrics but does not take part in agreements.
void Trainer::Implementation::for_each_batch(DataLoader& loader, int64_t epoch,
                                             c10::function_ref<void(const Batch&)> step) {
  const auto batches = checked(loader.iterate(epoch));
  // A single process does not need the length, which may be unknown for a stream.
  const bool is_shared = stop_.is_shared();
  const int64_t num_rounds = is_shared ? -max_over_ranks(-loader.size()) : 0;
  // In a training run, only a user's request interrupts an evaluation: the other reasons end the
  // training, which is not affected by when its evaluation ends.
  const auto least = claim_ ? StopUrgency::request : StopUrgency::ends_training;
  RoundAgreement stop(stop_, least);
  auto batch = batches->next();
  for (int64_t round = 0; batch || round < num_rounds; ++round) {
    if (!is_shared) stop_.sync(least);
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
  trainer_.fire<Event::eval_step_start>();
  const StepOutput output = [&] {
    const ProfilerRange range("eval_step");
    const AutocastScope autocast = accelerator_->autocast();
    return with_batch_in_errors(batch, [&] { return trainer_.calculate_eval_batch_loss(batch); });
  }();
  track(run_.eval_loss, output, /*are_all_needed=*/false);
  trainer_.fire<Event::eval_step_end>(batch, output);
}

void Trainer::eval_epoch_start() {
  impl_->model_.eval();
  for (const auto& module : impl_->registered_modules_) module->eval();
}

StepOutput Trainer::calculate_eval_batch_loss(const Batch& batch) {
  return impl_->calculate_batch_loss(batch);
}

}  // namespace linkboy

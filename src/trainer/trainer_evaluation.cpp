// Trainer's evaluations.

#include <ATen/ATen.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "data/checked_iterator.hpp"
#include "distributed/agreement.hpp"
#include "linkboy/error.hpp"
#include "linkboy/profiling/profiler_range.hpp"
#include "trainer/batch_in_errors.hpp"
#include "trainer/run_checks.hpp"
#include "trainer/run_scope.hpp"
#include "trainer/run_setup.hpp"

namespace linkboy {

/// An evaluation, which may be inside of another one. The outer one is back when it ends, also
/// after an exception.
class Trainer::Implementation::EvaluationScope {
 public:
  explicit EvaluationScope(Implementation& trainer)
      : trainer_(trainer),
        run_(*trainer.run_),
        outer_(run_.evaluations.current),
        outer_loader_(run_.data.eval_dataloader),
        outer_loss_(run_.eval_loss) {}
  ~EvaluationScope() {
    run_.data.eval_dataloader = std::move(outer_loader_);
    // The losses of a finished evaluation stay readable, unless an outer evaluation is in progress.
    if (outer_.is_in_progress) run_.eval_loss = std::move(outer_loss_);
    run_.evaluations.current = std::move(outer_);
  }
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

  /// Evaluates all sets of the run.
  void run_all(std::string_view loss_name) {
    Evaluation& current = run_.evaluations.current;
    for (const EvaluationSet& set : run_.data.evaluation_sets) {
      const bool is_other = current.uses_intermediate_loader && set.intermediate_loader;
      run_.data.eval_dataloader = is_other ? set.intermediate_loader : set.loader;
      current.is_in_progress = true;
      current.set_name = set.name;
      trainer_.trainer_.run_eval_epoch(*run_.data.eval_dataloader, loss_name);
    }
  }

 private:
  Implementation& trainer_;
  RunState& run_;
  Evaluation outer_;
  std::shared_ptr<DataLoader> outer_loader_;
  LossMeans outer_loss_;
};

Metrics Trainer::evaluate(const EvaluateOptions& options) {
  check_evaluate_options(options);
  Metrics metrics;
  auto history = std::make_shared<InMemoryRunHistory>();
  history->set_metric_name_prefix(run_history().metric_name_prefix());
  const Implementation::RunScope back_to_training_run(*impl_, history);
  impl_->run_with_callbacks(options.callbacks, [&] {
    Implementation::RunSetUp(*impl_).set_up_evaluation(options);
    impl_->run_until_stop([&] {
      evaluation_run_start();
      fire<Event::evaluation_run_start>();
      Implementation::EvaluationScope(*impl_).run_all("evaluation_loss");
    });
    impl_->end_run(&Trainer::evaluation_run_end, &Callback::on_evaluation_run_end);
    for (const auto& name : history->get_metric_names()) {
      metrics.emplace(name, history->get_latest_metric(name));
    }
  });
  return metrics;
}

void Trainer::evaluate_epoch() {
  RunState& run = *impl_->run_;
  if (!run.progress.is_evaluation_due()) return;
  Implementation::EvaluationScope(*impl_).run_all("eval_loss_epoch");
  run.evaluations.is_epoch_evaluated = !run.data.evaluation_sets.empty();
}

void Trainer::evaluate_now(const IntermediateEvaluation& extra) {
  RunState& run = *impl_->run_;
  LINKBOY_CHECK(!run.data.evaluation_sets.empty(),
                "there is no evaluation data to evaluate now; pass an eval_dataset or an "
                "eval_dataloader to train.");
  Implementation::EvaluationScope evaluation(*impl_);
  RunEvaluations& evaluations = run.evaluations;
  const bool is_inner = evaluations.current.is_in_progress;
  evaluations.current.is_extra = true;
  evaluations.current.uses_intermediate_loader = extra.uses_intermediate_loader;
  evaluations.current.prefix = extra.metric_prefix;
  RunHistory& history = *impl_->run_->history;
  std::map<std::string, int64_t> num_values;
  for (const std::string& name : history.get_metric_names()) {
    num_values[name] = history.num_metric_values(name);
  }
  const int64_t outer = std::exchange(evaluations.num_evaluated_sets, 0);
  const auto back = c10::make_scope_exit([&] {
    if (is_inner) evaluations.num_evaluated_sets = outer;
  });
  try {
    evaluation.run_all(extra.loss_name);
  } catch (...) {
    // A resumed run repeats the evaluation of all sets, and everything that would have followed.
    if (evaluations.num_evaluated_sets < std::ssize(run.data.evaluation_sets)) {
      for (const std::string& name : history.get_metric_names()) {
        history.shorten_metric(name, num_values[name]);
      }
    }
    run.progress.reopen_end_of_epoch();
    evaluations.is_cut_short = true;
    throw;
  }
}

void Trainer::run_eval_epoch(DataLoader& loader, std::string_view metric_name) {
  RunState& run = *impl_->run_;
  const ModelModeGuard restore_modes = impl_->modules_.restore_modes();
  const at::NoGradGuard no_grad;
  impl_->accelerator_->broadcast_buffers();
  eval_epoch_start();
  if (run.eval_executor) run.eval_executor->begin_epoch();
  run.eval_loss = LossMeans(impl_->tracked_losses_);
  std::vector<const Callback*>
      open;  // callbacks for which the evaluation has started and not ended
  try {
    call_callbacks([&](Callback& callback) {
      open.push_back(&callback);
      callback.on_eval_epoch_start(*this);
    });
    leave_together();
    impl_->for_each_batch(loader, impl_->run_->history->current_epoch(), [&](const Batch& batch) {
      bool& is_in_step = run.evaluations.is_in_step;
      const bool outer = std::exchange(is_in_step, true);
      const auto back = c10::make_scope_exit([&] { is_in_step = outer; });
      eval_step(batch);
    });
    eval_epoch_end();
    run.eval_loss.record(run_history(), accelerator(), impl_->run_->metric_prefix(), metric_name);
    ++run.evaluations.num_evaluated_sets;
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
  const int64_t num_rounds = is_shared ? -max_over_ranks(accelerator_->world(), -loader.size()) : 0;
  // A process whose batches have ended does not take part when others gather parameters for theirs.
  const bool gathers = is_shared && accelerator_->has_distributed_parameters();
  const bool is_uneven =
      gathers && max_over_ranks(accelerator_->world(), loader.size()) > num_rounds;
  const std::shared_ptr<void> whole = is_uneven ? modules_.whole() : nullptr;
  // In a training run, only a user's request interrupts an evaluation: the other reasons end the
  // training, which is not affected by when its evaluation ends.
  const auto least = is_in_training_call() ? StopUrgency::request : StopUrgency::ends_training;
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

void Trainer::eval_step(const Batch& batch) {
  fire<Event::eval_step_start>();
  const StepOutput output = eval_forward(batch);
  fire<Event::eval_step_end>(batch, output);
}

StepOutput Trainer::eval_forward(const Batch& batch) {
  LINKBOY_CHECK(impl_->run_->evaluations.is_in_step,
                "eval_forward was called outside of eval_step. Call it in eval_step; elsewhere "
                "call calculate_eval_batch_loss.");
  StepExecutor* const executor = impl_->run_->eval_executor.get();
  StepOutput output = executor != nullptr ? executor->run(batch, {}) : impl_->eval_pass(batch);
  impl_->run_->eval_loss.track_eval(output);
  return output;
}

StepOutput Trainer::Implementation::eval_pass(const Batch& batch) {
  const ProfilerRange range("eval_step");
  const AutocastScope autocast = accelerator_->autocast();
  return with_batch_in_errors(batch, modules_.model(),
                              [&] { return trainer_.calculate_eval_batch_loss(batch); });
}

void Trainer::eval_epoch_start() { impl_->modules_.eval(); }

StepOutput Trainer::calculate_eval_batch_loss(const Batch& batch) {
  return impl_->calculate_batch_loss(batch);
}

}  // namespace linkboy

// Trainer's evaluations and predictions.

#include <ATen/ATen.h>

#include <algorithm>

#include "accelerator/share_between_ranks.hpp"
#include "data/batch_fetcher.hpp"
#include "distributed/ivalue_bytes.hpp"
#include "linkboy/error.hpp"
#include "linkboy/profiling/profiler_range.hpp"
#include "linkboy/trainer.hpp"
#include "trainer/run_progress.hpp"
#include "trainer/run_setup.hpp"
#include "trainer/stop_control.hpp"

namespace linkboy {

/// Returns to the evaluation in progress when one within it ends, in whatever way.
class Trainer::EvaluationScope {
 public:
  explicit EvaluationScope(Trainer& trainer)
      : trainer_(trainer),
        evaluation_(trainer.evaluation_),
        loader_(trainer.eval_dataloader_),
        losses_(trainer.eval_loss_) {}
  ~EvaluationScope() {
    trainer_.eval_dataloader_ = std::move(loader_);
    // The losses of a finished evaluation stay to be read, unless another one goes on.
    if (evaluation_.is_in_progress) trainer_.eval_loss_ = std::move(losses_);
    trainer_.evaluation_ = std::move(evaluation_);
  }
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  Trainer& trainer_;
  Evaluation evaluation_;
  std::shared_ptr<DataLoader> loader_;
  Losses losses_;
};

/// Puts aside what an evaluation run replaces of the training run before it, which may be saved
/// after it.
class Trainer::EvaluationRunScope {
 public:
  explicit EvaluationRunScope(Trainer& trainer) : trainer_(trainer) {
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
    std::swap(progress_, *trainer_.progress_);
    std::swap(run_history_, trainer_.run_history_);
    std::swap(train_dataloader_, trainer_.train_dataloader_);
    std::swap(resumed_from_, trainer_.resumed_from_);
  }

  Trainer& trainer_;
  RunProgress progress_ = RunProgress::of_evaluation();
  std::shared_ptr<RunHistory> run_history_;
  std::shared_ptr<DataLoader> train_dataloader_;
  std::filesystem::path resumed_from_;
};

Metrics Trainer::evaluate(const EvaluateOptions& options) {
  check_evaluate_options(options);
  Metrics metrics;
  guarded([&] {
    check_same_evaluation_on_all_ranks();
    share_loader_seed();
    evaluation_sets_ = {{.loader = create_eval_dataloader(options)}};
    const EvaluationRunScope back_to_training_run(*this);
    callback_handler_.begin_run();
    result_ = {};
    prepare_dataloaders();
    run_config_ = create_run_config({.num_epochs = 1});
    until_stopped([&] {
      evaluation_run_start();
      fire_together(&Callback::on_evaluation_run_start);
      run_evaluations("evaluation_loss");
    });
    evaluation_run_end();
    call_all(&Callback::on_evaluation_run_end);
    for (const auto& name : run_history_->get_metric_names()) {
      metrics.emplace(name, run_history_->get_latest_metric(name));
    }
  });
  return metrics;
}

void Trainer::run_evaluations(std::string_view loss_name) {
  const EvaluationScope back_to_before(*this);
  for (const EvaluationSet& set : evaluation_sets_) {
    const bool uses_intermediate_loader =
        evaluation_.uses_intermediate_loader && set.intermediate_loader;
    eval_dataloader_ = uses_intermediate_loader ? set.intermediate_loader : set.loader;
    evaluation_.is_in_progress = true;
    evaluation_.set_name = set.name;
    run_eval_epoch(*eval_dataloader_, loss_name);
  }
}

void Trainer::evaluate_now(const IntermediateEvaluation& extra) {
  LINKBOY_CHECK(!evaluation_sets_.empty(),
                "there is no evaluation data to evaluate now; give train an eval_dataset.");
  const EvaluationScope back_to_before(*this);
  evaluation_.is_extra = true;
  evaluation_.uses_intermediate_loader = extra.uses_intermediate_loader;
  evaluation_.prefix = extra.metric_prefix;
  try {
    run_evaluations(extra.loss_name);
  } catch (...) {
    // What would have followed from the evaluation is left to a resumed run.
    progress_->reopen_end_of_epoch();
    is_cut_short_ = true;
    throw;
  }
}

void Trainer::run_eval_epoch(DataLoader& loader, std::string_view metric_name) {
  const ModelModeGuard restore_modes(model_, registered_modules_);
  const at::NoGradGuard no_grad;
  accelerator_->broadcast_buffers();
  eval_epoch_start();
  reset(eval_loss_);
  fire_together(&Callback::on_eval_epoch_start);
  auto batches = loader.iterate(run_history_->current_epoch());
  // Of several processes some may have fewer batches than others. These wait in join_uneven_loop,
  // which answers gather_for_metrics, but no agreement.
  const int64_t num_rounds = -max_over_ranks(-loader.size());
  RoundAgreement stop(*stop_);
  auto batch = batches->next();
  for (int64_t round = 0; batch || round < num_rounds; ++round) {
    if (round < num_rounds) stop.begin_round(/*is_last=*/round + 1 == num_rounds);
    if (!batch) continue;
    eval_step(*batch);
    batch = batches->next();
  }
  accelerator_->join_uneven_loop();
  eval_epoch_end();
  record(metric_name, eval_loss_);
  fire_together(&Callback::on_eval_epoch_end);
}

void Trainer::eval_step(const Batch& batch) {
  fire(&Callback::on_eval_step_start);
  const StepOutput output = [&] {
    const ProfilerRange range("eval_step");
    const AutocastScope autocast = accelerator_->autocast();
    return calculate_eval_batch_loss(batch);
  }();
  track(eval_loss_, output, /*are_all_needed=*/false);
  fire(&Callback::on_eval_step_end, batch, output);
}

at::Tensor Trainer::predict(const EvaluateOptions& options) {
  check_evaluate_options(options);
  share_loader_seed();
  const auto data = share_between_ranks(create_eval_dataloader(options),
                                        accelerator().process_group(), /*even_batches=*/false);
  prepare_modules();
  auto loader = accelerator_->prepare(data);
  const ModelModeGuard restore_mode(model_);
  const at::NoGradGuard no_grad;
  model_.eval();
  std::vector<at::Tensor> outputs;
  auto batches = loader->iterate(/*epoch=*/1);
  while (const auto batch = batches->next()) {
    const AutocastScope autocast = accelerator_->autocast();
    const at::Tensor rows = calculate_predictions(*batch);
    LINKBOY_CHECK(rows.defined(),
                  "calculate_predictions has returned an undefined tensor; it must "
                  "return one row for each sample.");
    LINKBOY_CHECK(rows.dim() > 0 && rows.size(0) == batch->size(), "the predictions of a batch of ",
                  batch->size(), " samples have shape ", rows.sizes(),
                  "; there must be one row for each sample. Override "
                  "calculate_predictions.");
    outputs.push_back(rows.cpu());
    LINKBOY_CHECK(rows.sizes().slice(1) == outputs.front().sizes().slice(1),
                  "the predictions of one batch have shape ", outputs.front().sizes(),
                  ", those of another one ", rows.sizes(),
                  "; the rows of all batches must have the same shape. Pad them in "
                  "calculate_predictions.");
  }
  if (accelerator_->num_processes() == 1) return at::cat(outputs);
  return restore_dataset_order(outputs, *data);
}

/// Each of n ranks predicted every n-th batch; returns the rows in the data's order.
at::Tensor Trainer::restore_dataset_order(const std::vector<at::Tensor>& outputs,
                                          const DataLoader& loader) {
  const auto* shared = dynamic_cast<const DatasetLoader*>(&loader);
  LINKBOY_CHECK(shared != nullptr,
                "predict on several processes needs a DatasetLoader, which knows its share of the "
                "data; create_eval_dataloader has returned something else.");
  const BatchShard shard = shard_of(shared->options());
  std::vector<int64_t> places;
  for (int64_t k = 0; k < shard.num_batches(); ++k) {
    for (int64_t i = 0; i < shard.size_of_batch(k); ++i) places.push_back(shard.position(k, i));
  }
  const at::Tensor place = accelerator_->gather_for_metrics(at::tensor(places, at::kLong));
  // A process may have had no batch at all, and not know what a row looks like.
  std::vector<at::Tensor> all;
  for (const std::string& bytes :
       accelerator_->all_gather_bytes(outputs.empty() ? "" : to_bytes(at::cat(outputs)))) {
    if (!bytes.empty()) all.push_back(from_bytes(bytes).toTensor());
  }
  return at::cat(all).index_select(0, place.argsort());
}

}  // namespace linkboy

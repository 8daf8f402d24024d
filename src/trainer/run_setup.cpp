// Prepares a run: its loaders, modules, optimizers, schedules and the executor of its steps.

#include "trainer/run_setup.hpp"

#include <c10/util/ScopeExit.h>
#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "accelerator/resolve_run_config.hpp"
#include "accelerator/share_between_ranks.hpp"
#include "distributed/agreement.hpp"
#include "linkboy/error.hpp"
#include "trainer/run_checks.hpp"
#include "util/error_bytes.hpp"

namespace linkboy {

void Trainer::Implementation::RunSetUp::set_up_training(const TrainOptions& options) {
  Implementation& of = trainer_;
  Trainer& trainer = of.trainer_;
  of.call_->claim = of.accelerator_->reserve();
  check_same_on_all_ranks(options, of.optimizers_, lines_of_trainer(), *of.accelerator_);
  check_accelerator_options(*of.accelerator_, options);
  share_loader_seed();
  // This comes before anything changes, because it throws if data is missing and no override
  // supplies it.
  auto train_dataloader = trainer.create_train_dataloader(options);
  LINKBOY_CHECK(train_dataloader != nullptr,
                "create_train_dataloader returned null; it must return a loader.");
  auto evaluation_sets = create_evaluation_sets(options);
  if (options.reset_run_history) of.run_->history->reset();
  of.run_ = std::make_unique<RunState>(
      of.run_->history, RunProgress(),
      WindowContents(options.weight_by_batch_size, trainer.needs_closure()));
  RunState& run = *of.run_;
  run.data = {.train_dataloader = std::move(train_dataloader),
              .evaluation_sets = std::move(evaluation_sets)};
  of.callback_handler_.begin_run();
  of.abandon_update();  // an override of `optimizer_zero_grad` may have kept those of the last one

  of.accelerator_->set_gradient_accumulation_steps(options.gradient_accumulation_steps);
  prepare_dataloaders();
  check_same_loaders_on_all_ranks(run.data, lines_of_trainer(), *of.accelerator_);
  run.config = trainer.create_run_config(options);
  LINKBOY_CHECK(run.config.num_epochs >= 1 && run.config.max_num_updates >= 1,
                "create_run_config returned ", run.config.num_epochs, " epochs and ",
                run.config.max_num_updates,
                " updates; both must be at least 1. Change what the method of the base class "
                "returns.");
  RunProgress::Limits limits{.num_updates = run.config.max_num_updates,
                             .evaluate_every_n_epochs = options.evaluate_every_n_epochs};
  if (!options.max_num_updates) limits.num_epochs = run.config.num_epochs;
  run.progress.set_limits(limits);
  create_executors(options);
  warn_of_unsaved_parameters(trainer, of.modules_, of.optimizers_);

  create_schedulers(options);
  call_with_loaders(&Callback::on_training_run_claim);
  if (options.resume_from) trainer.load_training_state(*options.resume_from);
  warn_of_zero_rates(trainer, of.optimizers_);
}

/// Replaces the schedules of the previous run.
void Trainer::Implementation::RunSetUp::create_schedulers(const TrainOptions& options) {
  const RunConfig& config = trainer_.run_->config;
  const auto replace = [&](TrainedOptimizer& trained, const auto& create) {
    trained.replace_scheduler(create, config.max_num_updates, options.allow_changed_schedule_length,
                              *trainer_.run_->history);
  };
  replace(trainer_.optimizers_.own(), [&] { return trainer_.trainer_.create_scheduler(options); });
  for (auto& each : trainer_.optimizers_.registered()) {
    if (!each.create_scheduler_fn) continue;
    replace(each.trained, [&] { return each.create_scheduler_fn(*each.trained, config); });
  }
}

void Trainer::Implementation::RunSetUp::before_first_epoch(const TrainOptions& options) {
  RunState& run = *trainer_.run_;
  RunEvaluations& evaluations = run.evaluations;
  if (options.evaluate_before_training && !run.progress.is_resumed() &&
      !evaluations.was_evaluated_before && run.data.eval_dataloader) {
    // It may be complete although a callback has stopped the run at its end.
    const auto note = c10::make_scope_exit([&] {
      evaluations.was_evaluated_before =
          evaluations.num_evaluated_sets == std::ssize(run.data.evaluation_sets);
    });
    trainer_.trainer_.evaluate_now({.metric_prefix = "initial_"});
  }
  if (run.progress.is_resumed() && !run.progress.has_epochs_left()) {
    trainer_.trainer_.print(
        fmt::format("The resumed run is complete, with {} updates in {} epochs; nothing is left "
                    "to train. To continue, resume it with more epochs or updates.",
                    run.progress.num_updates(), run.progress.num_completed_epochs()));
  }
}

void Trainer::Implementation::RunSetUp::set_up_evaluation(const EvaluateOptions& options) {
  // The data are not compared, because ranks may evaluate different numbers of batches.
  if (trainer_.accelerator_->world().size() > 1) {
    require_same_on_all_ranks(trainer_.accelerator_->world(), "what to evaluate",
                              lines_of_trainer());
  }
  share_loader_seed();
  trainer_.run_->data.evaluation_sets = {{.loader = create_eval_dataloader(options)}};
  trainer_.callback_handler_.begin_run();
  prepare_dataloaders();
  trainer_.run_->config = trainer_.trainer_.create_run_config({.num_epochs = 1});
}

std::vector<std::string> Trainer::Implementation::RunSetUp::lines_of_trainer() const {
  std::vector<std::string> lines;
  for (const std::string& name : trainer_.tracked_losses_) lines.push_back("tracked loss " + name);
  for (const auto& name : trainer_.callback_handler_.names()) lines.push_back("callback " + name);
  return lines;
}

void Trainer::Implementation::RunSetUp::share_loader_seed() {
  trainer_.call_->loader_seed.reset();
  if (trainer_.accelerator_->world().size() == 1) return;
  trainer_.call_->loader_seed = seed_of_rank_0(trainer_.accelerator_->world());
}

std::vector<EvaluationSet> Trainer::Implementation::RunSetUp::create_evaluation_sets(
    const TrainOptions& options) {
  std::vector<EvaluationSet> sets;
  const auto add = [&](const std::string& name, const Dataset& dataset) {
    auto loader = create_eval_dataloader({.dataset = dataset,
                                          .per_device_batch_size = options.per_device_batch_size,
                                          .dataloader_options = options.eval_dataloader_options,
                                          .collate_fn = options.collate_fn});
    sets.push_back({.name = name, .loader = std::move(loader)});
  };
  if (options.eval_dataloader) {
    sets.push_back({.loader = create_eval_dataloader({.dataloader = options.eval_dataloader})});
  }
  if (options.eval_dataset) add("", options.eval_dataset);
  for (const auto& [name, dataset] : options.more_eval_datasets) {
    try {
      add(name, dataset);
    } catch (const Error&) {
      throw_error(error_bytes(std::current_exception()),
                  c10::str("more_eval_datasets \"", name, "\": "));
    }
  }
  return sets;
}

std::shared_ptr<DataLoader> Trainer::Implementation::RunSetUp::create_eval_dataloader(
    const EvaluateOptions& options) {
  auto loader = trainer_.trainer_.create_eval_dataloader(options);
  LINKBOY_CHECK(loader != nullptr,
                "create_eval_dataloader returned null; it must return a loader.");
  return loader;
}

/// Calls an event in which callbacks may replace the training loader.
void Trainer::Implementation::RunSetUp::call_with_loaders(void (Callback::*event)(Trainer&)) {
  RunProgress& progress = trainer_.run_->progress;
  progress.set_setting_up(true);
  const auto back = c10::make_scope_exit([&] { progress.set_setting_up(false); });
  trainer_.call_in_set_up([&](Callback& callback) { (callback.*event)(trainer_.trainer_); });
}

/// Prepares the loaders: calls the callbacks that may replace them, shares them between the
/// processes and moves them to the device.
void Trainer::Implementation::RunSetUp::prepare_dataloaders() {
  const auto use_first_set = [&data = trainer_.run_->data] {
    data.eval_dataloader =
        data.evaluation_sets.empty() ? nullptr : data.evaluation_sets.front().loader;
  };
  use_first_set();
  call_with_loaders(&Callback::on_dataloaders_ready);
  trainer_.trainer_.prepare_model_optimizer_and_dataloaders();
  use_first_set();
}

void Trainer::Implementation::RunSetUp::prepare_modules() {
  // This comes first, because the gradients of all trained parameters outside the model are
  // reduced, too.
  TrainedModules& modules = trainer_.modules_;
  const TrainedOptimizers& optimizers = trainer_.optimizers_;
  for (const auto& module : modules.registered()) module->to(trainer_.accelerator_->device());
  std::vector<const torch::optim::Optimizer*> others;
  for (const auto& each : optimizers.registered()) others.push_back(each.trained.get().get());
  // Another Trainer may be training.
  const bool is_for_evaluation = !trainer_.is_in_training_call();
  trainer_.accelerator_->prepare(modules.model(), optimizers.own().get().get(),
                                 modules.registered(), others, is_for_evaluation);
}

void Trainer::set_train_dataloader(std::shared_ptr<DataLoader> loader) {
  LINKBOY_CHECK(impl_->run_->progress.is_setting_up(),
                "the training loader cannot be replaced here: the length of the run depends on it. "
                "Replace it in on_dataloaders_ready.");
  LINKBOY_CHECK(loader != nullptr, "the training loader is null; pass a loader.");
  impl_->run_->data.train_dataloader = std::move(loader);
}

DataLoaderOptions Trainer::default_train_dataloader_options(int64_t batch_size) {
  DataLoaderOptions options =
      Implementation::RunSetUp(*impl_).default_dataloader_options(batch_size);
  options.shuffle = true;
  options.even_batches = true;
  return options;
}

DataLoaderOptions Trainer::default_eval_dataloader_options(int64_t batch_size) {
  return Implementation::RunSetUp(*impl_).default_dataloader_options(batch_size);
}

DataLoaderOptions Trainer::Implementation::RunSetUp::default_dataloader_options(
    int64_t batch_size) const {
  // On the CPU the training loop itself needs the cores, and collating a batch costs little.
  const bool is_on_device = !trainer_.accelerator_->device().is_cpu();
  const int64_t num_cores = std::max(1U, std::thread::hardware_concurrency());
  DataLoaderOptions options;
  options.batch_size = batch_size;
  options.shuffle = false;
  options.num_workers = is_on_device ? std::min<int64_t>(2, num_cores) : 0;
  options.pin_memory = is_on_device;
  options.shard = {trainer_.accelerator_->process_index(), trainer_.accelerator_->num_processes()};
  options.even_batches = false;  // each sample counts once
  if (trainer_.call_) options.seed = trainer_.call_->loader_seed;
  return options;
}

std::shared_ptr<DataLoader> Trainer::create_train_dataloader(const TrainOptions& options) {
  if (options.train_dataloader) return options.train_dataloader;
  LINKBOY_CHECK_OPTION(options.train_dataset,
                       "train_dataset is missing; train needs one. Set it or "
                       "train_dataloader, or override create_train_dataloader.");
  LINKBOY_CHECK_OPTION(options.train_dataset.size() > 0,
                       "train_dataset is empty; it must have at least one sample.");
  auto defaults = default_train_dataloader_options(options.per_device_batch_size);
  if (options.collate_fn) defaults.collate_fn = options.collate_fn;
  auto chosen = defaults.merged_with(options.train_dataloader_options);
  const int64_t size = options.train_dataset.size();
  const bool is_filled_up =
      chosen.even_batches.value_or(true) && chosen.shard && chosen.shard->num_ranks > 1;
  const bool is_uneven = chosen.batch_size && size > *chosen.batch_size && !chosen.sampler &&
                         size % *chosen.batch_size != 0;
  if (options.execution_mode == ExecutionMode::graph && !chosen.drop_last && is_uneven &&
      !is_filled_up) {
    chosen.drop_last = true;
    print(c10::str("Graph mode: each epoch skips its last ", size % *chosen.batch_size,
                   " samples, which do not fill a batch"));
  }
  return make_data_loader(options.train_dataset, chosen);
}

std::shared_ptr<DataLoader> Trainer::create_eval_dataloader(const EvaluateOptions& options) {
  if (options.dataloader) return options.dataloader;
  LINKBOY_CHECK_OPTION(options.dataset,
                       "dataset is missing; evaluate and predict need one. Set it or "
                       "dataloader, or override create_eval_dataloader.");
  LINKBOY_CHECK_OPTION(options.dataset.size() > 0,
                       "the evaluation data is empty; it must have at least one sample.");
  auto defaults = default_eval_dataloader_options(options.per_device_batch_size);
  if (options.collate_fn) defaults.collate_fn = options.collate_fn;
  return make_data_loader(options.dataset, defaults.merged_with(options.dataloader_options));
}

void Trainer::prepare_model_optimizer_and_dataloaders() {
  Implementation::RunSetUp(*impl_).prepare_modules();
  impl_->stop_.attach(impl_->accelerator_->mesh().world());
  if (impl_->run_->data.train_dataloader)
    impl_->run_->data.train_dataloader =
        impl_->accelerator_->prepare(std::move(impl_->run_->data.train_dataloader));
  // An evaluation counts each sample once.
  const auto prepare = [this](std::shared_ptr<DataLoader>& loader) {
    if (!loader) return;
    loader = impl_->accelerator_->prepare(share_between_ranks(
        std::move(loader), impl_->accelerator_->mesh(), /*even_batches=*/false));
  };
  for (auto& set : impl_->run_->data.evaluation_sets) {
    prepare(set.loader);
    prepare(set.intermediate_loader);
  }
}

RunConfig Trainer::create_run_config(const TrainOptions& options) {
  return resolve_run_config(*impl_->accelerator_, options, impl_->run_->data.train_dataloader.get(),
                            impl_->run_->data.eval_dataloader.get());
}

std::unique_ptr<Scheduler> Trainer::create_scheduler(const TrainOptions& options) {
  if (!options.create_scheduler_fn) return nullptr;
  return options.create_scheduler_fn(*impl_->optimizers_.own(), impl_->run_->config);
}

}  // namespace linkboy

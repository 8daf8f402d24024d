// Prepares a run: its loaders, modules, optimizers, schedules and the executor of its steps.

#include "trainer/run_checks.hpp"

#include <c10/util/ScopeExit.h>
#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <thread>
#include <utility>

#include "accelerator/resolve_run_config.hpp"
#include "accelerator/share_between_ranks.hpp"
#include "linkboy/error.hpp"
#include "linkboy/profiling/profiler_range.hpp"
#include "trainer/run_progress.hpp"
#include "trainer/step_executor.hpp"
#include "trainer/stop_control.hpp"
#include "trainer/trainer_implementation.hpp"
#include "util/error_bytes.hpp"

namespace linkboy {

void Trainer::Implementation::set_up_training(const TrainOptions& options) {
  claim_ = accelerator_->reserve();
  check_same_on_all_ranks(options);
  check_accelerator_options(trainer_.accelerator(), options);
  share_loader_seed();
  // This comes before anything changes, because it throws if data is missing and no override
  // supplies it.
  auto train_dataloader = trainer_.create_train_dataloader(options);
  LINKBOY_CHECK(train_dataloader != nullptr,
                "create_train_dataloader returned null; it must return a loader.");
  auto evaluation_sets = create_evaluation_sets(options);
  if (options.reset_run_history) run_history_->reset();
  run_ = {.train_dataloader = std::move(train_dataloader),
          .evaluation_sets = std::move(evaluation_sets),
          .weights_by_batch_size = options.weight_by_batch_size,
          .keeps_window = trainer_.needs_closure()};
  callback_handler_.begin_run();
  abandon_update();  // an override of `optimizer_zero_grad` may have kept those of the last update

  trainer_.accelerator().set_gradient_accumulation_steps(options.gradient_accumulation_steps);
  prepare_dataloaders();
  check_same_loaders_on_all_ranks();
  run_.config = trainer_.create_run_config(options);
  LINKBOY_CHECK(run_.config.num_epochs >= 1 && run_.config.max_num_updates >= 1,
                "create_run_config returned ", run_.config.num_epochs, " epochs and ",
                run_.config.max_num_updates,
                " updates; both must be at least 1. Change what the method of the base class "
                "returns.");
  RunProgress::Limits limits{.num_updates = run_.config.max_num_updates,
                             .evaluate_every_n_epochs = options.evaluate_every_n_epochs};
  if (!options.max_num_updates) limits.num_epochs = run_.config.num_epochs;
  run_.progress.set_limits(limits);
  run_.executor = make_executor(options.execution_mode);
  warn_of_unsaved_parameters();

  create_schedulers(options);
  call_with_loaders(&Callback::on_training_run_claim);
  if (options.resume_from) trainer_.load_training_state(*options.resume_from);
  warn_of_zero_rates();
}

/// Replaces the schedules of the previous run.
void Trainer::Implementation::create_schedulers(const TrainOptions& options) {
  const auto replace = [&](TrainedOptimizer& trained, const auto& create) {
    trained.replace_scheduler(create, run_.config.max_num_updates,
                              options.allow_changed_schedule_length, *run_history_);
  };
  replace(own_, [&] { return trainer_.create_scheduler(options); });
  for (RegisteredOptimizer& each : registered_optimizers_) {
    if (!each.create_scheduler_fn) continue;
    replace(each.trained, [&] { return each.create_scheduler_fn(*each.trained, run_.config); });
  }
}

std::vector<EvaluationSet> Trainer::Implementation::create_evaluation_sets(
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

std::shared_ptr<DataLoader> Trainer::Implementation::create_eval_dataloader(
    const EvaluateOptions& options) {
  auto loader = trainer_.create_eval_dataloader(options);
  LINKBOY_CHECK(loader != nullptr,
                "create_eval_dataloader returned null; it must return a loader.");
  return loader;
}

/// Calls an event in which callbacks may replace the training loader.
void Trainer::Implementation::call_with_loaders(void (Callback::*event)(Trainer&)) {
  run_.progress.set_setting_up(true);
  const auto back = c10::make_scope_exit([&] { run_.progress.set_setting_up(false); });
  call_in_set_up(event);
}

/// Prepares the loaders: calls the callbacks that may replace them, shares them between the
/// processes and moves them to the device.
void Trainer::Implementation::prepare_dataloaders() {
  const auto use_first_set = [this] {
    run_.eval_dataloader =
        run_.evaluation_sets.empty() ? nullptr : run_.evaluation_sets.front().loader;
  };
  use_first_set();
  call_with_loaders(&Callback::on_dataloaders_ready);
  trainer_.prepare_model_optimizer_and_dataloaders();
  use_first_set();
}

void Trainer::set_train_dataloader(std::shared_ptr<DataLoader> loader) {
  LINKBOY_CHECK(impl_->run_.progress.is_setting_up(),
                "the training loader cannot be replaced here: the length of the run depends on it. "
                "Replace it in on_dataloaders_ready.");
  LINKBOY_CHECK(loader != nullptr, "the training loader is null; pass a loader.");
  impl_->run_.train_dataloader = std::move(loader);
}

DataLoaderOptions Trainer::default_train_dataloader_options(int64_t batch_size) {
  DataLoaderOptions options = impl_->default_dataloader_options(batch_size);
  options.shuffle = true;
  options.even_batches = true;
  return options;
}

DataLoaderOptions Trainer::default_eval_dataloader_options(int64_t batch_size) {
  return impl_->default_dataloader_options(batch_size);
}

DataLoaderOptions Trainer::Implementation::default_dataloader_options(int64_t batch_size) const {
  // On the CPU the training loop itself needs the cores, and collating a batch costs little.
  const bool is_on_device = !accelerator_->device().is_cpu();
  const int64_t num_cores = std::max(1U, std::thread::hardware_concurrency());
  DataLoaderOptions options;
  options.batch_size = batch_size;
  options.shuffle = false;
  options.num_workers = is_on_device ? std::min<int64_t>(2, num_cores) : 0;
  options.pin_memory = is_on_device;
  options.shard = {accelerator_->process_index(), accelerator_->num_processes()};
  options.even_batches = false;  // each sample counts once
  options.seed = loader_seed_;
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

void Trainer::Implementation::prepare_modules() {
  // This comes first, because the gradients of all trained parameters outside the model are
  // reduced, too.
  for (const auto& module : registered_modules_) module->to(trainer_.device());
  const bool is_for_evaluation = claim_ == nullptr;  // another Trainer may be training
  accelerator_->prepare(model_, own_.get().get(), registered_modules_, other_optimizers(),
                        is_for_evaluation);
}

void Trainer::prepare_model_optimizer_and_dataloaders() {
  impl_->prepare_modules();
  impl_->stop_.attach(impl_->accelerator_->shared_process_group());
  if (impl_->run_.train_dataloader)
    impl_->run_.train_dataloader =
        impl_->accelerator_->prepare(std::move(impl_->run_.train_dataloader));
  // An evaluation counts each sample once.
  const auto prepare = [this](std::shared_ptr<DataLoader>& loader) {
    if (!loader) return;
    loader = impl_->accelerator_->prepare(share_between_ranks(
        std::move(loader), impl_->accelerator_->process_group(), /*even_batches=*/false));
  };
  for (auto& set : impl_->run_.evaluation_sets) {
    prepare(set.loader);
    prepare(set.intermediate_loader);
  }
}

RunConfig Trainer::create_run_config(const TrainOptions& options) {
  return resolve_run_config(*impl_->accelerator_, options, impl_->run_.train_dataloader.get(),
                            impl_->run_.eval_dataloader.get());
}

int64_t Trainer::Implementation::max_over_ranks(int64_t value) {
  at::Tensor most = at::full({1}, value, at::kLong);
  trainer_.accelerator().process_group().all_reduce(most, ReduceOp::max);
  return most.item<int64_t>();
}

void Trainer::Implementation::before_first_epoch(const TrainOptions& options) {
  if (options.evaluate_before_training && !run_.progress.is_resumed() &&
      !run_.was_evaluated_before && run_.eval_dataloader) {
    // It may be complete although a callback has stopped the run at its end.
    const auto note = c10::make_scope_exit([this] {
      run_.was_evaluated_before = run_.num_evaluated_sets == std::ssize(run_.evaluation_sets);
    });
    trainer_.evaluate_now({.metric_prefix = "initial_"});
  }
  if (run_.progress.is_resumed() && !run_.progress.has_epochs_left()) {
    trainer_.print(
        fmt::format("The resumed run is complete, with {} updates in {} epochs; nothing is left "
                    "to train. To continue, resume it with more epochs or updates.",
                    run_.progress.num_updates(), run_.progress.num_completed_epochs()));
  }
}

void Trainer::Implementation::after_last_epoch(const TrainOptions& options) {
  LINKBOY_CHECK(run_.progress.has_begun_epoch() || !run_.progress.has_epochs_left(),
                "run_training ended without an epoch, but the run has epochs left. Call "
                "begin_epoch, run_train_epoch and end_epoch, or request_stop.");
  if (!options.max_num_updates || trainer_.num_updates() < run_.config.max_num_updates) return;
  run_.result.reason = StopReason::max_steps;
  run_.result.message = fmt::format("Reached the maximum of {} updates in epoch {}",
                                    trainer_.num_updates(), run_history_->current_epoch() - 1);
  trainer_.print(run_.result.message);
}

/// All ranks must use the same permutation, regardless of the state of their own generators.
void Trainer::Implementation::share_loader_seed() {
  loader_seed_.reset();
  if (trainer_.accelerator().num_processes() == 1) return;
  loader_seed_ = seed_of_rank_0(accelerator_->process_group());
}

std::unique_ptr<Scheduler> Trainer::create_scheduler(const TrainOptions& options) {
  if (!options.create_scheduler_fn) return nullptr;
  return options.create_scheduler_fn(*impl_->own_, impl_->run_.config);
}

}  // namespace linkboy

#include "trainer/run_setup.hpp"

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
  claim_accelerator();
  check_same_on_all_ranks(options);
  check_accelerator_options(trainer_.accelerator(), options);
  share_loader_seed();
  // This comes before anything changes, because it throws if data is missing and no override
  // supplies it.
  train_dataloader_ = trainer_.create_train_dataloader(options);
  create_evaluation_sets(options);
  if (options.reset_run_history) run_history_->reset();
  result_ = {};
  progress_ = {};
  is_cut_short_ = false;
  after_last_update_.reset();
  gradient_norm_ = at::Tensor();
  resumed_from_.clear();
  callback_handler_.begin_run();
  weights_by_batch_size_ = options.weight_by_batch_size;
  weight_unit_ = 0;
  window_weight_ = 0;
  keeps_window_ = trainer_.needs_closure();
  batches_of_window_.clear();
  executor_.reset();

  trainer_.accelerator().set_gradient_accumulation_steps(options.gradient_accumulation_steps);
  prepare_dataloaders();
  check_same_loaders_on_all_ranks();
  run_config_ = trainer_.create_run_config(options);
  RunProgress::Limits limits{.num_updates = run_config_.max_num_updates,
                             .evaluate_every_n_epochs = options.evaluate_every_n_epochs};
  if (!options.max_num_updates) limits.num_epochs = run_config_.num_epochs;
  progress_.set_limits(limits);
  executor_ = make_executor(options.execution_mode);
  warn_of_unsaved_parameters();

  create_schedulers(options);
  call_in_set_up(&Callback::on_training_run_claim);
  if (options.resume_from) trainer_.load_training_state(*options.resume_from);
}

void Trainer::Implementation::create_schedulers(const TrainOptions& options) {
  const auto start = [&](Scheduler* scheduler) {
    if (scheduler == nullptr) return;
    scheduler->set_num_updates_of_run(run_config_.max_num_updates);
    scheduler->allow_changed_lengths(options.allow_changed_schedule_length);
    scheduler->run_start(*run_history_);
    scheduler->start();
  };
  // The scheduler of the previous run has left its last values in the optimizer.
  if (scheduler_ && options.create_scheduler_fn) scheduler_->restore_base_values();
  scheduler_ = trainer_.create_scheduler(options);
  start(scheduler_.get());
  for (RegisteredOptimizer& registered : registered_optimizers_) {
    if (!registered.create_scheduler_fn) continue;
    if (registered.scheduler) registered.scheduler->restore_base_values();
    registered.scheduler = registered.create_scheduler_fn(*registered.optimizer, run_config_);
    start(registered.scheduler.get());
  }
}

std::unique_ptr<StepExecutor> Trainer::Implementation::make_executor(ExecutionMode mode) {
  StepPasses passes{.forward = [this](const Batch& batch) { return forward_pass(batch); },
                    .backward = [this](const StepOutput& output) { backward_pass(output); }};
  if (mode == ExecutionMode::eager) return make_eager_step(std::move(passes));
  return make_graphed_step(std::move(passes), trainer_.device(),
                           run_config_.gradient_accumulation_steps > 1, [this] {
                             std::vector<at::Tensor> parameters;
                             for (const torch::optim::Optimizer* each : optimizers()) {
                               const auto own = parameters_of(*each);
                               parameters.insert(parameters.end(), own.begin(), own.end());
                             }
                             return parameters;
                           });
}

StepOutput Trainer::Implementation::forward_pass(const Batch& batch) {
  const ProfilerRange range("forward");
  const AutocastScope autocast = accelerator_->autocast();
  return trainer_.calculate_train_batch_loss(batch);
}

void Trainer::Implementation::backward_pass(const StepOutput& output) {
  const ProfilerRange range("backward");
  if (keeps_window_) {
    const at::Tensor share = output.loss.detach() / accelerator_->window().length;
    loss_of_window_ = loss_of_window_.defined() ? loss_of_window_ + share : share;
  }
  if (!weights_by_batch_size_) return trainer_.backward_step(output.loss);
  // About the size of a batch, so that fp16 does not overflow. A power of two keeps the division
  // exact.
  if (weight_unit_ == 0.0) {
    weight_unit_ = std::exp2(std::ilogb(max_over_ranks(output.batch_size)));
  }
  if (accelerator_->window().index == 0) window_weight_ = 0;
  window_weight_ += output.batch_size;
  trainer_.backward_step(output.loss * (static_cast<double>(output.batch_size) / weight_unit_));
}

void Trainer::Implementation::create_evaluation_sets(const TrainOptions& options) {
  evaluation_sets_.clear();
  const auto add = [&](const std::string& name, const Dataset& dataset) {
    auto loader =
        trainer_.create_eval_dataloader({.dataset = dataset,
                                         .per_device_batch_size = options.per_device_batch_size,
                                         .dataloader_options = options.eval_dataloader_options,
                                         .collate_fn = options.collate_fn});
    evaluation_sets_.push_back({.name = name, .loader = std::move(loader)});
  };
  if (options.eval_dataloader) {
    evaluation_sets_.push_back(
        {.loader = trainer_.create_eval_dataloader({.dataloader = options.eval_dataloader})});
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
}

/// Prepares the loaders: calls the callbacks that may replace them, shares them between the
/// processes and moves them to the device.
void Trainer::Implementation::prepare_dataloaders() {
  const auto use_first_set = [this] {
    eval_dataloader_ = evaluation_sets_.empty() ? nullptr : evaluation_sets_.front().loader;
  };
  use_first_set();
  {
    progress_.set_setting_up(true);
    const auto back = c10::make_scope_exit([&] { progress_.set_setting_up(false); });
    call_in_set_up(&Callback::on_dataloaders_ready);
  }
  trainer_.prepare_model_optimizer_and_dataloaders();
  use_first_set();
}

void Trainer::set_train_dataloader(std::shared_ptr<DataLoader> loader) {
  LINKBOY_CHECK(impl_->progress_.is_setting_up(),
                "the training loader cannot be replaced here: the length of the run depends on it. "
                "Replace it in on_dataloaders_ready.");
  LINKBOY_CHECK(loader != nullptr, "the training loader is null; pass a loader.");
  impl_->train_dataloader_ = std::move(loader);
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
  std::vector<const torch::optim::Optimizer*> others;
  for (const auto& registered : registered_optimizers_)
    others.push_back(registered.optimizer.get());
  trainer_.accelerator().prepare(model_, optimizer_.get(), registered_modules_, others);
}

void Trainer::prepare_model_optimizer_and_dataloaders() {
  impl_->prepare_modules();
  impl_->stop_.attach(impl_->accelerator_->shared_process_group());
  if (impl_->train_dataloader_)
    impl_->train_dataloader_ = impl_->accelerator_->prepare(std::move(impl_->train_dataloader_));
  // An evaluation counts each sample once.
  const auto prepare = [this](std::shared_ptr<DataLoader>& loader) {
    if (!loader) return;
    loader = impl_->accelerator_->prepare(share_between_ranks(
        std::move(loader), impl_->accelerator_->process_group(), /*even_batches=*/false));
  };
  for (auto& set : impl_->evaluation_sets_) {
    prepare(set.loader);
    prepare(set.intermediate_loader);
  }
}

RunConfig Trainer::create_run_config(const TrainOptions& options) {
  return resolve_run_config(*impl_->accelerator_, options, impl_->train_dataloader_.get(),
                            impl_->eval_dataloader_.get());
}

int64_t Trainer::Implementation::max_over_ranks(int64_t value) {
  at::Tensor most = at::full({1}, value, at::kLong);
  trainer_.accelerator().process_group().all_reduce(most, ReduceOp::max);
  return most.item<int64_t>();
}

void Trainer::Implementation::before_first_epoch(const TrainOptions& options) {
  if (options.evaluate_before_training && !progress_.is_resumed() && eval_dataloader_) {
    trainer_.evaluate_now({.metric_prefix = "initial_"});
  }
  if (progress_.is_resumed() && !progress_.has_epochs_left()) {
    trainer_.print(
        fmt::format("The resumed run is complete, with {} updates in {} epochs; nothing is left "
                    "to train. To continue, resume it with more epochs or updates.",
                    progress_.num_updates(), progress_.num_epochs()));
  }
}

void Trainer::Implementation::after_last_epoch(const TrainOptions& options) {
  if (!options.max_num_updates || trainer_.num_updates() < run_config_.max_num_updates) return;
  result_.reason = StopReason::max_steps;
  result_.message = fmt::format("Reached the maximum of {} updates in epoch {}",
                                trainer_.num_updates(), run_history_->current_epoch() - 1);
  trainer_.print(result_.message);
}

/// All ranks must use the same permutation, regardless of the state of their own generators.
void Trainer::Implementation::share_loader_seed() {
  loader_seed_.reset();
  if (trainer_.accelerator().num_processes() == 1) return;
  loader_seed_ = seed_of_rank_0(accelerator_->process_group());
}

std::unique_ptr<Scheduler> Trainer::create_scheduler(const TrainOptions& options) {
  if (!options.create_scheduler_fn) return nullptr;
  return options.create_scheduler_fn(*impl_->optimizer_, impl_->run_config_);
}

}  // namespace linkboy

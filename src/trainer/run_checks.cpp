// The checks of a run, and the warnings at its start.

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_map>

#include "checkpoint/optimizer_state.hpp"
#include "distributed/agreement.hpp"
#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"
#include "trainer/run_checks.hpp"
#include "util/option_checks.hpp"
#include "util/parameters.hpp"

namespace linkboy {
namespace {

void check_batch_size(int64_t batch_size, const DataLoaderOptions& loader, const char* name) {
  LINKBOY_CHECK_OPTION(!loader.batch_size || *loader.batch_size == batch_size, name,
                       ".batch_size is ", *loader.batch_size, ", but per_device_batch_size is ",
                       batch_size, ". Set only per_device_batch_size.");
}

void check_collate_fn(const CollateFn& collate_fn, const DataLoaderOptions& loader,
                      const char* name) {
  LINKBOY_CHECK_OPTION(!collate_fn || !loader.collate_fn, "both collate_fn and ", name,
                       ".collate_fn are set; set only one of them.");
}

/// A loader that the caller created already has its own dataset, batches and order.
void check_ready_loader(const std::shared_ptr<DataLoader>& loader, const Dataset& dataset,
                        const char* name, const char* dataset_name) {
  LINKBOY_CHECK_OPTION(!loader || !dataset, "both ", dataset_name, " and ", name,
                       " are set; set only one of them.");
}

void check_no_loader_options(const DataLoaderOptions& options, const char* name,
                             const char* loader_name) {
  const bool has_text = options_to_text(options) != options_to_text(DataLoaderOptions());
  LINKBOY_CHECK_OPTION(!has_text && !options.shard && !options.sampler && !options.batch_sampler &&
                           !options.collate_fn && !options.transform && !options.worker_init_fn,
                       name, " are set together with ", loader_name,
                       ", which already has its options; pass them to make_data_loader.");
}

void check_no_collate_fn(const CollateFn& collate_fn, const char* loader_name) {
  LINKBOY_CHECK_OPTION(!collate_fn, "collate_fn is set together with ", loader_name,
                       ", which already has its options; pass it to make_data_loader. For other "
                       "data, set it in the options of that data's loader.");
}

void check_names(const std::vector<NamedDataset>& datasets) {
  std::set<std::string> names;
  for (const auto& [name, dataset] : datasets) {
    LINKBOY_CHECK_OPTION(!name.empty(),
                         "an entry of more_eval_datasets has no name; name each entry.");
    LINKBOY_CHECK_OPTION(names.insert(name).second,
                         "two entries of more_eval_datasets are named \"", name,
                         "\"; give each a different name.");
    for (const std::string prefix : {"initial", "intermediate", "ema_model", "swa_model"}) {
      LINKBOY_CHECK_OPTION(name != prefix && !name.starts_with(prefix + "_"),
                           "an entry of more_eval_datasets is named \"", name,
                           "\"; a name must not begin with ", prefix,
                           ", which precedes the metrics of other evaluations. Choose another "
                           "name.");
    }
    LINKBOY_CHECK_OPTION(dataset, "the evaluation data \"", name,
                         "\" is an empty handle; pass a dataset.");
  }
}

void check_learning_rates(const torch::optim::Optimizer& optimizer) {
  for (double lr : get_param_group_field(optimizer, ParamGroupField::lr)) {
    LINKBOY_CHECK_OPTION(std::isfinite(lr) && lr >= 0.0, "the optimizer's lr is ", lr,
                         "; it must be finite and not negative.");
  }
}

// LibTorch accepts such an optimizer, whose step then moves the parameter twice.
void check_no_parameter_twice(const torch::optim::Optimizer& optimizer) {
  std::unordered_map<const c10::TensorImpl*, std::size_t> group_of;
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    for (const auto& parameter : optimizer.param_groups()[i].params()) {
      const auto [first, is_new] = group_of.emplace(parameter.unsafeGetTensorImpl(), i);
      LINKBOY_CHECK_OPTION(
          is_new, "a parameter of shape ", parameter.sizes(),
          " is in the optimizer twice, in param groups ", first->second, " and ", i,
          "; an update would move it twice. Pass each parameter once. A module that is "
          "registered under two names returns its parameters twice.");
    }
  }
}

void check_trained_parameters(const TrainedModules& modules,
                              const torch::optim::Optimizer& optimizer) {
  const auto known = modules.parameter_identities();
  const auto parameters = parameters_of(optimizer);
  const bool trains_any =
      std::any_of(parameters.begin(), parameters.end(),
                  [&](const auto& tensor) { return known.contains(tensor.unsafeGetTensorImpl()); });
  LINKBOY_CHECK(trains_any, "none of the optimizer's ", parameters.size(),
                " parameters belongs to the model, which has ", modules.model().parameters().size(),
                ", or to a registered module; training would not change the model. Make the "
                "optimizer from model->parameters(), and register each layer with "
                "register_module in the model's constructor.");
}

int64_t size_of(const Dataset& dataset) { return dataset ? dataset.size() : 0; }

}  // namespace

void check_train_options(const TrainOptions& options, const torch::optim::Optimizer* optimizer) {
  LINKBOY_CHECK_OPTION(optimizer != nullptr,
                       "the Trainer has no optimizer; pass one to its constructor "
                       "to train.");
  LINKBOY_CHECK_OPTION(options.num_epochs || options.max_num_updates,
                       "neither num_epochs nor max_num_updates is set; set at least one of them to "
                       "limit the run.");
  check_at_least_one("num_epochs", options.num_epochs.value_or(1));
  check_at_least_one("max_num_updates", options.max_num_updates.value_or(1));
  check_at_least_one("per_device_batch_size", options.per_device_batch_size);
  check_at_least_one("gradient_accumulation_steps", options.gradient_accumulation_steps);
  check_at_least_one("evaluate_every_n_epochs", options.evaluate_every_n_epochs);
  check_names(options.more_eval_datasets);
  check_ready_loader(options.train_dataloader, options.train_dataset, "train_dataloader",
                     "train_dataset");
  check_ready_loader(options.eval_dataloader, options.eval_dataset, "eval_dataloader",
                     "eval_dataset");
  if (options.train_dataloader) {
    check_no_loader_options(options.train_dataloader_options, "train_dataloader_options",
                            "train_dataloader");
    check_no_collate_fn(options.collate_fn, "train_dataloader");
  }
  if (options.eval_dataloader && options.more_eval_datasets.empty()) {
    check_no_loader_options(options.eval_dataloader_options, "eval_dataloader_options",
                            "eval_dataloader");
  }
  check_batch_size(options.per_device_batch_size, options.train_dataloader_options,
                   "train_dataloader_options");
  check_collate_fn(options.collate_fn, options.train_dataloader_options,
                   "train_dataloader_options");
  check_collate_fn(options.collate_fn, options.eval_dataloader_options, "eval_dataloader_options");
  check_clip_value("gradient_clip_value", options.gradient_clip_value);
  check_clip_value("gradient_clip_norm", options.gradient_clip_norm);
  LINKBOY_CHECK_OPTION(
      !options.weight_by_batch_size || options.execution_mode != ExecutionMode::graph,
      "weight_by_batch_size does not work with ExecutionMode::graph, which records the "
      "weight of one batch for all. Use ExecutionMode::eager.");
  LINKBOY_CHECK_OPTION(
      options.execution_mode != ExecutionMode::compiled || options.create_step_executor_fn,
      "ExecutionMode::compiled needs create_step_executor_fn. Set it to compiled_steps() of "
      "<linkboy/compile.hpp>, and link linkboy::compile.");
  check_learning_rates(*optimizer);
  check_no_parameter_twice(*optimizer);
}

void check_evaluate_options(const EvaluateOptions& options) {
  check_at_least_one("per_device_batch_size", options.per_device_batch_size);
  check_batch_size(options.per_device_batch_size, options.dataloader_options, "dataloader_options");
  check_collate_fn(options.collate_fn, options.dataloader_options, "dataloader_options");
  check_ready_loader(options.dataloader, options.dataset, "dataloader", "dataset");
  if (!options.dataloader) return;
  check_no_loader_options(options.dataloader_options, "dataloader_options", "dataloader");
  check_no_collate_fn(options.collate_fn, "dataloader");
}

void check_accelerator_options(const Accelerator& accelerator, const TrainOptions& options) {
  LINKBOY_CHECK_OPTION(
      options.execution_mode != ExecutionMode::graph || accelerator.world().size() == 1,
      "ExecutionMode::graph works in one process, but there are ", accelerator.world().size(),
      ". Use ExecutionMode::eager.");
  const c10::Device device = accelerator.device();
  LINKBOY_CHECK_OPTION(
      options.execution_mode != ExecutionMode::graph || device.is_cpu() || device.is_cuda(),
      "ExecutionMode::graph records CUDA graphs, but the device is ", device.str(),
      ". Use ExecutionMode::eager.");
  LINKBOY_CHECK_OPTION(options.execution_mode != ExecutionMode::compiled || device.is_cpu(),
                       "ExecutionMode::compiled works on the CPU, but the device is ", device.str(),
                       ". Use ExecutionMode::eager or graph.");
  LINKBOY_CHECK_OPTION(
      options.execution_mode != ExecutionMode::compiled ||
          accelerator.precision() != Precision::fp16,
      "ExecutionMode::compiled does not work with Precision::fp16, whose gradients "
      "would be computed without their scale. Use fp32 or bf16.");
  const DistributedOptions& distributed = accelerator.distributed_options();
  LINKBOY_CHECK_OPTION(
      options.execution_mode != ExecutionMode::compiled ||
          !accelerator.has_distributed_parameters(),
      "ExecutionMode::compiled does not work with zero_stage 3: a package reads the memory of the "
      "parameters, which are not there. Use ExecutionMode::eager, or zero_stage 2.");
  LINKBOY_CHECK_OPTION(!options.weight_by_batch_size ||
                           (distributed.local_sgd_interval == 0 && !distributed.gradient_comm_hook),
                       "weight_by_batch_size needs gradients that linkboy averages, but ",
                       distributed.gradient_comm_hook ? "gradient_comm_hook" : "local_sgd_interval",
                       " is set. Set only one of them.");
}

void check_run(const TrainOptions& options, const TrainedModules& modules,
               const TrainedOptimizers& optimizers) {
  check_train_options(options, optimizers.own().get().get());
  check_trained_parameters(modules, *optimizers.own());
  for (const auto& each : optimizers.registered()) {
    check_learning_rates(*each.trained);
    check_no_parameter_twice(*each.trained);
  }
  LINKBOY_CHECK_OPTION(
      !options.weight_by_batch_size || optimizers.registered().empty(),
      "weight_by_batch_size works with one optimizer, but register_optimizer has added \"",
      optimizers.registered().front().name, "\". Leave it out, and weight the losses yourself.");
}

void check_closure(const TrainOptions& options, const TrainedOptimizers& optimizers,
                   const Accelerator& accelerator) {
  constexpr const char* kWhy = " does not work with an optimizer that needs a closure (LBFGS): ";
  LINKBOY_CHECK_OPTION(options.execution_mode != ExecutionMode::graph, "ExecutionMode::graph", kWhy,
                       "it replays the passes of one window. Use ExecutionMode::eager.");
  LINKBOY_CHECK_OPTION(!options.gradient_clip_norm && !options.gradient_clip_value,
                       options.gradient_clip_norm ? "gradient_clip_norm" : "gradient_clip_value",
                       kWhy,
                       "its steps depend on how the loss and the true gradients change. Leave it "
                       "out; line_search_fn(\"strong_wolfe\") of LBFGS limits its steps.");
  LINKBOY_CHECK_OPTION(!options.weight_by_batch_size, "weight_by_batch_size", kWhy,
                       "it weights the gradients of an update once. Leave it out.");
  LINKBOY_CHECK_OPTION(optimizers.registered().empty(), "register_optimizer", kWhy,
                       "it would add to the gradients of the other optimizers. Use another one.");
  LINKBOY_CHECK_OPTION(accelerator.precision() != Precision::fp16, "Precision::fp16", kWhy,
                       "a skipped step would already have moved the weights. Use fp32 or bf16.");
  const DistributedOptions& distributed = accelerator.distributed_options();
  LINKBOY_CHECK_OPTION(distributed.zero_stage == 0 && distributed.local_sgd_interval == 0,
                       distributed.zero_stage != 0 ? "zero_stage" : "local_sgd_interval", kWhy,
                       "it needs all gradients, averaged over the processes. Leave it out.");
}

void check_trainable_parameters(const TrainedOptimizers& optimizers) {
  const auto parameters = optimizers.parameters();
  LINKBOY_CHECK(std::any_of(parameters.begin(), parameters.end(),
                            [](const at::Tensor& each) { return each.requires_grad(); }),
                "nothing is trainable: all ", parameters.size(),
                " parameters of the optimizer are frozen. Call requires_grad_(true) on those that "
                "must be trained, or unfreeze their layers.");
}

void check_gradients(const TrainedOptimizers& optimizers, const Accelerator& accelerator) {
  // Other optimizers may have been stepped; with ZeRO 2, a rank may not have a share.
  if (!optimizers.registered().empty() || accelerator.distributed_options().zero_stage != 0) {
    return;
  }
  const auto parameters = parameters_of(*optimizers.own());
  const auto has_gradient = [](const at::Tensor& each) { return each.grad().defined(); };
  LINKBOY_CHECK(std::any_of(parameters.begin(), parameters.end(), has_gradient),
                "the update has no gradients: no parameter of the optimizer got one. An override "
                "of backward_step must call the one of the base class or loss.backward(), and the "
                "loss must depend on the parameters.");
}

void check_updates_were_made(const RunProgress& progress, const GradScaler* scaler) {
  LINKBOY_CHECK(!progress.has_micro_steps_only(),
                "train_step made no update in this epoch. An override of train_step must call "
                "update() if is_update_due().");
  // If the scale has fallen to 0, every gradient is NaN, and no later update can succeed.
  LINKBOY_CHECK(
      progress.has_updates_in_epoch() || scaler == nullptr || scaler->get_scale() > 0.0,
      "all updates of this epoch were skipped: in fp16 the gradients were infinite or NaN "
      "until their scale fell to 0. Look for the first loss or gradient that is not finite, or "
      "train with Precision::bf16.");
}

void warn_of_unsaved_parameters(Trainer& trainer, const TrainedModules& modules,
                                const TrainedOptimizers& optimizers) {
  const auto known = modules.parameter_identities();
  const auto parameters = optimizers.parameters();
  const auto num_unknown = std::count_if(
      parameters.begin(), parameters.end(),
      [&](const auto& tensor) { return !known.contains(tensor.unsafeGetTensorImpl()); });
  if (num_unknown == 0) return;
  trainer.log(
      LogLevel::warning,
      c10::str(
          num_unknown, " of the optimizer's ", parameters.size(),
          " parameters belong neither to the model nor to a registered module; checkpoints do "
          "not contain them. Register their module with Trainer::register_module, or inside the "
          "model with register_module."));
}

void warn_of_zero_rates(Trainer& trainer, const TrainedOptimizers& optimizers) {
  const auto warn = [&](const torch::optim::Optimizer& optimizer, const Scheduler* scheduler,
                        const std::string& name) {
    const auto rates = get_param_group_field(optimizer, ParamGroupField::lr);
    const auto is_zero = [](double rate) { return rate == 0.0; };
    if (scheduler != nullptr || !std::all_of(rates.begin(), rates.end(), is_zero)) return;
    trainer.log(LogLevel::warning,
                c10::str("all learning rates of the ", name,
                         " are 0, and it has no schedule; its steps do not change the weights. "
                         "Set its lr, or a create_scheduler_fn."));
  };
  warn(*optimizers.own(), optimizers.own().scheduler(), "optimizer");
  for (const auto& registered : optimizers.registered()) {
    warn(*registered.trained, registered.scheduler(),
         c10::str("registered optimizer \"", registered.name, "\""));
  }
}

void check_same_on_all_ranks(const TrainOptions& options, const TrainedOptimizers& optimizers,
                             const std::vector<std::string>& lines_of_trainer,
                             const Accelerator& accelerator) {
  if (accelerator.world().size() == 1) return;
  std::vector<std::string> lines{
      c10::str("train_dataset.size() = ", size_of(options.train_dataset)),
      c10::str("eval_dataset.size() = ", size_of(options.eval_dataset)),
      c10::str("a train_dataloader = ", options.train_dataloader != nullptr),
      c10::str("an eval_dataloader = ", options.eval_dataloader != nullptr)};
  for (const auto& [name, dataset] : options.more_eval_datasets) {
    lines.push_back(c10::str("evaluation data \"", name, "\" of size ", dataset.size()));
  }
  for (const auto& [name, value] : options_to_text(options)) lines.push_back(name + " = " + value);
  lines.push_back(c10::str("a scheduler = ", options.create_scheduler_fn != nullptr));
  lines.push_back(c10::str("resume_from = ", options.resume_from.has_value()));
  for (std::string& line : describe_optimizer(*optimizers.own())) lines.push_back(std::move(line));
  for (const auto& registered : optimizers.registered()) {
    lines.push_back(c10::str("registered optimizer ", registered.name,
                             " with a scheduler = ", registered.create_scheduler_fn != nullptr));
    for (const std::string& line : describe_optimizer(*registered.trained)) {
      lines.push_back(c10::str(registered.name, ": ", line));
    }
  }
  lines.insert(lines.end(), lines_of_trainer.begin(), lines_of_trainer.end());
  require_same_on_all_ranks(accelerator.world(), "what to train", lines);
}

void check_same_loaders_on_all_ranks(const RunData& data,
                                     const std::vector<std::string>& lines_of_trainer,
                                     const Accelerator& accelerator) {
  if (accelerator.world().size() == 1) return;
  const int64_t num_batches = data.train_dataloader->size();
  std::vector<std::string> lines{c10::str("batch size = ", data.train_dataloader->batch_size()),
                                 c10::str("batches per epoch = ", num_batches),
                                 c10::str("evaluation sets = ", data.evaluation_sets.size())};
  const StateDict loader = data.train_dataloader->state_dict();
  // The position may differ: a loader with its own shard knows only its rank's position.
  if (loader.contains("seed")) {
    lines.push_back(c10::str("the loader's seed = ", loader.at("seed")));
  }
  lines.insert(lines.end(), lines_of_trainer.begin(), lines_of_trainer.end());
  require_same_on_all_ranks(accelerator.world(), "what to train", lines);
}

}  // namespace linkboy

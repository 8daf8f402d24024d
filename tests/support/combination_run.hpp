// Runs with the settings of a Combination, in one process or on several ranks.

#pragma once

#include <torch/torch.h>

#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "distributed/launch_environment.hpp"
#include "linkboy/callbacks/fast_dev_run.hpp"
#include "linkboy/callbacks/save_training_state.hpp"
#include "linkboy/checkpoint/training_state_folders.hpp"
#include "linkboy/fine_tuning/batch_size_finder.hpp"
#include "linkboy/fine_tuning/lr_finder.hpp"
#include "support/combination_callbacks.hpp"
#include "support/combination_schedules.hpp"
#include "support/interpreted_steps.hpp"

namespace linkboy::testing {

struct CombinationRun {
  CombinationRun(const Combination& chosen, const std::filesystem::path& folder,
                 AcceleratorOptions accelerator)
      : combination(chosen), states(folder / "states"), cut(std::make_shared<Cut>(chosen, states)) {
    make_model();
    accelerator = accelerator_options(std::move(accelerator));
    trainer = std::make_unique<CombinationTrainer>(
        chosen, model, second, loss(), make_optimizer(),
        TrainerOptions{.callbacks = callbacks_of(chosen, folder, Model(model)),
                       .default_callbacks = {},
                       .accelerator = accelerator});
    if (chosen.has("second_optimizer")) {
      trainer->register_module(second.ptr());
      trainer->register_optimizer("second",
                                  std::make_shared<torch::optim::Adam>(second->parameters(), 0.05),
                                  chosen.is("second_optimizer", "with_schedule")
                                      ? step_decay({.step_size = 2, .gamma = 0.5})
                                      : CreateSchedulerFn());
    }
    make_options();
  }

  void train_earlier_run() {
    if (combination.is("earlier_run", "fast_dev_run")) options.callbacks = {make<FastDevRun>(2)};
    if (combination.has("earlier_run")) trainer->train(options);
    options.callbacks = {};
  }

  /// Performs what must not change the run.
  void do_before() {
    const EvaluateOptions evaluation{.dataset = toy_data(5)};
    if (combination.is("before", "evaluate")) trainer->evaluate(evaluation);
    if (combination.is("before", "predict")) trainer->predict(evaluation);
    if (combination.is("before", "find_batch_size")) {
      find_batch_size(*trainer, options,
                      {.min_batch_size = 2, .max_batch_size = 4, .num_updates = 2});
    }
    if (combination.is("before", "find_learning_rate")) {
      find_learning_rate(*trainer, options, {.end_lr = 0.1, .num_updates = 4});
    }
  }

  /// Returns the folder or state from which the run resumes.
  std::filesystem::path saved_state() const {
    return states / (combination.is("save", "by_hand") ? "by_hand" : "latest");
  }
  bool has_state() const {
    return combination.is("save", "by_hand") ? std::filesystem::exists(saved_state())
                                             : latest_training_state(states).has_value();
  }

  TrainResult train() {
    options.callbacks = {cut};
    if (!combination.is("save", "by_hand")) {
      SaveTrainingStateOptions save{.directory = states};
      if (combination.is("save", "every_update") || combination.is("save", "asynchronous")) {
        save.every_n_updates = 1;
      }
      if (combination.is("save", "every_epoch")) save.every_n_epochs = 1;
      save.asynchronous = combination.is("save", "asynchronous");
      options.callbacks.push_back(make<SaveTrainingState>(save));
    }
    return trainer->train(options);
  }

  /// Trains until the run is cut, and saves its state by hand if the combination says so.
  void train_until_cut() {
    try {
      train();
      if (combination.is("save", "by_hand") && trainer->can_save_training_state()) {
        trainer->save_training_state(saved_state());
      }
    } catch (const std::runtime_error& error) {
      if (std::string(error.what()) != "cut") throw;
    }
    trainer->wait_for_saves();
  }

  void save_end() { trainer->save_training_state(states.parent_path() / "end"); }

  /// Changes everything that a resumed run must restore.
  void spoil() {
    torch::manual_seed(99);
    const torch::NoGradGuard no_grad;
    for (const auto& tensor : tensors()) tensor.fill_(7);
  }

  std::vector<torch::Tensor> tensors() const {
    auto all = model->parameters();
    for (const auto& tensor : model->buffers()) all.push_back(tensor);
    if (combination.has("second_optimizer")) {
      for (const auto& tensor : second->parameters()) all.push_back(tensor);
    }
    if (loss_module) all.push_back(loss_module->scale);
    return all;
  }

  AcceleratorOptions accelerator_options(AcceleratorOptions accelerator) const {
    accelerator.precision = from_text<Precision>(combination["precision"]);
    accelerator.grad_scaler = {.init_scale = std::stod(combination["scale"]), .growth_interval = 2};
    accelerator.channels_last = combination.has("channels_last");
    accelerator.distributed.bucket_cap_mb = std::stod(combination["bucket_cap_mb"]);
    accelerator.distributed.find_unused_parameters = combination.has("find_unused");
    accelerator.distributed.static_graph = combination.has("static_graph");
    accelerator.distributed.broadcast_buffers = !combination.has("broadcast_buffers");
    if (combination.has("bucket_view")) accelerator.distributed.gradient_as_bucket_view = false;
    if (combination.has("communication_hook")) {
      accelerator.distributed.gradient_comm_hook = std::make_shared<AveragingHook>();
    }
    accelerator.distributed.zero_stage = combination.number("zero_stage");
    accelerator.distributed.zero_whole_below = 0;
    const bool has_pairs = read_launch_environment().world_size % 2 == 0;
    if (combination.is("mesh", "pairs") && has_pairs) accelerator.parallel.tensor = 2;
    accelerator.distributed.local_sgd_interval = combination.number("local_sgd");
    accelerator.distributed.compression = from_text<Compression>(combination["compression"]);
    return accelerator;
  }

  LossFunction loss() const {
    return loss_module ? LossFunction(loss_module) : LossFunction(torch::nn::CrossEntropyLoss());
  }

  std::shared_ptr<torch::optim::Optimizer> make_optimizer() const {
    namespace optim = torch::optim;
    std::vector<torch::Tensor> trained = model->parameters();
    if (loss_module) trained.push_back(loss_module->scale);
    if (!combination.has("param_groups")) return optimizer_of(trained);
    const std::vector<torch::Tensor> first{trained.front()};
    const std::vector<torch::Tensor> others(trained.begin() + 1, trained.end());
    const auto optimizer = optimizer_of(std::vector<optim::OptimizerParamGroup>{{first}, {others}});
    auto& options = optimizer->param_groups()[1].options();
    options.set_lr(options.get_lr() / 2);
    return optimizer;
  }

  template <class Parameters>
  std::shared_ptr<torch::optim::Optimizer> optimizer_of(const Parameters& trained) const {
    namespace optim = torch::optim;
    const std::string& name = combination["optimizer"];
    if (name == "sgd") return std::make_shared<optim::SGD>(trained, 0.1);
    if (name == "adam") return std::make_shared<optim::Adam>(trained, 0.05);
    if (name == "adamw") return std::make_shared<optim::AdamW>(trained, 0.05);
    if (name == "adagrad") return std::make_shared<optim::Adagrad>(trained, 0.1);
    if (name == "rmsprop") return std::make_shared<optim::RMSprop>(trained, 0.01);
    if (name == "lbfgs") {
      return std::make_shared<optim::LBFGS>(trained, optim::LBFGSOptions(0.5).max_iter(3));
    }
    return std::make_shared<optim::SGD>(trained, optim::SGDOptions(0.1).momentum(0.9));
  }

  DataLoaderOptions loader_options() const {
    const int64_t samples = combination.number("samples");
    const int64_t batch_size = combination.number("batch_size");
    DataLoaderOptions loader{.batch_size = batch_size,
                             .num_workers = combination.number("workers"),
                             .prefetch_factor = combination.number("prefetch_factor")};
    if (combination.has("drop_last")) loader.drop_last = true;
    if (combination.has("even_batches")) loader.even_batches = false;
    if (combination.has("transform")) {
      loader.seed = 8;
      loader.transform = &with_noise;
    }
    if (combination.is("order", "in_order")) loader.shuffle = false;
    if (combination.is("order", "sampler")) {
      loader.sampler = std::make_shared<RepeatingSampler>(samples);
    }
    if (combination.is("order", "batch_sampler")) {
      loader.batch_size.reset();
      loader.batch_sampler = std::make_shared<UnevenBatches>(samples, batch_size);
    }
    return loader;
  }

  /// Returns the loader of the training data, or null if the data is a dataset.
  std::shared_ptr<DataLoader> make_loader() const {
    const int64_t samples = combination.number("samples");
    const int64_t batch_size = combination.number("batch_size");
    if (combination.is("data", "dataset")) return nullptr;
    if (combination.is("data", "reused_memory")) {
      return std::make_shared<ReusedMemory>(samples, batch_size);
    }
    const StreamOptions stream{.batches_per_epoch = samples / batch_size};
    const DataLoaderOptions loader = loader_options();
    const bool has_state = combination["data"].ends_with("state");
    if (combination.has_single_stream()) {
      return make_stream_loader(std::make_shared<SampleStream>(0, has_state), stream, loader);
    }
    return make_stream_loader(
        [has_state](int64_t epoch, const DataLoaderShard&) {
          return std::make_shared<SampleStream>(epoch * 1000, has_state);
        },
        stream, loader);
  }

  Combination combination;
  std::filesystem::path states;
  std::shared_ptr<Cut> cut;
  torch::nn::Sequential model{nullptr};
  torch::nn::Linear second{nullptr};
  std::shared_ptr<ScaledCrossEntropy> loss_module;
  std::unique_ptr<CombinationTrainer> trainer;
  TrainOptions options;

 private:
  void make_model() {
    namespace nn = torch::nn;
    torch::manual_seed(3);
    if (combination.is("model", "batch_norm")) {
      model = nn::Sequential(nn::Linear(4, 5), nn::BatchNorm1d(5), nn::ReLU(), nn::Linear(5, 3));
    } else if (combination.is("model", "dropout")) {
      model = nn::Sequential(nn::Linear(4, 5), nn::ReLU(), nn::Dropout(0.3), nn::Linear(5, 3));
    } else if (combination.is("model", "conv")) {
      const std::vector<int64_t> sizes{2, 2, 1};
      model = nn::Sequential(nn::Unflatten(nn::UnflattenOptions(1, sizes)),
                             nn::Conv2d(nn::Conv2dOptions(2, 4, 2).padding(1)), nn::BatchNorm2d(4),
                             nn::ReLU(), nn::Flatten(), nn::Linear(24, 3));
    } else {
      model = nn::Sequential(nn::Linear(4, 5), nn::ReLU(), nn::Linear(5, 3));
    }
    second = nn::Linear(4, 3);
    if (combination.has("loss_module")) loss_module = std::make_shared<ScaledCrossEntropy>();
    if (combination.is("frozen", "first_layer")) {
      for (auto& parameter : model->parameters()) {
        if (parameter.sizes() == model->parameters().front().sizes()) {
          parameter.requires_grad_(false);
        }
      }
    }
  }

  void make_options() {
    const Combination& chosen = combination;
    options.per_device_batch_size = chosen.number("batch_size");
    options.train_dataloader = make_loader();
    if (!options.train_dataloader) {
      options.train_dataset = toy_data(chosen.number("samples"));
      options.train_dataloader_options = loader_options();
    }
    options.num_epochs = chosen.number("num_epochs");
    if (chosen.has("max_num_updates")) options.max_num_updates = chosen.number("max_num_updates");
    options.gradient_accumulation_steps = chosen.number("accumulation");
    if (chosen.has("clip_value")) options.gradient_clip_value = std::stod(chosen["clip_value"]);
    if (chosen.has("clip_norm")) options.gradient_clip_norm = std::stod(chosen["clip_norm"]);
    options.create_scheduler_fn = schedule_of(chosen);
    options.reset_run_history = !chosen.is("earlier_run", "continued");
    if (chosen.is("evaluation", "loader")) {
      options.eval_dataloader = make_data_loader(toy_data(5), {.batch_size = 2});
    } else if (chosen.is("evaluation", "stream")) {
      options.eval_dataloader = make_stream_loader(
          [](int64_t, const DataLoaderShard&) { return std::make_shared<SampleStream>(50, false); },
          {.batches_per_epoch = 3}, {.batch_size = 2});
    } else if (!chosen.is("evaluation", "none")) {
      options.eval_dataset = toy_data(5);
    }
    if (chosen.is("evaluation", "two_sets")) options.more_eval_datasets = {{"more", toy_data(3)}};
    options.evaluate_every_n_epochs = chosen.number("evaluate_every");
    options.evaluate_before_training = chosen.has("evaluate_before");
    options.weight_by_batch_size = chosen.has("weight_by_batch_size");
    options.execution_mode = from_text<ExecutionMode>(chosen["execution"]);
    options.create_step_executor_fn = interpreted_steps({});
  }
};

}  // namespace linkboy::testing

#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>

#include "linkboy/accelerator.hpp"
#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/data/batch.hpp"
#include "linkboy/data/data_loader.hpp"
#include "linkboy/export.hpp"
#include "linkboy/loss_function.hpp"
#include "linkboy/model.hpp"
#include "linkboy/run/run_config.hpp"
#include "linkboy/scheduler.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

struct InitializedEngine;

/// How an Engine makes updates. The members mean the same as those of TrainOptions.
struct EngineOptions {
  /// Passes over the training data. At least 1. A scheduler needs it or `max_num_updates`.
  std::optional<int64_t> num_epochs{};
  /// Updates in the whole run. At least 1. If given it replaces `num_epochs`. The loop stops there
  /// by `Engine::has_updates_left`.
  std::optional<int64_t> max_num_updates{};
  /// Micro-steps whose gradients make one update. At least 1.
  int64_t gradient_accumulation_steps = 1;
  /// Largest absolute value of a gradient element, applied once per update. Positive.
  std::optional<double> gradient_clip_value{};
  /// Largest 2-norm of all gradients together, applied after the value clip. Positive.
  std::optional<double> gradient_clip_norm{};
  /// Device, precision and processes.
  AcceleratorOptions accelerator{};
  /// If it is not null, the Engine uses this Accelerator and does not read `accelerator`.
  std::shared_ptr<Accelerator> shared_accelerator{};

  LINKBOY_FIELDS(num_epochs, max_num_updates, gradient_accumulation_steps, gradient_clip_value,
                 gradient_clip_norm);
};

/// The updates of a hand-written loop. `initialize` makes one.
///
///     auto [engine, train_loader, test_loader, scheduler] = linkboy::initialize(
///         model, optimizer, torch::nn::CrossEntropyLoss(), train_loader_of_all,
///         test_loader_of_all, linkboy::cosine({}), {.num_epochs = 90, .gradient_clip_norm = 1.0});
///     for (int64_t epoch = 1; epoch <= 90; ++epoch) {
///       engine.train();
///       for (const linkboy::Batch& batch : train_loader->batches(epoch)) {
///         engine.zero_grad();
///         const at::Tensor output = engine(batch);
///         engine.backward(engine.criterion(output, batch.target()));
///         engine.step();
///       }
///     }
///
/// Every batch is one micro-step: it begins with `zero_grad` or the forward pass and ends with
/// `step`. The Engine runs the forward pass and the criterion in the precision of the Accelerator,
/// scales and averages the gradients, clips them, and steps the optimizer and the scheduler after
/// each complete accumulation window. An epoch begins when the training loader is iterated; its
/// last window may be shorter than the others and is divided by its own length.
///
/// Used by one thread. With several processes, all of them must call `step`, `train`-mode forward
/// passes, `backward`, `eval` and `state_dict` equally often.
class LINKBOY_API Engine {
 public:
  ~Engine();
  /// The engine that was moved from can only be destroyed or assigned to.
  /// @{
  Engine(Engine&& other) noexcept;
  Engine& operator=(Engine&& other) noexcept;
  /// @}

  /// Puts the model and the module of the criterion into training mode.
  void train();
  /// Puts them into evaluation mode, and gives all processes the batch-norm statistics of rank 0.
  /// @note Collective.
  void eval();

  /// Clears the gradients, unless the accumulation window still needs them.
  void zero_grad();

  /// Runs the model on the batch's `input()`.
  at::Tensor operator()(const Batch& batch) { return (*this)(batch.input()); }
  /// Runs the model on these tensors.
  /// @throws Error as Model's operator().
  template <std::same_as<at::Tensor>... Rest>
  at::Tensor operator()(const at::Tensor& input, const Rest&... rest) {
    begin_forward();
    const auto autocast = accelerator().autocast();
    return model()(input, rest...);
  }

  /// Returns the loss, a scalar.
  /// @throws Error if the Engine was made without a criterion.
  at::Tensor criterion(const at::Tensor& output, const at::Tensor& target);

  /// Adds the gradients of `loss`, divided by the length of the accumulation window. The last
  /// micro-step of a window averages them over the processes.
  /// @param loss  Scalar on the device.
  /// @throws Error if a process is lost. @note Collective.
  void backward(const at::Tensor& loss);

  /// Ends the micro-step. At the end of an accumulation window it clips the gradients and steps the
  /// optimizer and the scheduler. In fp16 an update with an infinite or NaN gradient is skipped;
  /// the scheduler then does not step. On CUDA the host learns that later, at the latest when the
  /// scheduler or `num_updates` is asked for.
  /// @return Whether this was the end of an accumulation window.
  /// @throws Error if there was no `backward` since the last `step`. @note Collective.
  bool step();

  /// Updates made so far; skipped ones do not count.
  int64_t num_updates();
  /// Epochs of the training loader that are complete.
  int64_t num_epochs() const;
  /// Micro-steps of the present epoch that are complete; 0 between epochs. A resumed run passes it
  /// to `batches` or `iterate` of the training loader.
  int64_t micro_step() const;
  /// Whether the run is to continue: with `max_num_updates`, until so many updates are made; with
  /// `num_epochs` alone, until so many epochs are complete; without both, always.
  bool has_updates_left();

  /// Returns the 2-norm of the last update's gradients before clipping, a scalar on the device;
  /// undefined without `gradient_clip_norm`.
  const at::Tensor& gradient_norm() const;

  /// The model.
  Model& model();
  /// The optimizer.
  torch::optim::Optimizer& optimizer();
  /// The scheduler, or null. `step` steps it, and counts epochs for it. A schedule that follows a
  /// metric needs a call of `scheduler()->epoch_end(epoch, history, true)` after each epoch.
  Scheduler* scheduler();
  /// Device, precision and processes.
  Accelerator& accelerator();
  /// What the options, the loaders and the processes resolved to.
  const RunConfig& run_config() const;

  /// Returns the model, the optimizer and the scheduler as a checkpoint of Trainer, and under
  /// "engine" what else a resumed loop needs: counts, the fp16 scale and the loader's seed. The
  /// state of random generators is not part of it.
  /// @throws Error in the middle of an accumulation window. @note Collective.
  StateDict state_dict();
  /// Restores it. The loop continues with epoch `num_epochs() + 1` at batch `micro_step()`.
  /// @throws Error if a part is missing or does not fit; nothing has changed then.
  /// @note Collective.
  void load_state_dict(const StateDict& state);

 private:
  struct Implementation;
  friend InitializedEngine initialize(
      Model model, std::shared_ptr<torch::optim::Optimizer> optimizer, LossFunction criterion,
      std::shared_ptr<DataLoader> train_loader, std::shared_ptr<DataLoader> eval_loader,
      const CreateSchedulerFn& create_scheduler_fn, EngineOptions options);

  explicit Engine(std::unique_ptr<Implementation> implementation);
  void begin_forward();

  std::unique_ptr<Implementation> impl_;
};

/// What `initialize` returns; take it apart by `auto [engine, train_loader, ...]`.
struct InitializedEngine {
  /// Makes the updates.
  Engine engine;
  /// The training batches of this process, on its device; null if there was no loader.
  std::shared_ptr<DataLoader> train_loader;
  /// The evaluation batches of this process, on its device: each sample belongs to one process.
  std::shared_ptr<DataLoader> eval_loader;
  /// `engine.scheduler()`.
  Scheduler* scheduler;
};

/// Makes an Engine: finds the device and the other processes, moves the model, the optimizer's
/// state and the criterion there, gives all processes the weights of rank 0, shares the loaders
/// between the processes, and makes the scheduler for the length of the run.
///
/// @param criterion  May be empty if the loop computes its losses itself.
/// @param train_loader  A loader of all batches, as `make_data_loader` makes it without a `shard`;
///        any other loader must give the batches of its own process. May be null: then every
///        accumulation window has its full length.
/// @param eval_loader  As `train_loader`.
/// @param create_scheduler_fn  May be empty.
/// @throws OptionError if the model has no optimizer, an option is out of its range, or the length
///         of the run is needed and not known; Error as Accelerator's constructor and `prepare`.
/// @note Collective.
LINKBOY_API InitializedEngine initialize(Model model,
                                         std::shared_ptr<torch::optim::Optimizer> optimizer,
                                         LossFunction criterion = {},
                                         std::shared_ptr<DataLoader> train_loader = nullptr,
                                         std::shared_ptr<DataLoader> eval_loader = nullptr,
                                         const CreateSchedulerFn& create_scheduler_fn = {},
                                         EngineOptions options = {});

}  // namespace linkboy

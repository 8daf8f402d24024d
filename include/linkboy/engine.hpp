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

/// Options of an Engine. Members have the same meaning as in TrainOptions.
struct EngineOptions {
  /// Number of passes over the training data; at least 1. A scheduler needs either this, with a
  /// training loader, or `max_num_updates`.
  std::optional<int64_t> num_epochs{};
  /// Number of updates in the entire run; at least 1. Overrides `num_epochs` if set. The range of
  /// batches that the loop trains ends after the last update.
  std::optional<int64_t> max_num_updates{};
  /// Number of micro-steps per update; at least 1.
  int64_t gradient_accumulation_steps = 1;
  /// Largest absolute value of a gradient element, applied once per update; must be positive.
  std::optional<double> gradient_clip_value{};
  /// Largest 2-norm of all gradients together, applied after the value clip; must be positive.
  std::optional<double> gradient_clip_norm{};
  /// Device, precision and process options.
  AcceleratorOptions accelerator{};
  /// If not null, the Engine uses this Accelerator and ignores `accelerator`.
  std::shared_ptr<Accelerator> shared_accelerator{};

  LINKBOY_FIELDS(num_epochs, max_num_updates, gradient_accumulation_steps, gradient_clip_value,
                 gradient_clip_norm);
};

/// Performs the updates of a hand-written loop. `initialize` creates it.
///
///     auto [engine, train_dataloader, eval_dataloader, scheduler] = linkboy::initialize(
///         model, optimizer, torch::nn::CrossEntropyLoss(), train_data, eval_data,
///         linkboy::cosine(), {.num_epochs = 90, .gradient_clip_norm = 1.0});
///     for (int64_t epoch = 1; epoch <= 90; ++epoch) {
///       engine.train();
///       for (const linkboy::Batch& batch : train_dataloader->batches(epoch)) {
///         engine.zero_grad();
///         const at::Tensor output = engine(batch);
///         engine.backward(engine.loss_function(output, batch.target()));
///         engine.step();
///       }
///     }
///
/// Every batch is one micro-step: it begins with `zero_grad` or the forward pass and ends with
/// `step`. The Engine runs the forward pass and the loss function in the Accelerator's precision,
/// scales and averages the gradients, clips them, and steps the optimizer and the scheduler after
/// each complete accumulation window. An epoch begins when you train the first batch of a new
/// iteration over the training loader. Its last window may be shorter than the others; its
/// gradients are divided by its actual length. You can look at batches of the training loader in
/// another iteration at any time.
///
/// Use an Engine from one thread. With several processes, all of them must run the same number of
/// forward passes in training mode, and must call `backward`, `step`, `eval` and `state_dict` the
/// same number of times.
class LINKBOY_API Engine {
 public:
  ~Engine();
  /// Moves an Engine. The moved-from Engine may only be destroyed or assigned to.
  /// @{
  Engine(Engine&& other) noexcept;
  Engine& operator=(Engine&& other) noexcept;
  /// @}

  /// Switches the model and the module of the loss function to training mode.
  void train();
  /// Switches the model and the module of the loss function to evaluation mode, and broadcasts rank
  /// 0's buffers (such as batch-norm statistics) to all processes.
  /// @note Collective.
  void eval();

  /// Clears the gradients, unless the current accumulation window still needs them.
  void zero_grad();

  /// Runs the model on the batch's `input()`.
  at::Tensor operator()(const Batch& batch) { return (*this)(batch.input()); }
  /// Runs the model on the given tensors.
  /// @throws Error under the same conditions as Model's operator().
  template <std::same_as<at::Tensor>... Rest>
  at::Tensor operator()(const at::Tensor& input, const Rest&... rest) {
    begin_forward();
    const auto autocast = accelerator().autocast();
    return model()(input, rest...);
  }

  /// Computes the loss.
  /// @return A scalar.
  /// @throws Error if the Engine was created without a loss function.
  at::Tensor loss_function(const at::Tensor& output, const at::Tensor& target);

  /// Adds the gradients of `loss` divided by the length of the accumulation window. In the window's
  /// last micro-step, averages them over the processes.
  /// @param loss  Scalar on the device.
  /// @throws DistributedError if a process is lost.
  /// @note Collective.
  void backward(const at::Tensor& loss);

  /// Ends the micro-step. At the end of an accumulation window, clips the gradients and steps the
  /// optimizer and the scheduler. In fp16, an update with an infinite or NaN gradient is skipped,
  /// and the scheduler is then not stepped. On CUDA, the host finds this out later, at the latest
  /// when you call `scheduler` or `num_updates`.
  /// @return Whether this micro-step was the last one of its accumulation window.
  /// @throws Error if `backward` was not called since the last `step`, or if all updates of
  ///         `max_num_updates` are made.
  /// @note Collective.
  bool step();

  /// Number of updates so far; skipped ones do not count.
  int64_t num_updates();
  /// Number of complete epochs of the training loader.
  int64_t num_epochs() const;
  /// Number of complete micro-steps in the current epoch; 0 between epochs. In a resumed run, pass
  /// it to `batches` or `iterate` of the training loader.
  int64_t micro_step() const;
  /// Whether the run must continue. With `max_num_updates`, true until the number of updates
  /// reaches it; with `num_epochs` alone, until that number of epochs is complete.
  /// @throws OptionError if neither is set.
  [[nodiscard]] bool has_updates_left();

  /// Returns the 2-norm of the last update's gradients before clipping, a scalar on the device;
  /// undefined without `gradient_clip_norm`.
  const at::Tensor& gradient_norm() const;

  /// The model.
  Model& model();
  /// The optimizer.
  torch::optim::Optimizer& optimizer();
  /// The scheduler, or null. `step` steps it and counts epochs for it. If the schedule follows a
  /// metric, call `scheduler()->epoch_end(epoch, history, true)` after each epoch. If the loop has
  /// not called `scheduler` by the end of the second epoch, a warning is logged.
  Scheduler* scheduler();
  /// The Accelerator with the device, the precision and the processes.
  Accelerator& accelerator();
  /// The run configuration that results from the options, the loaders and the processes.
  const RunConfig& run_config() const;

  /// Returns the model, the optimizer and the scheduler in the format of a Trainer checkpoint and,
  /// under "engine", the remaining state that a resumed loop needs: counts, the fp16 scale and the
  /// loader's seed. The states of random number generators are not included.
  /// @throws Error in the middle of an accumulation window.
  /// @note Collective.
  [[nodiscard]] StateDict state_dict();
  /// Restores a state that `state_dict` returned. The loop must continue with epoch
  /// `num_epochs() + 1` at batch `micro_step()`; its first forward pass with other batches of the
  /// loader throws Error. To continue with a longer schedule or another one, first call
  /// `scheduler()->allow_changed_lengths(true)`.
  /// @throws Error if a part is missing or does not fit; nothing has changed in this case.
  /// @note Collective.
  void load_state_dict(const StateDict& state);

 private:
  struct Implementation;
  friend InitializedEngine initialize(
      Model model, std::shared_ptr<torch::optim::Optimizer> optimizer, LossFunction loss_function,
      std::shared_ptr<DataLoader> train_dataloader, std::shared_ptr<DataLoader> eval_dataloader,
      const CreateSchedulerFn& create_scheduler_fn, EngineOptions options);

  explicit Engine(std::unique_ptr<Implementation> implementation);
  void begin_forward();

  std::unique_ptr<Implementation> impl_;
};

/// Result of `initialize`; unpack it with `auto [engine, train_dataloader, ...]`.
struct InitializedEngine {
  /// Performs the updates.
  Engine engine;
  /// Loader of this process's training batches, on its device; null if no loader was passed.
  std::shared_ptr<DataLoader> train_dataloader;
  /// Loader of this process's evaluation batches, on its device. Each sample belongs to exactly one
  /// process. Null if no loader was passed.
  std::shared_ptr<DataLoader> eval_dataloader;
  /// The scheduler of `engine`; may be null.
  Scheduler* scheduler;
};

/// Creates an Engine. Selects the device, connects the processes, and moves the model, the
/// optimizer's state and the loss function to the device. Broadcasts rank 0's weights to all
/// processes and shares the loaders between them. Creates the scheduler for the length of the run.
///
/// @param loss_function  May be empty if the loop computes its losses itself.
/// @param train_dataloader  Either a loader that returns all batches on every process (see
///        `DataLoader::shared`), or one that returns only the batches of its own process. If it is
///        null, every accumulation window has its full length.
/// @param eval_dataloader  Treated like `train_dataloader`; may be null.
/// @param create_scheduler_fn  May be empty.
/// @throws OptionError if the optimizer is null or an LBFGS, if an option is out of range, or if
///         the scheduler needs the length of the run but it is not known; the errors of
///         Accelerator's constructor and `prepare`.
/// @note Collective.
LINKBOY_API InitializedEngine initialize(Model model,
                                         std::shared_ptr<torch::optim::Optimizer> optimizer,
                                         LossFunction loss_function = {},
                                         std::shared_ptr<DataLoader> train_dataloader = nullptr,
                                         std::shared_ptr<DataLoader> eval_dataloader = nullptr,
                                         const CreateSchedulerFn& create_scheduler_fn = {},
                                         EngineOptions options = {});

}  // namespace linkboy

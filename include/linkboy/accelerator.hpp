#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "linkboy/accelerator/accelerator_options.hpp"
#include "linkboy/accelerator/main_process.hpp"
#include "linkboy/data/data_loader.hpp"
#include "linkboy/distributed/distributed_options.hpp"
#include "linkboy/distributed/process_group.hpp"
#include "linkboy/export.hpp"
#include "linkboy/model.hpp"
#include "linkboy/precision/autocast.hpp"
#include "linkboy/precision/grad_scaler.hpp"
#include "linkboy/run/accumulation_window.hpp"
#include "linkboy/run/logger.hpp"

namespace torch::optim {
class Optimizer;
}

namespace linkboy {

class RunHistory;

/// Applies device, precision and process options to the hardware. Trainer and Engine each use one.
/// In a hand-written loop, first call `prepare` for the model with its optimizer and for the
/// loader, then:
///
///     for (int64_t i = 0; auto batch = batches->next(); ++i) {
///       const auto window = accelerator.begin_micro_step(i, loader->size());
///       at::Tensor loss;
///       {
///         const auto autocast = accelerator.autocast();
///         loss = loss_function(model(batch->input()), batch->target());
///       }
///       accelerator.backward(loss);
///       if (!window.is_complete()) continue;
///       accelerator.unscale_gradients(optimizer);
///       accelerator.clip_grad_norm(model.parameters(), 1.0);
///       accelerator.optimizer_step(optimizer);
///       accelerator.zero_grad(optimizer);
///     }
///
/// Use an Accelerator from one thread.
class LINKBOY_API Accelerator {
 public:
  /// Selects the device and, if several processes were launched together, connects them.
  /// @throws OptionError if the device is unknown or not available (the message shows the accepted
  ///         values), if an option is out of range, or if two ranks have the same CUDA device;
  ///         DistributedError if the processes do not connect before the timeout or, on all ranks,
  ///         if an option other than `timeout` and the device's index differs between them.
  /// @note Collective, if several processes were launched together.
  explicit Accelerator(AcceleratorOptions options = {});
  ~Accelerator();
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  /// The device of the model and the batches.
  c10::Device device() const;

  /// Moves the model to the device and into its memory format, in place, so that optimizers stay
  /// valid. Also moves the state of `optimizer` if it is an SGD, Adam, AdamW, Adagrad, RMSprop or
  /// LBFGS. Broadcasts rank 0's weights to all processes. From then on, `backward` averages the
  /// gradients over the processes, for the model and all other parameters that `optimizer` trains.
  /// Local SGD counts the updates of `optimizer` from this call on.
  /// @param others  Further modules, which must already be on the device. Their tensors are
  ///        broadcast from rank 0, and their buffers are treated like those of the model.
  /// @param other_optimizers  Further optimizers, which are treated like `optimizer`. The
  ///        parameters of each form a separate group (a parameter of several optimizers belongs to
  ///        the first). `backward` averages the gradients of a group if the loss reaches one of its
  ///        parameters.
  /// @param is_for_evaluation  Whether an earlier training continues: its counts of updates are
  ///        kept and, with local SGD, the processes keep their different weights.
  /// @throws DistributedError on all ranks if their models differ in names, shapes or dtypes.
  /// @note Collective.
  void prepare(Model& model, const torch::optim::Optimizer* optimizer = nullptr,
               const std::vector<std::shared_ptr<torch::nn::Module>>& others = {},
               const std::vector<const torch::optim::Optimizer*>& other_optimizers = {},
               bool is_for_evaluation = false);

  /// Reserves the Accelerator, which stores the accumulation window, the fp16 scale and the
  /// reducers of one training, until the result is destroyed. The result must not outlive the
  /// Accelerator. Trainer reserves it during `train`.
  /// @throws Error if the Accelerator is reserved.
  [[nodiscard]] std::shared_ptr<void> reserve();

  /// Returns a loader whose batches arrive on the device. If `loader` returns all batches on every
  /// process (see `DataLoader::shared`), the processes share it: each gets different batches, in
  /// the order that rank 0's seed determines. Any other loader must already return only the batches
  /// of its own process, and say so (`DataLoader::returns_own_share`).
  /// @throws OptionError if there are several processes and the loader does neither.
  /// @note Collective, if this call shares the loader.
  [[nodiscard]] std::shared_ptr<DataLoader> prepare(std::shared_ptr<DataLoader> loader) const;

  /// Returns an object that applies `AcceleratorOptions::precision` until it is destroyed. Use it
  /// for the forward pass and the loss, not for the backward pass. Trainer uses it for
  /// `calculate_train_batch_loss` and `calculate_eval_batch_loss`.
  AutocastScope autocast() const;

  /// Begins micro-step `index` (from 0) of an epoch of `num_micro_steps`. If the returned
  /// accumulation window is complete, perform an update after the micro-step. A window is complete
  /// after `gradient_accumulation_steps` micro-steps and at the end of the epoch. Until the next
  /// call, `backward` divides by the actual length of this window.
  /// @param calls_update_scale  Whether the loop calls `update_scale` at the end of the window, as
  ///        Trainer does. Otherwise, `backward` may adjust the fp16 scale within it.
  AccumulationWindow begin_micro_step(int64_t index, int64_t num_micro_steps,
                                      bool calls_update_scale = false);

  /// The position of the current micro-step, as `begin_micro_step` returned it.
  AccumulationWindow window() const;

  /// Adds the gradients of `loss` divided by the length of the accumulation window; in fp16 they
  /// are also scaled. In the window's last micro-step, averages the gradients over the processes
  /// while they are computed.
  /// @param loss  Scalar on the device.
  /// @throws DistributedError if a process is lost.
  /// @note Collective.
  void backward(const at::Tensor& loss);

  /// Removes the fp16 scale from the gradients. Call it before you read or clip them; otherwise
  /// `optimizer_step` removes the scale. Does nothing in other precisions, or if the gradients are
  /// already unscaled.
  void unscale_gradients(torch::optim::Optimizer& optimizer);

  /// Scales all gradients together to a 2-norm of at most `max_norm`. If `max_norm` is infinite,
  /// only computes the norm. In fp16, call it after `unscale_gradients`. Does not wait for the
  /// device; with `zero_stage` 2 or 3 and Gloo it waits for the other processes.
  /// @return The norm before the scaling, a scalar on the device.
  /// @throws Error if `max_norm` is not positive.
  /// @note Collective, with `zero_stage` 2 or 3.
  at::Tensor clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm) const;

  /// Limits each gradient element to [-clip_value, clip_value]. In fp16, call it after
  /// `unscale_gradients`.
  /// @throws Error if `clip_value` is not positive.
  void clip_grad_value(const std::vector<at::Tensor>& parameters, double clip_value) const;

  /// Performs one update. For SGD, Adam, AdamW and Adagrad, this is one fused call where LibTorch
  /// has one; the state and the numbers are then those of Python's `fused=True`. RMSprop uses
  /// multi-tensor operations, and any other optimizer uses `optimizer.step()`.
  ///
  /// In fp16, all processes skip the update if a gradient on any of them is infinite or NaN. With a
  /// fused call on CUDA, the host finds this out later. The optimizer's update counts include the
  /// skipped step until you call `optimizer_step_was_skipped`, `settle_optimizer_steps`,
  /// `optimizer_state_dict` or the optimizer's next `optimizer_step`. In fp16, `optimizer` must
  /// stay alive until the next `begin_micro_step`.
  /// @return Whether the step was skipped, for a later query.
  /// @throws OptionError if `optimizer` is an LBFGS, whose step needs a closure.
  /// @note Collective, with `zero_stage`, `local_sgd_interval`, or a `gradient_comm_hook` in fp16.
  StepOutcome optimizer_step(torch::optim::Optimizer& optimizer);

  /// Performs one update with `optimizer.step(closure)`, for an optimizer that evaluates the loss
  /// itself, such as LBFGS. For each batch of the accumulation window, `closure` must run
  /// `begin_micro_step`, the forward pass and `backward`. It must clear the gradients first and
  /// return the mean loss of the batches. The optimizer receives the mean of this loss over the
  /// processes, so that all processes make the same decisions.
  /// @throws OptionError in fp16, with `zero_stage` or with `local_sgd_interval`; Error if
  ///         `closure` is empty or does not return a single number.
  /// @note Collective.
  void optimizer_step(torch::optim::Optimizer& optimizer,
                      const std::function<at::Tensor()>& closure);

  /// Whether the processes have different weights between two averages, as with
  /// `local_sgd_interval`.
  bool has_own_weights() const {
    return num_processes() > 1 && distributed_options().local_sgd_interval > 0;
  }

  /// Whether each process has only a part of the parameters, so that they must be used on all
  /// processes together (`zero_stage` 3).
  bool has_distributed_parameters() const {
    return distributed_options().zero_stage == 3 && mesh().size(MeshDim::shard) > 1;
  }

  /// Returns the state that `optimizer` needs to resume, in the format of Python's
  /// `Optimizer.state_dict`. With `zero_stage`, it includes the parts of all processes. A param
  /// group that `optimizer_step` updates with fused kernels has `fused` = True, so that Python
  /// continues with the same numbers; linkboy ignores this key when it loads the state.
  /// @note Collective, with `zero_stage`.
  [[nodiscard]] StateDict optimizer_state_dict(const torch::optim::Optimizer& optimizer) const;

  /// Returns the state that a resumed run needs for identical numbers, in addition to those of the
  /// model, the optimizer and the GradScaler: the order in which gradients are sent (sums over many
  /// processes depend on it) and, with local SGD, each optimizer's number of updates.
  /// @note Collective.
  [[nodiscard]] StateDict state_dict() const;
  /// Restores the state; call it after `prepare`. Ignores the sending order of other models.
  /// @throws Error if the state is incomplete or if its counts of updates are not valid.
  /// @note Collective.
  void load_state_dict(const StateDict& state);

  /// Releases the gradients of all param groups.
  static void zero_grad(torch::optim::Optimizer& optimizer);
  /// Ends an accumulation window without an update: releases the gradients of the optimizers. In
  /// fp16, an overflow among gradients that are already unscaled lowers the scale.
  /// @note Collective, with `local_sgd_interval` or a `gradient_comm_hook` in fp16.
  void drop_gradients(const std::vector<torch::optim::Optimizer*>& optimizers);

  /// In fp16, adjusts the scale. Call it once per update, after the steps of all optimizers. If you
  /// do not call it, the next `backward` adjusts the scale, unless the gradients of an optimizer
  /// are unscaled and its step is still pending.
  void update_scale();

  /// Call it instead of `optimizer_step` if the gradients must not be applied (for example because
  /// one is NaN). In fp16, it ends the update for all optimizers whose gradients are unscaled.
  void skip_optimizer_step();

  /// Whether an optimizer's step was skipped since the last `begin_micro_step` or `backward`. If
  /// so, the update does not count, and you must not step the scheduler. In fp16, waits until CUDA
  /// has finished the step, and corrects the optimizers' update counts.
  bool optimizer_step_was_skipped();
  /// Waits until it is known which optimizer steps were skipped since the accumulation window
  /// began, and removes these steps from the optimizers' update counts. Call it before you read an
  /// optimizer's state by other means than `optimizer_state_dict`.
  void settle_optimizer_steps();
  /// The same information as `optimizer_step_was_skipped`, for a later query. If you query it after
  /// queuing the next micro-steps, the GPU stays busy while the host waits. Does not change the
  /// optimizers' update counts.
  StepOutcome step_outcome() const;
  /// Returns the outcome of the steps of `optimizer` alone, and leaves them out of `step_outcome`
  /// and `optimizer_step_was_skipped` from now on.
  [[nodiscard]] StepOutcome take_step_outcome(const torch::optim::Optimizer& optimizer);

  /// The precision in which losses are computed.
  Precision precision() const;
  /// The options for several processes.
  const DistributedOptions& distributed_options() const;

  /// The scaler for fp16; null for other precisions.
  GradScaler* grad_scaler();
  /// The scaler for fp16; null for other precisions.
  const GradScaler* grad_scaler() const;

  // ---- Several processes. The functions that exchange data are collective. ---------------------

  /// Returns the rows of all processes, concatenated along dimension 0 in rank order; for scalars,
  /// a tensor of shape [processes].
  /// @throws DistributedError on all ranks if dtypes, shapes or device types differ, or if a rank
  ///         is already in `join_uneven_loop`, as in Trainer's evaluation. Use `gather_for_metrics`
  ///         there.
  [[nodiscard]] at::Tensor gather(const at::Tensor& tensor) const;

  /// Returns the rows of all processes like `gather`, but the tensors may have different numbers of
  /// rows. If `padding_value` is set, pads each tensor with it to the largest number of rows.
  /// @throws Error if `tensor` is a scalar; DistributedError on all ranks if dtypes, device types
  ///         or the shapes of rows differ.
  [[nodiscard]] at::Tensor gather_uneven(const at::Tensor& tensor,
                                         std::optional<double> padding_value = std::nullopt) const;

  /// Broadcasts rank 0's model buffers (such as batch-norm statistics) to all processes, as the
  /// first micro-step of each update does. Call it at the start of an evaluation. Does nothing if
  /// `DistributedOptions::broadcast_buffers` is false, with local SGD, or with one process.
  /// @note Collective.
  void broadcast_buffers() const;

  /// Gathers rows like `gather_uneven` in a loop in which some processes have fewer steps, such as
  /// an evaluation. Processes that wait in `join_uneven_loop` contribute no rows. A scalar is one
  /// row.
  /// @throws DistributedError on all ranks if dtypes, device types or the shapes of rows differ.
  [[nodiscard]] at::Tensor gather_for_metrics(const at::Tensor& tensor) const;

  /// Ends a loop in which some processes may have fewer steps. Until all processes have called it,
  /// answers the `gather_for_metrics` calls of those that are still in the loop. Trainer calls it
  /// after the steps of an evaluation.
  void join_uneven_loop() const;

  /// Reduces the tensors of the processes that share the batches with `op`. The result is the same
  /// on all of them.
  [[nodiscard]] at::Tensor reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::sum) const;

  /// Returns the tensor of rank `root` on all processes of the world. All must pass the same shape
  /// and dtype.
  [[nodiscard]] at::Tensor broadcast(const at::Tensor& tensor, int64_t root = 0) const;

  /// Returns the bytes of rank `root` on all processes of the world; the `bytes` of the other ranks
  /// are ignored.
  /// @note Collective.
  [[nodiscard]] std::string broadcast_bytes(std::string_view bytes, int64_t root = 0) const;
  /// Returns the bytes of all processes of the world, indexed by rank. They may differ in length.
  /// @note Collective.
  [[nodiscard]] std::vector<std::string> all_gather_bytes(std::string_view bytes) const;

  /// Checks that a metric has the same newest value and the same number of values on all processes.
  /// NaN equals NaN. Call it before you let a metric decide about the run. Trainer calls it for the
  /// `monitored_metrics` of schedules, and MetricMonitor for its metric.
  /// @throws DistributedError on all processes if the metric differs; the message lists all values.
  /// @note Collective.
  void check_same_metric(const RunHistory& history, const std::string& name) const;

  /// Waits until all processes have called it.
  /// @note Collective.
  void wait_for_everyone() const { world().barrier(); }

  /// Runs `work` (for example a download) on the main process of each host, then on the other
  /// processes.
  /// @note Collective.
  void main_process_first(const std::function<void()>& work) const;

  /// The processes that share the batches (`MeshDim::data` and `MeshDim::shard`), over which
  /// gradients, losses and metrics are averaged. Without other processes, the group contains only
  /// this one.
  const ProcessGroup& process_group() const;
  /// Shared ownership of `process_group()`, for objects that may outlive the Accelerator.
  std::shared_ptr<const ProcessGroup> shared_process_group() const;

  /// The place of this process among all that train together, and their groups.
  const DeviceMesh& mesh() const;
  /// All processes that train together. They make the same updates, stop together and agree on what
  /// to do.
  const ProcessGroup& world() const { return *mesh().world(); }

  /// Number of processes that share the batches.
  int64_t num_processes() const { return process_group().size(); }
  /// This process's rank among those that share the batches, from 0.
  int64_t process_index() const { return process_group().rank(); }
  /// This process's number on its host, from 0.
  int64_t local_process_index() const;
  /// Whether this is rank 0 of all processes, which prints and saves.
  bool is_main_process() const { return world().rank() == 0; }
  /// Whether this is the first process of its host.
  bool is_local_main_process() const { return local_process_index() == 0; }

  /// Prints a line to standard output on the main process. If there is a logger, logs the line as
  /// `info` instead.
  void print(std::string_view line) const;
  /// Passes a message to the logger on the processes in `ranks`, or on all processes if `ranks` is
  /// empty. Without a logger, drops `debug` messages and prints all others, with the level as a
  /// prefix for `warning` and `error`, and with the rank as a prefix on ranks other than 0.
  void log(LogLevel level, std::string_view message, c10::ArrayRef<int64_t> ranks = {0}) const;
  /// The logger; null if none was passed.
  const std::shared_ptr<Logger>& logger() const;

  /// Seeds LibTorch's generators for the CPU and all CUDA devices. Within linkboy, only `cli::run`
  /// sets seeds.
  static void set_seed(uint64_t seed);

  /// Seeds the generators differently on each process, so that their dropout differs. Shared
  /// loaders are not affected, because they use rank 0's seed for shuffling and transforms on all
  /// processes.
  void set_seed_per_process(uint64_t seed) const {
    set_seed(seed + static_cast<uint64_t>(process_index()));
  }

  /// Sets the number of micro-steps per update, from the next accumulation window on.
  /// @throws OptionError if it is less than 1.
  void set_gradient_accumulation_steps(int64_t steps);

 private:
  struct Implementation;

  std::unique_ptr<Implementation> impl_;
};

}  // namespace linkboy

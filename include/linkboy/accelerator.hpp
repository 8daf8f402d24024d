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

/// Turns what the user says into what the hardware does. Trainer and Engine drive one; a
/// hand-written loop can do the same:
///
/// (`prepare` has seen the model, its optimizer and the loader before.)
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
/// Used by one thread.
class LINKBOY_API Accelerator {
 public:
  /// Collective, if several processes were launched together.
  /// @throws Error if the device is unknown or not there (the message says what
  ///         is), an option is out of its range, or the processes do not find together in time; on
  ///         all ranks, if an option other than `timeout` and the device's index differs between
  ///         them.
  explicit Accelerator(AcceleratorOptions options = {});
  ~Accelerator();
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  /// Where the model and the batches are.
  c10::Device device() const;

  /// Moves the model to the device and into its memory format, in place: optimizers stay valid. The
  /// state of `optimizer` follows, if it is an SGD, Adam, AdamW, Adagrad or RMSprop. All processes
  /// get the weights of rank 0, and from now on `backward` averages the gradients of the model and
  /// of what else `optimizer` trains over them. Local SGD counts the updates of `optimizer` from
  /// here.
  /// @param others  Modules beside the model, which are on the device already: all processes get
  ///        their tensors of rank 0 now, and their buffers as those of the model.
  /// @param other_optimizers  Optimizers beside `optimizer`, treated alike. What each trains is a
  ///        group of its own (a parameter of several belongs to the first), whose gradients a
  ///        `backward` averages if its loss reaches one of the group.
  /// @throws Error on all ranks if their models differ in names, shapes or dtypes. @note
  /// Collective.
  void prepare(Model& model, const torch::optim::Optimizer* optimizer = nullptr,
               const std::vector<std::shared_ptr<torch::nn::Module>>& others = {},
               const std::vector<const torch::optim::Optimizer*>& other_optimizers = {});

  /// Returns a loader whose batches arrive on the device. A loader that `make_data_loader` made
  /// without a `shard` is shared between the processes: each gets its own batches, of the order
  /// that rank 0's seed gives. Any other loader must give the batches of its own process already.
  /// @note Collective, if the loader is shared here.
  std::shared_ptr<DataLoader> prepare(std::shared_ptr<DataLoader> loader) const;

  /// Makes what follows in the scope run in `AcceleratorOptions::precision`: the forward and the
  /// loss, not the backward. Trainer has it around `calculate_train_batch_loss` and
  /// `calculate_eval_batch_loss`.
  AutocastScope autocast() const;

  /// Begins micro-step `index` (from 0) of an epoch of `num_micro_steps`. An update belongs at its
  /// end if the window that is returned is complete: every `gradient_accumulation_steps`
  /// micro-steps, and at the end of the epoch. Until the next call, `backward` divides by the real
  /// length of this window.
  AccumulationWindow begin_micro_step(int64_t index, int64_t num_micro_steps);

  /// The place of the micro-step that `begin_micro_step` has begun.
  AccumulationWindow window() const;

  /// Adds the gradients of `loss` / length of the window; in fp16 they are scaled. In the last
  /// micro-step of the window they are averaged over the processes, while they are computed.
  /// @param loss  Scalar on the device.
  /// @throws Error if a process is lost. @note Collective.
  void backward(const at::Tensor& loss);

  /// Takes the scale of fp16 out of the gradients, before they are looked at or clipped. Otherwise,
  /// or when it is done already, it does nothing; `optimizer_step` does it if nobody did.
  void unscale_gradients(torch::optim::Optimizer& optimizer);

  /// Scales all gradients together to a 2-norm of at most `max_norm`; returns the norm before, a
  /// scalar on the device, without waiting for the device (but with `zero_stage` 2 and Gloo for the
  /// other processes). An infinite `max_norm` only measures. In fp16 after `unscale_gradients`.
  /// @throws Error if `max_norm` is not positive. @note Collective, with `zero_stage` 2.
  at::Tensor clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm) const;

  /// Limits each gradient element to [-clip_value, clip_value]. In fp16 after
  /// `unscale_gradients`.
  /// @throws Error if `clip_value` is not positive.
  void clip_grad_value(const std::vector<at::Tensor>& parameters, double clip_value) const;

  /// One update, through one fused call where LibTorch has it (SGD, Adam, AdamW, Adagrad; the state
  /// object and the numbers are those of Python's `fused=True`), by multi-tensor operations for
  /// RMSprop, else `optimizer.step()`. Skipped in fp16, on all processes, if a gradient of any of
  /// them is infinite or NaN. With a fused call on CUDA that is known later; the optimizer's counts
  /// of updates include a skipped step until `optimizer_step_was_skipped`,
  /// `settle_optimizer_steps`, `optimizer_state_dict` or the optimizer's next step. In fp16,
  /// `optimizer` must live until the next `begin_micro_step`.
  /// @throws OptionError if `optimizer` is an LBFGS, whose step needs a closure.
  /// @note Collective, with `zero_stage`, `local_sgd_interval`, or a
  /// `gradient_comm_hook` in fp16.
  void optimizer_step(torch::optim::Optimizer& optimizer);

  /// One update by `optimizer.step(closure)`, for an optimizer that evaluates the loss itself, such
  /// as LBFGS. `closure` clears the gradients, runs `begin_micro_step`, the forward pass and
  /// `backward` for each batch of the accumulation window, and returns their mean loss. The
  /// optimizer gets the mean of it over the processes, so that all of them decide alike.
  /// @throws OptionError in fp16, with `zero_stage` or with `local_sgd_interval`; Error if
  ///         `closure` is empty, or does not return one number.
  /// @note Collective.
  void optimizer_step(torch::optim::Optimizer& optimizer,
                      const std::function<at::Tensor()>& closure);

  /// Whether the processes have different weights between two averages, with `local_sgd_interval`.
  bool has_own_weights() const {
    return num_processes() > 1 && distributed_options().local_sgd_interval > 0;
  }

  /// What `optimizer` needs to go on: as Python's `Optimizer.state_dict`, with the parts of all
  /// processes where `zero_stage` has shared it out. A param group that `optimizer_step` updates by
  /// fused kernels has `fused` = True, so that Python continues with the same numbers; loading it
  /// into an optimizer here ignores that. @note Collective, with `zero_stage`.
  StateDict optimizer_state_dict(const torch::optim::Optimizer& optimizer) const;

  /// What a resumed run needs for the same numbers, beside the model, the optimizer and the
  /// GradScaler: in what order gradients are sent, which sums of many processes depend on; with
  /// local SGD, the updates since the last average.
  /// @note Collective.
  StateDict state_dict() const;
  /// After `prepare`. A state of other models is passed over. @note Collective.
  void load_state_dict(const StateDict& state);

  /// Lets go of the gradients of all groups.
  static void zero_grad(torch::optim::Optimizer& optimizer);

  /// In fp16, adapts the scale; once per update, after every optimizer's step. The next `backward`
  /// does it if nobody did, unless an optimizer's gradients are unscaled and its step is still to
  /// come.
  void update_scale();

  /// In place of `optimizer_step`, when these gradients should make no update (one is NaN, say). In
  /// fp16 it ends the update of all optimizers whose gradients are unscaled.
  void skip_optimizer_step();

  /// Whether an optimizer's step was skipped since the last `begin_micro_step` or `backward`: then
  /// the update does not count, and the scheduler must not be stepped. In fp16 it waits for CUDA to
  /// come to that step, and settles the steps.
  bool optimizer_step_was_skipped();
  /// Waits for the verdicts on the steps of all optimizers since the last window began; the
  /// optimizers no longer count those that were skipped. For an optimizer whose state is read by
  /// other means than `optimizer_state_dict`.
  void settle_optimizer_steps();
  /// As `optimizer_step_was_skipped`, to be asked later: when the next micro-steps are queued, CUDA
  /// has work while the host waits. It leaves the optimizers' counts as they are. Trainer uses it.
  const StepVerdict& step_verdict() const;

  /// What losses are computed in.
  Precision precision() const;
  /// How the processes work together.
  const DistributedOptions& distributed_options() const;

  /// Of fp16, else null.
  GradScaler* grad_scaler();
  /// Of fp16, else null.
  const GradScaler* grad_scaler() const;

  // ---- Several processes. All of these are collective. -----------------------------------------

  /// Returns all processes' rows along dimension 0, in the order of the ranks; for scalars
  /// [processes].
  /// @throws Error on all ranks if dtypes, shapes or devices' types differ, or if a rank has no
  ///         batch left in a loop that `join_uneven_loop` ends, as Trainer's evaluation. Use
  ///         `gather_for_metrics` there.
  at::Tensor gather(const at::Tensor& tensor) const;

  /// The same for tensors of different lengths in dimension 0; the rows of the shorter ones are
  /// filled up with `padding_value`, if it is given.
  /// @throws Error on all ranks if dtypes, devices' types or the shapes of rows differ.
  at::Tensor gather_uneven(const at::Tensor& tensor,
                           std::optional<double> padding_value = std::nullopt) const;

  /// Gives all processes the models' buffers (the statistics of batch normalisation) of rank 0, as
  /// each update's first batch does; for the start of an evaluation. Nothing with
  /// `DistributedOptions::broadcast_buffers` false, with local SGD or one process. Collective.
  void broadcast_buffers() const;

  /// As `gather_uneven`, for loops in which some processes make fewer steps, such as evaluation:
  /// those that have done theirs and wait in `join_uneven_loop` give nothing.
  /// @throws Error as `gather_uneven`.
  at::Tensor gather_for_metrics(const at::Tensor& tensor) const;

  /// Ends a loop in which some processes may make fewer steps: answers the `gather_for_metrics` of
  /// those that go on, until all are here. Trainer calls it after an evaluation's steps.
  void join_uneven_loop() const;

  /// All processes' tensors combined, the same on all; by default their sum.
  at::Tensor reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::sum) const;

  /// The tensor of rank `root`, the same on all.
  at::Tensor broadcast(const at::Tensor& tensor, int64_t root = 0) const;

  /// The bytes of rank `root`; what the others give is not looked at. @note Collective.
  std::string broadcast_bytes(std::string_view bytes, int64_t root = 0) const;
  /// All ranks' bytes, which may differ in length, by rank. @note Collective.
  std::vector<std::string> all_gather_bytes(std::string_view bytes) const;

  /// Returns when all processes have called it. @note Collective.
  void wait_for_everyone() const { process_group().barrier(); }

  /// Runs `work` on the main process of each host, then on the others: a download, say.
  void main_process_first(const std::function<void()>& work) const;

  /// The processes that share the batches; of this one alone if there are no others.
  const ProcessGroup& process_group() const;
  /// The same, for who may outlive the Accelerator.
  std::shared_ptr<const ProcessGroup> shared_process_group() const;

  /// Processes that share the batches.
  int64_t num_processes() const { return process_group().size(); }
  /// The rank of this one among them, from 0.
  int64_t process_index() const { return process_group().rank(); }
  /// This process's number on its host, from 0.
  int64_t local_process_index() const;
  /// Whether this is rank 0, which prints and saves.
  bool is_main_process() const { return process_index() == 0; }
  /// Whether this is the first process of its host.
  bool is_local_main_process() const { return local_process_index() == 0; }

  /// Writes a line to standard output, on the main process alone; with a logger, logs it as `info`.
  void print(std::string_view line) const;
  /// Gives the logger a message, on the processes of `ranks`; on all if that is empty. Without a
  /// logger, prints it, with its level in front if that is `warning` or `error`, and with the rank
  /// if it is not 0; but not `debug`.
  void log(LogLevel level, std::string_view message, c10::ArrayRef<int64_t> ranks = {0}) const;
  /// Null if none was given.
  const std::shared_ptr<Logger>& logger() const;

  /// Seeds LibTorch's generators: CPU and every CUDA device. linkboy itself never does.
  static void set_seed(uint64_t seed);

  /// The same with another seed on each process, so that their dropout differs. Shuffling and
  /// transforms need none of this: they know the sample.
  void set_seed_per_process(uint64_t seed) const {
    set_seed(seed + static_cast<uint64_t>(process_index()));
  }

  /// Takes effect at the next window. @throws Error if it is less than 1.
  void set_gradient_accumulation_steps(int64_t steps);

 private:
  friend class Trainer;
  struct Implementation;

  std::unique_ptr<Implementation> impl_;
};

}  // namespace linkboy

#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "linkboy/data_loader.hpp"
#include "linkboy/grad_scaler.hpp"
#include "linkboy/model.hpp"

namespace torch::optim {
class Optimizer;
}

namespace linkboy {

struct AcceleratorOptions {
  /// "auto" (the first CUDA device, else the CPU), "cpu", "cuda" or "cuda:1".
  std::string device = "auto";

  /// Micro-batches per update. At least 1.
  int64_t gradient_accumulation_steps = 1;

  /// What LibTorch's autocast computes losses in: "no" (as the tensors are), "bf16" or "fp16".
  /// Parameters, gradients and optimizer states stay as they are. "fp16" comes with a GradScaler.
  std::string mixed_precision = "no";
  GradScalerOptions grad_scaler{};

  /// Keeps 4-dimensional parameters and batches in memory with the channels last, which
  /// convolutions in half precision on recent GPUs are fastest with. Values do not change, sums
  /// may in their last bit.
  bool channels_last = false;

  /// Has LibTorch use deterministic algorithms only, in the whole process from then on. Operations
  /// that have none throw.
  bool deterministic = false;
};

/// While it lives, operations of this thread run in an Accelerator's precision. Ends what it began:
/// nests, and keeps casts of the parameters until the outermost one ends.
class [[nodiscard]] AutocastScope {
 public:
  /// @param dtype  Nothing leaves all as it is.
  AutocastScope(c10::DeviceType device, std::optional<c10::ScalarType> dtype);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  c10::DeviceType device_;
  bool is_active_;
  bool was_enabled_ = false;
  c10::ScalarType old_dtype_ = c10::ScalarType::Float;
};

/// Turns what the user says into what the hardware does. Trainer drives one; a hand-written loop
/// can do the same:
///
///     for (int64_t i = 0; auto batch = batches->next(); ++i) {
///       const bool update = accelerator.accumulate(i, loader->size());
///       at::Tensor loss;
///       {
///         const auto autocast = accelerator.autocast();
///         loss = loss_function(model(batch->input()), batch->target());
///       }
///       accelerator.backward(loss);
///       if (!update) continue;
///       accelerator.unscale_gradients(optimizer);
///       accelerator.clip_grad_norm(model.parameters(), 1.0);
///       accelerator.optimizer_step(optimizer);
///       optimizer.zero_grad();
///     }
///
/// Used by one thread.
class Accelerator {
 public:
  /// @throws Error if the device or the precision is unknown or not there (the message says what
  ///         is), or an option is out of its range.
  explicit Accelerator(AcceleratorOptions options = {});
  ~Accelerator() = default;
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  c10::Device device() const { return device_; }

  /// Moves the model to the device and into its memory format, in place: optimizers stay valid.
  void prepare(Model& model) const;

  /// A loader whose batches arrive on the device.
  std::shared_ptr<DataLoader> prepare(std::shared_ptr<DataLoader> loader) const;

  /// Makes what follows in the scope run in `mixed_precision`: the forward and the loss, not the
  /// backward. Trainer has it around `calculate_train_batch_loss` and `calculate_eval_batch_loss`.
  AutocastScope autocast() const { return {device_.type(), autocast_dtype_}; }

  /// Opens micro-step `index` (from 0) of an epoch of `num_micro_steps`, and says whether an
  /// update belongs at its end: at the end of each window of `gradient_accumulation_steps`, and of
  /// the epoch. Until the next call, `backward` divides by the real length of this window.
  bool accumulate(int64_t index, int64_t num_micro_steps);

  /// Of the micro-step that `accumulate` has opened: its place in its window, from 0, and the
  /// window's length.
  int64_t window_index() const { return window_index_; }
  int64_t window_length() const { return window_length_; }

  /// Adds the gradients of `loss` / length of the window; in fp16 they are scaled.
  /// @param loss  Scalar on the device.
  void backward(const at::Tensor& loss);

  /// Takes the scale of fp16 out of the gradients, before they are looked at or clipped. Otherwise,
  /// or when it is done already, it does nothing; `optimizer_step` does it if nobody did.
  void unscale_gradients(torch::optim::Optimizer& optimizer);

  /// Scales all gradients together to a 2-norm of at most `max_norm`; returns the norm before, a
  /// scalar on the device, without waiting for it. An infinite `max_norm` only measures. In fp16
  /// after `unscale_gradients`.
  /// @throws Error if `max_norm` is not positive.
  at::Tensor clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm) const;

  /// Limits each gradient element to [-clip_value, clip_value]. In fp16 after
  /// `unscale_gradients`.
  /// @throws Error if `clip_value` is not positive.
  void clip_grad_value(const std::vector<at::Tensor>& parameters, double clip_value) const;

  /// One update, through one fused call where LibTorch has it (SGD, Adam, AdamW, Adagrad; the state
  /// object and the numbers are those of Python's `fused=True`), by multi-tensor operations for
  /// RMSprop, else `optimizer.step()`. Skipped in fp16 if a gradient is infinite or NaN.
  void optimizer_step(torch::optim::Optimizer& optimizer);

  /// In fp16, adapts the scale; once per update, after every optimizer's step. The next `backward`
  /// does it if nobody did.
  void update_scale();

  /// In place of `optimizer_step`, when these gradients should make no update (one is NaN, say).
  void skip_optimizer_step() { optimizer_step_was_skipped_ = true; }

  /// Whether an optimizer's step was skipped since the last `accumulate` or
  /// `backward`: then the update does not
  /// count, and the scheduler must not be stepped.
  bool optimizer_step_was_skipped() const { return optimizer_step_was_skipped_; }

  /// "no", "bf16" or "fp16".
  const std::string& mixed_precision() const { return mixed_precision_; }

  /// Of fp16, else null.
  GradScaler* grad_scaler() { return grad_scaler_.get(); }
  const GradScaler* grad_scaler() const { return grad_scaler_.get(); }

  /// All processes' rows along dimension 0. @note Collective: every rank must call it.
  at::Tensor gather(const at::Tensor& tensor) const { return tensor; }

  int64_t num_processes() const { return 1; }
  int64_t process_index() const { return 0; }
  bool is_main_process() const { return process_index() == 0; }
  bool is_local_main_process() const { return process_index() == 0; }

  /// Writes a line to standard output, once per node.
  void print(std::string_view line) const;

  /// Seeds LibTorch's generators: CPU and every CUDA device. linkboy itself never does.
  static void set_seed(uint64_t seed);

  /// Takes effect at the next window. @throws Error if it is less than 1.
  void set_gradient_accumulation_steps(int64_t steps);

 private:
  c10::Device device_;
  std::string mixed_precision_;
  std::optional<c10::ScalarType> autocast_dtype_;
  std::unique_ptr<GradScaler> grad_scaler_;
  bool channels_last_;
  int64_t gradient_accumulation_steps_;
  int64_t window_index_ = 0;
  int64_t window_length_ = 1;
  bool optimizer_step_was_skipped_ = false;
};

}  // namespace linkboy

#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "linkboy/data_loader.hpp"
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
};

/// Turns what the user says into what the hardware does. Trainer drives one; a hand-written loop
/// can do the same:
///
///     for (int64_t i = 0; auto batch = batches->next(); ++i) {
///       const bool update = accelerator.accumulate(i, loader->size());
///       accelerator.backward(loss_function(model(batch->input()), batch->target()));
///       if (!update) continue;
///       accelerator.clip_grad_norm(model.parameters(), 1.0);
///       accelerator.optimizer_step(optimizer);
///       optimizer.zero_grad();
///     }
///
/// Used by one thread.
class Accelerator {
 public:
  /// @throws Error if the device is unknown or not there (the message says how many there are), or
  ///         an option is out of its range.
  explicit Accelerator(AcceleratorOptions options = {});
  ~Accelerator() = default;
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  c10::Device device() const { return device_; }

  /// Moves the model to the device, in place: optimizers stay valid.
  void prepare(Model& model) const;

  /// A loader whose batches arrive on the device.
  std::shared_ptr<DataLoader> prepare(std::shared_ptr<DataLoader> loader) const;

  /// Opens micro-step `index` (from 0) of an epoch of `num_micro_steps`, and says whether an
  /// update belongs at its end: at the end of each window of `gradient_accumulation_steps`, and of
  /// the epoch. Until the next call, `backward` divides by the real length of this window.
  bool accumulate(int64_t index, int64_t num_micro_steps);

  /// Adds the gradients of `loss` / length of the window.
  /// @param loss  Scalar on the device.
  void backward(const at::Tensor& loss) const;

  /// Scales all gradients together to a 2-norm of at most `max_norm`; returns the norm before, a
  /// scalar on the device, without waiting for it. An infinite `max_norm` only measures.
  /// @throws Error if `max_norm` is not positive.
  at::Tensor clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm) const;

  /// Limits each gradient element to [-clip_value, clip_value].
  /// @throws Error if `clip_value` is not positive.
  void clip_grad_value(const std::vector<at::Tensor>& parameters, double clip_value) const;

  /// One update, through one fused call where LibTorch has it (SGD, Adam, AdamW; the state object
  /// and the numbers are those of Python's `fused=True`), else `optimizer.step()`.
  void optimizer_step(torch::optim::Optimizer& optimizer);

  /// In place of `optimizer_step`, when these gradients should make no update (one is NaN, say).
  void skip_optimizer_step() { optimizer_step_was_skipped_ = true; }

  /// Whether the last step was skipped: then the update does not count, and the scheduler must not
  /// be stepped.
  bool optimizer_step_was_skipped() const { return optimizer_step_was_skipped_; }

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
  int64_t gradient_accumulation_steps_;
  int64_t window_length_ = 1;
  bool optimizer_step_was_skipped_ = false;
};

}  // namespace linkboy

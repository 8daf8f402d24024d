#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "compile/package_cache.hpp"
#include "compile/program.hpp"
#include "compile/recorder.hpp"
#include "linkboy/data/batch.hpp"
#include "linkboy/run/step_executor.hpp"
#include "linkboy/run/step_output.hpp"

namespace linkboy {

/// The form of a step's output: its tensors are taken out, and others are put in at their places.
class OutputForm {
 public:
  /// Appends the tensors of `output` to `tensors`; the loss is the first.
  OutputForm(StepOutput output, std::vector<at::Tensor>& tensors);

  StepOutput filled(const at::Tensor* tensors, int64_t batch_size) const;

  /// What the output has besides tensors.
  nlohmann::json constants() const;

 private:
  StepOutput output_;
  std::vector<bool> have_gradient_;  // which of its tensors, in their order
};

/// A recorded step, with what it has returned.
struct RecordedStep {
  Recording recording{};
  std::vector<at::Tensor> with_gradient{};  // these parameters' gradients are the first outputs
  std::optional<OutputForm> form{};
};

/// Records the forward pass of a batch, and the backward pass to the `trained` tensors.
/// @param state  The tensors of the Trainer that the step may read.
/// @throws Error as `record` does. What cannot be compiled is in the recording.
RecordedStep record_step(const StepWork& work, const NamedTensors& state,
                         const std::vector<at::Tensor>& trained, const Batch& batch);

/// A step that is replayed from a package.
class CompiledStep {
 public:
  CompiledStep(Program program, std::shared_ptr<CompiledPackage> package, RecordedStep step);

  const Program& program() const { return program_; }

  /// Runs the package for the first time and compares what it computes with the recorded step.
  /// @param batch  That of the recording.
  /// @return What `replay` returns.
  /// @throws CompileError if the package fails, or computes something else. The memory of the state
  ///         and the random number generator are then as before.
  StepOutput check(const Batch& batch, double tolerance);

  /// Runs the package. The backward pass of the loss yields the gradients.
  StepOutput replay(const Batch& batch);

  /// Whether the step was recorded again with a batch of this size since `forget_confirmations`.
  bool is_confirmed(int64_t num_samples) const { return confirmed_.contains(num_samples); }
  void confirm(int64_t num_samples) { confirmed_.insert(num_samples); }
  void forget_confirmations() { confirmed_.clear(); }
  /// Another run uses the step, which may do other work than the run that has compiled it.
  void begin_run() {
    forget_confirmations();
    is_of_earlier_run_ = true;
  }
  bool is_of_earlier_run() const { return is_of_earlier_run_; }

 private:
  std::vector<at::Tensor> run(const Batch& batch);
  std::string find_deviation(const std::vector<at::Tensor>& outputs, double tolerance,
                             bool is_exact) const;
  StepOutput with_gradients(std::vector<at::Tensor> outputs, const Batch& batch) const;

  Program program_;
  std::shared_ptr<CompiledPackage> package_;
  RecordedStep recorded_;
  /// The inputs of the package. Those of the batch are set in each replay: the place of each and
  /// its number in the batch.
  std::vector<at::Tensor> inputs_;
  std::vector<std::pair<std::size_t, std::size_t>> of_batch_;
  /// Outputs in the memory of others, or with other strides than those of eager steps.
  std::vector<std::pair<std::size_t, at::MemoryFormat>> copied_;
  std::set<int64_t> confirmed_;
  bool is_of_earlier_run_ = false;
};

}  // namespace linkboy

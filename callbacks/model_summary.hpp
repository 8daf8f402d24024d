#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/model.hpp"

namespace linkboy {

/// One module of a model. Counts include the modules that it holds; a parameter that several of
/// them share counts once.
struct ModuleSummary {
  /// The prefix of its parameters' names, "layer1.0.conv1"; empty for the model itself.
  std::string name{};
  /// "Conv2d"; of TorchScript empty, since linkboy does not see it.
  std::string type{};
  /// Modules that hold it; 0 for the model itself.
  int64_t depth = 0;
  /// Shape in its last call, for layers with a weight and the model itself; nothing if unknown.
  std::optional<std::vector<int64_t>> output_shape{};
  /// Elements of its parameters and those of the modules that it holds; a shared one counts once.
  int64_t num_parameters = 0;
  /// The parameters that require gradients.
  int64_t num_trainable_parameters = 0;
  /// Floating-point operations of the forward pass of the whole input; nothing if none of its
  /// operations is known.
  std::optional<int64_t> flops{};
};

/// What a model consists of.
struct LINKBOY_API ModelSummaryTable {
  /// The model itself first, then each module before those that it holds. Of TorchScript only
  /// modules that have or hold parameters or buffers.
  std::vector<ModuleSummary> modules{};
  /// Bytes of all parameters.
  int64_t parameter_bytes = 0;
  /// Bytes of all buffers.
  int64_t buffer_bytes = 0;
  /// Samples of the input by which FLOPs are divided when they are printed.
  int64_t num_samples = 1;
  /// Whether there was a forward pass, which shapes and FLOPs come from.
  bool was_run = false;

  /// A plain text table with the modules down to `max_depth`, and a line of totals.
  std::string to_string(int64_t max_depth = std::numeric_limits<int64_t>::max()) const;
};

/// Parameters and sizes alone.
LINKBOY_API ModelSummaryTable summarize(Model& model);

/// Runs `forward`, which is to call the model and return its output, in evaluation mode and without
/// gradients, and sees which operations it makes. The model's mode and the generators of LibTorch's
/// CPU and of the model's device are as before when it returns.
///
/// FLOPs are two for each multiply-add of a linear layer, a convolution, a matrix product, an
/// attention or a recurrent layer (biases do not count), two for each element that a batch
/// normalisation gives out, none for an embedding. Other operations are not counted, nor those that
/// other threads launch. Products of no weight (attention's) belong to the innermost module that
/// holds the layers called before and after.
///
/// @throws whatever `forward` throws.
LINKBOY_API ModelSummaryTable summarize(Model& model, const std::function<c10::IValue()>& forward);

/// The same with `model(input)`: dimension 0 counts the samples; on the model's device.
LINKBOY_API ModelSummaryTable summarize(Model& model, const at::Tensor& input);

struct ModelSummaryOptions {
  /// Modules held by so many others are the last that are printed. At least 0.
  int64_t max_depth = std::numeric_limits<int64_t>::max();

  /// Calls the model on a batch, which lies on the device; for models that take something else than
  /// `Batch::input`: `[net](const auto& batch) { return net->forward(batch["a"], batch["b"]); }`.
  std::function<c10::IValue(const Batch&)> forward{};

  LINKBOY_FIELDS(max_depth);
};

/// Prints a table of the model's modules after the first forward pass of a run: type, output shape,
/// parameters, whether they are trained, FLOPs of the forward pass per sample. For shapes and FLOPs
/// the main process calls the model once more on the same batch, as `summarize` does. If that call
/// fails, the table has neither, and a line says why.
///
/// Printed once; later runs with this callback do not print it again.
class LINKBOY_API ModelSummary : public Callback {
 public:
  /// What `make<ModelSummary>({...})` takes.
  using Options = ModelSummaryOptions;

  /// @throws Error if `max_depth` is negative.
  explicit ModelSummary(ModelSummaryOptions options = {});

  void on_train_step_end(Trainer& trainer, const Batch& batch, const StepOutput& output) override;
  void on_eval_step_end(Trainer& trainer, const Batch& batch, const StepOutput& output) override;

  /// What was printed, on the main process; elsewhere nothing.
  const std::optional<ModelSummaryTable>& table() const { return table_; }

 private:
  void print_once(Trainer& trainer, const Batch& batch);

  ModelSummaryOptions options_;
  std::optional<ModelSummaryTable> table_;
};

}  // namespace linkboy

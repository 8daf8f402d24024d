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
#include "linkboy/util/make.hpp"

namespace linkboy {

/// One module of a model. Counts include the module's submodules; a parameter that several of them
/// share counts once.
struct ModuleSummary {
  /// The prefix of its parameters' names, such as "layer1.0.conv1"; empty for the model itself.
  std::string name{};
  /// The class, such as "Conv2d". Empty for TorchScript modules, whose types are unknown.
  std::string type{};
  /// Number of modules that contain this one; 0 for the model itself.
  int64_t depth = 0;
  /// Shape of the output of its last call, for layers with a weight and for the model itself. Not
  /// set if unknown.
  std::optional<std::vector<int64_t>> output_shape{};
  /// Number of elements of its parameters, including those of submodules.
  int64_t num_parameters = 0;
  /// Number of those elements that require gradients.
  int64_t num_trainable_parameters = 0;
  /// Floating-point operations of the forward pass for the entire input. Not set if none of its
  /// operations are counted (see `summarize`).
  std::optional<int64_t> flops{};
};

/// The modules of a model, with their sizes and costs.
struct LINKBOY_API ModelSummaryTable {
  /// The model itself first, then each module before its submodules. For TorchScript, only modules
  /// that have parameters or buffers, or contain such modules.
  std::vector<ModuleSummary> modules{};
  /// Bytes of all parameters.
  int64_t parameter_bytes = 0;
  /// Bytes of all buffers.
  int64_t buffer_bytes = 0;
  /// Number of samples in the input. FLOPs are divided by it when they are printed.
  int64_t num_samples = 1;
  /// Whether a forward pass was performed; shapes and FLOPs are known only in this case.
  bool was_run = false;

  /// Returns a plain-text table of the modules down to `max_depth`, and a line of totals.
  std::string to_string(int64_t max_depth = std::numeric_limits<int64_t>::max()) const;
};

/// Summarizes the parameters and sizes of a model, without a forward pass.
[[nodiscard]] LINKBOY_API ModelSummaryTable summarize(Model& model);

/// Summarizes a model and the operations of a forward pass. Runs `forward`, which must call the
/// model and return its output, in evaluation mode and without gradients. Afterwards the model's
/// mode and LibTorch's random number generators of the CPU and of the model's device are as before.
///
/// Counts two FLOPs for each multiply-add of a linear layer, a convolution, a matrix product, an
/// attention or a recurrent layer (biases do not count), two for each output element of a batch
/// normalisation, and none for an embedding. Other operations, and operations on other threads, are
/// not counted. A product without a weight (as in attention) belongs to the innermost module that
/// contains the layers called before and after it.
///
/// @throws Any error of `forward`.
[[nodiscard]] LINKBOY_API ModelSummaryTable summarize(Model& model,
                                                      const std::function<c10::IValue()>& forward);

/// Summarizes a model with `model(input)` as the forward pass. `input` must be on the model's
/// device; its dimension 0 contains the samples.
[[nodiscard]] LINKBOY_API ModelSummaryTable summarize(Model& model, const at::Tensor& input);

struct ModelSummaryOptions {
  /// Largest `ModuleSummary::depth` that is printed; 0 prints the model's totals only. Must not be
  /// negative.
  int64_t max_depth = std::numeric_limits<int64_t>::max();

  /// Calls the model on a batch, which is on the device. Set it if the model needs inputs other
  /// than `Batch::input`:
  ///
  ///     [net](const auto& batch) { return net->forward(batch["a"], batch["b"]); }
  std::function<c10::IValue(const Batch&)> forward{};

  LINKBOY_FIELDS(max_depth);
  LINKBOY_FUNCTIONS(forward);
};

/// Prints a table of the model's modules after the first forward pass of a run: type, output shape,
/// number of parameters, whether they are trained, and FLOPs of the forward pass per sample. To
/// find shapes and FLOPs, the main process calls the model once more on the same batch, as
/// `summarize` does. If that call fails, the table does not contain them, and a printed line gives
/// the reason.
///
/// The table is printed once; later runs with this callback do not print it again.
class LINKBOY_API ModelSummary : public Callback {
 public:
  /// The options type for `make<ModelSummary>({...})`.
  using Options = ModelSummaryOptions;

  /// @throws OptionError if `max_depth` is negative.
  explicit ModelSummary(ModelSummaryOptions options = {});

  void on_train_step_end(Trainer& trainer, const Batch& batch, const StepOutput&) override {
    print_once(trainer, batch);
  }
  void on_eval_step_end(Trainer& trainer, const Batch& batch, const StepOutput&) override {
    print_once(trainer, batch);
  }

  /// The printed table, on the main process. Not set on the others.
  const std::optional<ModelSummaryTable>& table() const { return table_; }

 private:
  void print_once(Trainer& trainer, const Batch& batch);

  ModelSummaryOptions options_;
  std::optional<ModelSummaryTable> table_;
};
/// Makes a ModelSummary.
inline constexpr Maker<ModelSummary> model_summary{};

}  // namespace linkboy

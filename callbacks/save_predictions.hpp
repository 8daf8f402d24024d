#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/trainer/prediction.hpp"
#include "linkboy/util/make.hpp"
#include "linkboy/util/required.hpp"

namespace linkboy {

struct SavePredictionsOptions {
  /// A `.pt` file, which Python's `torch.load` can read, or a `.safetensors` file. In the name,
  /// `{epoch}` is replaced by the epoch, counted from 1, and `{set}` by the name of the evaluation
  /// set, if it has one. Without `{epoch}`, each evaluation replaces the file of the previous one.
  Required<std::filesystem::path> path;

  /// Whether to write the model's outputs, [N, ...]. Each of `outputs`, `argmax` and `targets`
  /// writes a tensor of this name with one row per sample. At least one of them must be true.
  bool outputs = true;
  /// Whether to write the index of the largest output in dimension 1, as int64.
  bool argmax = false;
  /// Whether to write the batches' targets.
  bool targets = true;

  /// In training, writes the predictions of every n-th epoch, if it is evaluated. 0 writes them
  /// only in `Trainer::evaluate`. Must not be negative.
  int64_t every_n_epochs = 1;

  LINKBOY_FIELDS(path, outputs, argmax, targets, every_n_epochs);
};

/// Writes the model's outputs and the targets of an evaluation to one file. Evaluations by
/// `Trainer::evaluate_now` and evaluations that end early are not written.
///
/// The rows are in dataset order if the loader does not shuffle; with several processes, this
/// requires that linkboy distributes the batches. All rows are kept in main memory until the
/// evaluation ends. With several processes, each process then needs memory for the rows of all
/// processes, and the main process writes the file.
///
/// Requires a model that returns one tensor, whose rows have the same shape in all batches.
class LINKBOY_API SavePredictions : public Callback {
 public:
  /// The options type for `make<SavePredictions>({...})`.
  using Options = SavePredictionsOptions;

  /// @throws OptionError if the path has another extension, if no tensor is selected, or if
  ///         `every_n_epochs` is negative.
  explicit SavePredictions(SavePredictionsOptions options);

  bool writes_files() const override { return true; }

  /// @throws Error if the file cannot be written, or if a set of the run has a name and the path
  ///         does not contain `{set}`.
  void on_training_run_start(Trainer& trainer) override;
  void on_evaluation_run_start(Trainer& trainer) override;

  void on_eval_epoch_start(Trainer& trainer) override;
  /// @throws Error if the model did not return a tensor with one row per sample.
  void on_eval_step_end(Trainer& trainer, const Batch& batch, const StepOutput& output) override;
  /// @throws Error if the rows of two batches have different shapes, or if the file cannot be
  ///         written in `Trainer::evaluate`. In training, the error of the file is printed and the
  ///         run continues.
  /// @note Collective.
  void on_eval_epoch_end(Trainer& trainer) override;
  void on_eval_epoch_interrupted(Trainer& trainer) override;

 private:
  void check_paths(Trainer& trainer) const;
  std::filesystem::path path_of(const std::string& set_name, int64_t epoch) const;

  SavePredictionsOptions options_;
  std::vector<PredictedRows> columns_;  // the tensors of the file
  int64_t num_batches_ = 0;             // in `columns_`
  bool is_training_ = false;
  bool is_collecting_ = false;
};
/// Makes a SavePredictions.
inline constexpr Maker<SavePredictions> save_predictions{};

}  // namespace linkboy

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/required.hpp"

namespace linkboy {

struct SavePredictionsOptions {
  /// A `.pt` file, which Python's `torch.load` reads, or a `.safetensors` file. In the name,
  /// `{epoch}` stands for the epoch, counted from 1, and `{set}` for the name of the evaluation
  /// set, if it has one; without `{epoch}` each evaluation replaces the file of the one before.
  Required<std::filesystem::path> path;

  /// Writes what the model returned, [N, ...]. This and the next two are tensors of these names,
  /// with a row for each sample; at least one of them is written.
  bool outputs = true;
  /// Writes the index of its largest value in dimension 1, as int64.
  bool argmax = false;
  /// Writes the batches' targets.
  bool targets = true;

  /// In training: of every n-th epoch that is evaluated. 0 writes after `evaluate` only. Not
  /// negative.
  int64_t every_n_epochs = 1;

  LINKBOY_FIELDS(path, outputs, argmax, targets, every_n_epochs);
};

/// Writes what the model returned in an evaluation, and what was wanted, to one file. Evaluations
/// that `Trainer::evaluate_now` makes are left out, as is one that ends early.
///
/// Rows are in the order of the data, as long as the loader does not shuffle; of several processes,
/// whose batches linkboy deals out in turn, too. All rows are kept in main memory until the
/// evaluation ends; on several processes, then all rows of all of them on each. The main process
/// writes.
///
/// Needs a model that returns one tensor, whose rows are equally long in all batches.
class LINKBOY_API SavePredictions : public Callback {
 public:
  /// What `make<SavePredictions>({...})` takes.
  using Options = SavePredictionsOptions;

  /// @throws Error if the path has another ending, nothing is to be written, or `every_n_epochs`
  ///         is negative.
  explicit SavePredictions(SavePredictionsOptions options);

  bool writes_files() const override { return true; }

  /// @throws Error if the file could not be written, or the sets of the run have names and the path
  ///         has no `{set}`.
  void on_training_run_start(Trainer& trainer) override;
  void on_evaluation_run_start(Trainer& trainer) override;

  void on_eval_epoch_start(Trainer& trainer) override;
  /// @throws Error if the model returned something else than a tensor with a row for each sample,
  ///         or rows of another length than before.
  void on_eval_step_end(Trainer& trainer, const Batch& batch, const StepOutput& output) override;
  /// @throws Error if the file cannot be written. @note Collective.
  void on_eval_epoch_end(Trainer& trainer) override;

 private:
  /// One tensor of the file.
  struct Column {
    std::string name{};
    std::vector<at::Tensor> batches{};  // of this process, on the CPU
  };

  void check_paths(Trainer& trainer) const;
  std::filesystem::path path_of(const std::string& set_name, int64_t epoch) const;
  void write(const std::filesystem::path& path, const NamedTensors& tensors) const;

  SavePredictionsOptions options_;
  std::vector<Column> columns_;
  bool is_training_ = false;
  bool is_collecting_ = false;
};

}  // namespace linkboy

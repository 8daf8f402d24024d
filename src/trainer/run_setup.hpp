#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trainer/trainer_implementation.hpp"

namespace linkboy {

/// Prepares the current run of a Trainer: its loaders, modules, schedules and executor.
class Trainer::Implementation::RunSetUp {
 public:
  explicit RunSetUp(Implementation& trainer) : trainer_(trainer) {}

  /// Begins the run of a call of `train`.
  void set_up_training(const TrainOptions& options);
  /// Evaluates before the first epoch if the options say so.
  void before_first_epoch(const TrainOptions& options);
  /// Prepares the run of a call of `evaluate`.
  void set_up_evaluation(const EvaluateOptions& options);

  /// All ranks must use the same permutation, regardless of the state of their own generators.
  void share_loader_seed();
  std::shared_ptr<DataLoader> create_eval_dataloader(const EvaluateOptions& options);
  /// The defaults of all loaders.
  DataLoaderOptions default_dataloader_options(int64_t batch_size) const;
  void prepare_modules();

 private:
  /// What all ranks must have in common.
  std::vector<std::string> lines_of_trainer() const;
  std::vector<EvaluationSet> create_evaluation_sets(const TrainOptions& options);
  void call_with_loaders(void (Callback::*event)(Trainer&));
  void prepare_dataloaders();
  void create_schedulers(const TrainOptions& options);
  void create_executors(const TrainOptions& options);
  StepWork step_work(bool is_training) const;

  Implementation& trainer_;
};

}  // namespace linkboy

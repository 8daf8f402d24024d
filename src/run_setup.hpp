#pragma once

#include <vector>

#include "linkboy/model.hpp"
#include "linkboy/options.hpp"
#include "linkboy/run_config.hpp"

namespace torch::optim {
class Optimizer;
}

namespace linkboy {

/// @throws Error if an option is out of its range, or something that a run needs is missing.
void check_train_options(const TrainOptions& options, const torch::optim::Optimizer* optimizer);
void check_evaluate_options(const EvaluateOptions& options);

/// Fills in the counts that follow from the batches of one process, the accumulation, the number of
/// processes and the length that was asked for.
void set_training_lengths(RunConfig& config, const TrainOptions& options);

/// The parameters of all groups.
std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer);

/// Puts the model back into the mode it had.
class ModelModeGuard {
 public:
  explicit ModelModeGuard(Model& model) : model_(model), was_training_(model.is_training()) {}
  ~ModelModeGuard() { model_.train(was_training_); }
  ModelModeGuard(const ModelModeGuard&) = delete;
  ModelModeGuard& operator=(const ModelModeGuard&) = delete;

 private:
  Model& model_;
  bool was_training_;
};

}  // namespace linkboy

// What a Trainer's run shows to callbacks and programs.

#include "linkboy/trainer/run.hpp"

#include "trainer/run_state.hpp"

namespace linkboy {

const RunState& Run::state() const { return static_cast<const RunState&>(*this); }

const RunConfig& Run::config() const { return state().config; }

const TrainResult& Run::result() const { return state().result; }

const std::filesystem::path& Run::resumed_from() const { return state().resumed_from; }

const std::shared_ptr<DataLoader>& Run::train_dataloader() const {
  return state().data.train_dataloader;
}

const std::shared_ptr<DataLoader>& Run::eval_dataloader() const {
  return state().data.eval_dataloader;
}

const std::vector<EvaluationSet>& Run::evaluation_sets() const {
  return state().data.evaluation_sets;
}

int64_t Run::num_known_updates() const { return state().progress.num_updates(); }

int64_t Run::micro_step() const { return state().progress.micro_step(); }

bool Run::is_last_epoch() const { return state().progress.is_last_epoch(); }

bool Run::is_epoch_evaluated() const { return state().evaluations.is_epoch_evaluated; }

bool Run::is_epoch_cut_short() const { return state().progress.is_epoch_cut_short(); }

const LossAverage& Run::train_loss_average() const { return state().train_loss.main(); }

const LossAverage& Run::eval_loss_average() const { return state().eval_loss.main(); }

const at::Tensor& Run::gradient_norm() const { return state().gradient_norm; }

bool Run::is_intermediate_evaluation() const { return state().evaluations.current.is_extra; }

const std::string& Run::evaluation_set_name() const { return state().evaluations.current.set_name; }

std::string Run::metric_name(std::string_view name) const {
  const bool is_evaluation = state().evaluations.current.is_in_progress;
  return state().metric_prefix() + (is_evaluation ? "eval_" : "train_") + std::string(name);
}

std::string RunState::metric_prefix() const {
  const Evaluation& evaluation = evaluations.current;
  std::string prefix = history->metric_name_prefix();
  if (!evaluation.is_in_progress) return prefix;
  const std::string of_set = evaluation.set_name.empty() ? "" : evaluation.set_name + "_";
  return prefix + evaluation.prefix + of_set;
}

}  // namespace linkboy

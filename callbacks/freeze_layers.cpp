// Unfreezes layer groups at their epochs. Their param groups are added before that, because a
// training state can only be loaded into an optimizer that has them.

#include "linkboy/callbacks/freeze_layers.hpp"

#include <fmt/format.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {

FreezeLayers::FreezeLayers(std::shared_ptr<ModelFreezer> freezer, FreezeLayersOptions options)
    : freezer_(std::move(freezer)), options_(std::move(options)) {
  LINKBOY_CHECK_OPTION(freezer_ != nullptr,
                       "the freezer is null; pass std::make_shared<ModelFreezer>(model).");
  for (const UnfreezeStep& step : options_.unfreeze_at) {
    LINKBOY_CHECK_OPTION(step.epoch >= 1, "a step of unfreeze_at has the epoch ", step.epoch,
                         "; epochs count from 1.");
    LINKBOY_CHECK_OPTION(!step.lr || (std::isfinite(*step.lr) && *step.lr >= 0.0),
                         "a step of unfreeze_at has the lr ", *step.lr,
                         "; it must be finite and not negative.");
    freezer_->get_frozen_parameters(step.from_index, step.to_index);  // checks the indexes
  }
}

/// Adds the groups before a training state is loaded, because the optimizer must have the groups
/// with which the state was saved.
void FreezeLayers::on_init_end(Trainer& trainer) { add_param_groups(trainer); }

/// Adds the groups if the callback was given to the Trainer after `on_init_end`.
void FreezeLayers::on_training_run_start(Trainer& trainer) { add_param_groups(trainer); }

void FreezeLayers::add_param_groups(Trainer& trainer) const {
  const auto& optimizer = trainer.optimizer();
  if (!optimizer) return;
  std::unordered_set<const at::TensorImpl*> known;
  for (const auto& group : optimizer->param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      known.insert(parameter.unsafeGetTensorImpl());
    }
  }
  for (const UnfreezeStep& step : options_.unfreeze_at) {
    std::vector<at::Tensor> parameters =
        freezer_->get_frozen_parameters(step.from_index, step.to_index);
    std::erase_if(parameters, [&known](const at::Tensor& parameter) {
      return !known.insert(parameter.unsafeGetTensorImpl()).second;
    });
    if (parameters.empty()) continue;
    optimizer->add_param_group(torch::optim::OptimizerParamGroup(std::move(parameters)));
    // The options are set afterwards, because `add_param_group` of LibTorch 2.15 treats a learning
    // rate that equals the default of its options class as not set.
    auto options = optimizer->defaults().clone();
    if (step.lr) options->set_lr(*step.lr);
    optimizer->param_groups().back().set_options(std::move(options));
  }
}

void FreezeLayers::on_train_epoch_start(Trainer& trainer) {
  const int64_t epoch = trainer.run_history().current_epoch();
  for (std::size_t i = 0; i < options_.unfreeze_at.size(); ++i) {
    const UnfreezeStep& step = options_.unfreeze_at[i];
    const auto number = static_cast<int64_t>(i);
    const bool was_applied = std::find(applied_.begin(), applied_.end(), number) != applied_.end();
    // Also applies the steps of earlier epochs and runs, for a resumed run.
    if (step.epoch > epoch && !was_applied) continue;
    if (!was_applied) applied_.push_back(number);
    const ParametersByGroup changed =
        freezer_->unfreeze({.from_index = step.from_index,
                            .to_index = step.to_index,
                            .set_modules_as_training = step.set_modules_as_training});
    if (changed.empty()) continue;
    trainer.print(fmt::format("Unfreezing layer groups {} to {} in epoch {}", step.from_index,
                              step.to_index, epoch));
  }
  freezer_->apply_modes();
}

StateDict FreezeLayers::state_dict() const { return {{"applied", c10::IValue(applied_)}}; }

void FreezeLayers::load_state_dict(const StateDict& state) {
  applied_.clear();
  for (const c10::IValue& number : state.get_list("applied")) applied_.push_back(number.toInt());
}

/// Restores the modes, because another callback may have put the whole model into training mode.
void FreezeLayers::on_train_step_start(Trainer&) { freezer_->apply_modes(); }

}  // namespace linkboy

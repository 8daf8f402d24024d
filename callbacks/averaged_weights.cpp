// The average of a model's weights, its exchange with the weights in the model, and the base class
// of the callbacks that keep such an average.

#include "linkboy/callbacks/averaged_weights.hpp"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/core/grad_mode.h>

#include <unordered_set>
#include <utility>

#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {
namespace {

constexpr const char* kAverages = "averages";
constexpr const char* kWeights = "weights";  // present while the average is in the model

bool is_averaged(const at::Tensor& tensor) {
  return tensor.is_floating_point() || tensor.is_complex();
}

at::ScalarType type_of_average(const at::Tensor& tensor) {
  return at::toOpMathType(tensor.scalar_type());
}

}  // namespace

void AveragedWeights::attach(const Model& model, bool continues) {
  tensors_ = model.named_tensors();
  floating_.clear();
  averages_.clear();
  before_.clear();
  parameters_.clear();
  std::unordered_set<const at::TensorImpl*> of_model;
  for (const at::Tensor& parameter : model.parameters()) {
    of_model.insert(parameter.unsafeGetTensorImpl());
  }
  for (const auto& [name, tensor] : tensors_) {
    if (is_averaged(tensor)) floating_.emplace_back(name, tensor);
    if (of_model.contains(tensor.unsafeGetTensorImpl())) parameters_.insert(name);
  }
  const StateDict loaded = std::exchange(loaded_, {});
  if (!continues || loaded.empty()) return;

  const StateDict averages = loaded.get_dict(kAverages);
  if (!averages.empty()) {
    begin();
    for (std::size_t i = 0; i < floating_.size(); ++i) {
      const auto& [name, tensor] = floating_[i];
      const at::Tensor saved = averages.get_tensor(name);
      LINKBOY_CHECK(saved.sizes() == tensor.sizes(), "the saved average of \"", name,
                    "\" has the shape ", saved.sizes(), ", but the model's is ", tensor.sizes(),
                    "; resume with the model that was trained.");
      averages_[i].copy_(saved);
    }
  }
  if (loaded.contains(kWeights)) {
    Model same_model = model;
    same_model.load_state_dict(loaded.get_dict(kWeights));
  }
}

void AveragedWeights::begin() {
  const at::NoGradGuard no_grad;
  averages_.clear();
  for (const auto& [name, tensor] : floating_) {
    averages_.push_back(tensor.to(type_of_average(tensor), /*non_blocking=*/false, /*copy=*/true));
  }
}

void AveragedWeights::move_towards_model(double weight) {
  if (floating_.empty()) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> weights;
  for (const auto& [name, tensor] : floating_)
    weights.push_back(tensor.to(type_of_average(tensor)));
  at::_foreach_lerp_(averages_, weights, weight);
}

void AveragedWeights::put_into_model() {
  LINKBOY_CHECK(!is_in_model(),
                "the averaged weights are in the model already; take them out first.");
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> before;
  for (const auto& [name, tensor] : tensors_) before.push_back(tensor.clone());
  before_ = std::move(before);
  for (std::size_t i = 0; i < averages_.size(); ++i) floating_[i].second.copy_(averages_[i]);
}

void AveragedWeights::take_out_of_model() {
  LINKBOY_CHECK(is_in_model(), "the averaged weights are not in the model; put them in first.");
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < before_.size(); ++i) tensors_[i].second.copy_(before_[i]);
  before_.clear();
}

StateDict AveragedWeights::values() const {
  const at::NoGradGuard no_grad;
  StateDict values;
  std::size_t i = 0;
  for (const auto& [name, tensor] : tensors_) {
    const bool has_average = has_begun() && is_averaged(tensor);
    values.set(name, (has_average ? averages_[i++] : tensor).clone());
  }
  return values;
}

StateDict AveragedWeights::state_dict() const {
  if (!loaded_.empty()) return loaded_;
  StateDict averages;
  StateDict weights;
  for (std::size_t i = 0; i < averages_.size(); ++i) averages.set(floating_[i].first, averages_[i]);
  for (std::size_t i = 0; i < before_.size(); ++i) weights.set(tensors_[i].first, before_[i]);
  StateDict state{{kAverages, averages}};
  if (is_in_model()) state.set(kWeights, weights);
  return state;
}

StateDict AveragedWeights::rank_state_dict(bool has_own_weights) const {
  StateDict own;
  if (!loaded_.empty()) return own;
  for (const auto& [part, values] : state_dict().entries()) {
    StateDict of_rank;
    const StateDict tensors = StateDict::from_ivalue(values, part);
    for (const auto& [name, tensor] : tensors.entries()) {
      if (has_own_weights || !parameters_.contains(name)) of_rank.set(name, tensor);
    }
    if (!of_rank.empty()) own.set(part, of_rank);
  }
  return own;
}

void AveragedWeights::load_rank_state_dict(const StateDict& state) {
  for (const auto& [part, values] : state.entries()) {
    StateDict all = loaded_.get_dict(part);
    const StateDict own = state.get_dict(part);
    for (const auto& [name, tensor] : own.entries()) all.set(name, tensor);
    loaded_.set(part, all);
  }
}

void AveragingCallback::start_average(Trainer& trainer) {
  differs_between_ranks_ = trainer.accelerator().num_processes() > 1;
  has_own_weights_ = trainer.accelerator().has_own_weights();
  weights_.attach(trainer.model(), is_resumed());
  if (!is_resumed()) num_averaged_ = 0;
  was_cut_short_ = false;
}

void AveragingCallback::average(std::optional<double> weight) {
  ++num_averaged_;
  if (!weights_.has_begun()) return weights_.begin();
  weights_.move_towards_model(weight.value_or(1.0 / static_cast<double>(num_averaged_)));
}

bool AveragingCallback::ends_with_average(Trainer& trainer) {
  if (was_cut_short_) {
    if (!weights_.has_begun()) return false;
    const auto reason = to_string(trainer.run().result().reason);
    trainer.print(c10::str("The model keeps its trained weights instead of the average, because ",
                           "the run was cut short (", reason, ")"));
    return false;
  }
  for (const auto& callback : trainer.callback_handler().callbacks()) {
    auto* other = dynamic_cast<AveragingCallback*>(callback.get());
    if (other != nullptr && other != this && other->weights_.is_in_model()) {
      other->weights_.take_out_of_model();
    }
  }
  return true;
}

void AveragingCallback::on_stop_training_error(Trainer&, const StopTraining& stop) {
  was_cut_short_ = stop.reason() == StopReason::stop_request || stop.reason() == StopReason::nan;
}

StateDict AveragingCallback::state_dict() const {
  return {{"num_averaged", num_averaged_}, {"weights", weights_.state_dict()}};
}

void AveragingCallback::load_state_dict(const StateDict& state) {
  num_averaged_ = state.get_int("num_averaged");
  weights_.load_state_dict(state.get_dict("weights"));
}

StateDict AveragingCallback::rank_state_dict() const {
  return differs_between_ranks_ ? weights_.rank_state_dict(has_own_weights_) : StateDict();
}

void AveragingCallback::load_rank_state_dict(const StateDict& state) {
  weights_.load_rank_state_dict(state);
}

}  // namespace linkboy

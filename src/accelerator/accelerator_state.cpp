// Accelerator's own state, and the state of an optimizer whose parts may be on several ranks.

#include <utility>

#include "accelerator/accelerator_implementation.hpp"
#include "checkpoint/optimizer_state.hpp"
#include "distributed/agreement.hpp"
#include "linkboy/error.hpp"
#include "precision/fused_step.hpp"
#include "util/parameters.hpp"

namespace linkboy {
namespace {

constexpr const char* kSendingOrders = "sending_orders";
constexpr const char* kNumSteps = "num_steps";

/// Replaces each tensor of the state that is this rank's rows by the whole tensor.
void make_whole(StateDict& state, const torch::optim::Optimizer& optimizer,
                const ParameterShards& shards) {
  LINKBOY_CHECK(state.contains("state"),
                "with zero_stage, the state of this optimizer cannot be collected; use SGD, Adam, "
                "AdamW, Adagrad or RMSprop.");
  const auto parameters = parameters_of(optimizer);
  const auto by_parameter = state.at("state").toGenericDict();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto entry = by_parameter.find(static_cast<int64_t>(i));
    if (entry == by_parameter.end() || !shards.contains(parameters[i])) continue;
    const auto parts = entry->value().toGenericDict();
    for (const auto& part : parts) {
      const bool is_rows = part.value().isTensor() && part.value().toTensor().defined() &&
                           part.value().toTensor().dim() > 0;
      if (!is_rows) continue;
      const at::Tensor rows = part.value().toTensor();
      // A device need not have room for the whole state.
      part.setValue(shards.whole_of(parameters[i], rows, /*is_wanted=*/true).cpu());
    }
  }
}

}  // namespace

/// With zero_stage 3, reduces the optimizer's state to this rank's rows: a loaded state is whole,
/// as is one from before `prepare`.
void Accelerator::Implementation::keep_own_rows(const torch::optim::Optimizer& optimizer) const {
  const at::NoGradGuard no_grad;
  for_each_state_tensor(optimizer, [this](const at::Tensor& parameter, at::Tensor& part) {
    if (!part.defined() || part.sizes() != parameter.sizes()) return;
    if (shards_->contains(parameter)) part = shards_->rows_of(parameter, part).clone();
  });
}

StateDict Accelerator::optimizer_state_dict(const torch::optim::Optimizer& optimizer) const {
  if (impl_->grad_scaler_) impl_->grad_scaler_->settle(optimizer);
  if (impl_->shards_) impl_->keep_own_rows(optimizer);
  StateDict state = impl_->zero_ ? impl_->zero_->whole_state(optimizer)
                                 : linkboy::optimizer_state_dict(optimizer);
  if (impl_->shards_) make_whole(state, optimizer, *impl_->shards_);
  bool was_fused = state.contains("param_groups") && !impl_->partly_fused_.contains(&optimizer);
  if (impl_->zero_) {  // each rank has stepped only its own parameters
    was_fused = is_true_on_all_ranks(*impl_->process_group_, was_fused);
  }
  for (std::size_t i = 0; was_fused && i < optimizer.param_groups().size(); ++i) {
    if (!is_fused_in_python(optimizer, optimizer.param_groups()[i])) continue;
    // The list and its dicts were created for this state, so they can be changed.
    state.get_list("param_groups")[i].toGenericDict().insert_or_assign("fused", true);
  }
  return state;
}

StateDict Accelerator::state_dict() const {
  c10::impl::GenericList orders(c10::AnyType::get());
  for (const auto& reducer : impl_->reducers_) orders.push_back(reducer->sending_order());
  StateDict state;
  state.set(kSendingOrders, orders);
  if (impl_->distributed_.local_sgd_interval > 0)
    state.set(kNumSteps, c10::IValue(impl_->num_steps_));
  return state;
}

void Accelerator::load_state_dict(const StateDict& state) {
  std::vector<int64_t> counts;
  if (state.contains(kNumSteps)) {
    for (const c10::IValue& number : state.get_list(kNumSteps)) {
      LINKBOY_CHECK(number.isInt() && number.toInt() >= 0, "the accelerator's \"", kNumSteps,
                    "\" contains ", number,
                    "; it must contain counts of updates. Use another state.");
      counts.push_back(number.toInt());
    }
  }
  const auto list = state.get_list(kSendingOrders);  // the last check that may throw
  for (std::size_t i = 0; i < impl_->reducers_.size(); ++i) {
    std::vector<int64_t> order;  // empty for a model that was not prepared when the state was saved
    if (i < list.size() && list[i].isList()) {
      for (const c10::IValue& number : list[i].toListRef()) {
        if (number.isInt()) order.push_back(number.toInt());
      }
    }
    impl_->reducers_[i]->set_sending_order(order);
  }
  if (state.contains(kNumSteps)) impl_->num_steps_ = std::move(counts);
}

}  // namespace linkboy

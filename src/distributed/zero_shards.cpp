// Assigns parameters to ranks. For the step of a rank, the gradients of the other ranks' parameters
// are hidden from the optimizer.

#include "distributed/zero_shards.hpp"

#include <torch/optim/optimizer.h>

#include <algorithm>

#include "checkpoint/optimizer_state.hpp"
#include "distributed/ivalue_bytes.hpp"
#include "linkboy/error.hpp"
#include "util/parameters.hpp"

namespace linkboy {
namespace {

/// Hides the gradients of the chosen parameters while the object exists.
class HiddenGradients {
 public:
  template <class IsHidden>
  HiddenGradients(const torch::optim::Optimizer& optimizer, IsHidden is_hidden) {
    for (const auto& parameter : parameters_of(optimizer)) {
      if (is_hidden(parameter)) hidden_.emplace_back(parameter, parameter.grad());
    }
    // Hide them only when all are known, because is_hidden may throw.
    for (auto& [parameter, gradient] : hidden_) parameter.mutable_grad().reset();
  }
  ~HiddenGradients() {
    for (auto& [parameter, gradient] : hidden_) parameter.mutable_grad() = std::move(gradient);
  }
  HiddenGradients(const HiddenGradients&) = delete;
  HiddenGradients& operator=(const HiddenGradients&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> hidden_;
};

}  // namespace

ZeroShards::ZeroShards(std::shared_ptr<const ProcessGroup> group)
    : group_(std::move(group)), num_elements_(group_->size()) {}

void ZeroShards::assign(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> added = parameters_of(optimizer);
  std::erase_if(added, [this](const auto& parameter) {
    return owners_.contains(parameter.unsafeGetTensorImpl());
  });
  std::stable_sort(added.begin(), added.end(),
                   [](const auto& a, const auto& b) { return a.numel() > b.numel(); });
  for (const auto& parameter : added) {
    const auto least = std::min_element(num_elements_.begin(), num_elements_.end());
    owners_.emplace(parameter.unsafeGetTensorImpl(), least - num_elements_.begin());
    *least += parameter.numel();
  }
}

int64_t ZeroShards::owner_of(const at::Tensor& parameter) const {
  const auto found = owners_.find(parameter.unsafeGetTensorImpl());
  LINKBOY_CHECK(found != owners_.end(), "with zero_stage, no rank updates the parameter of shape ",
                parameter.sizes(),
                ", because Accelerator::prepare has not seen it. Call prepare(model, &optimizer) "
                "after you add parameters.");
  return found->second;
}

void ZeroShards::step(torch::optim::Optimizer& optimizer, const std::function<void()>& make_step) {
  drop_state_of_others(optimizer);
  const HiddenGradients hidden(optimizer, [&](const at::Tensor& parameter) {
    return owner_of(parameter) != group_->rank();
  });
  make_step();
  std::vector<std::vector<at::Tensor>> of_rank(group_->size());
  for (const auto& parameter : parameters_of(optimizer)) {
    if (parameter.requires_grad()) of_rank[owner_of(parameter)].push_back(parameter);
  }
  // Send the parameters even if fp16 has skipped the step, because a rank may not know that yet.
  for (int64_t rank = 0; rank < group_->size(); ++rank) group_->broadcast(of_rank[rank], rank);
}

/// Drops the state of other ranks' parameters, which a loaded checkpoint contains.
void ZeroShards::drop_state_of_others(torch::optim::Optimizer& optimizer) const {
  for (const auto& [parameter, owner] : owners_) {
    if (owner != group_->rank()) optimizer.state().erase(parameter);
  }
}

StateDict ZeroShards::whole_state(const torch::optim::Optimizer& optimizer) const {
  StateDict whole = optimizer_state_dict(optimizer);
  LINKBOY_CHECK(whole.contains("state"),
                "with zero_stage, the state of this optimizer cannot be collected; use SGD, "
                "Adam, AdamW, Adagrad or RMSprop.");
  c10::impl::GenericDict all(c10::IntType::get(), c10::AnyType::get());
  const std::string own = to_bytes(whole.at("state"));
  // One rank after another, so that no rank needs memory for the bytes of all.
  for (int64_t rank = 0; rank < group_->size(); ++rank) {
    const c10::IValue part = from_bytes(group_->broadcast_bytes(own, rank));
    for (const auto& entry : part.toGenericDict()) all.insert(entry.key(), entry.value());
  }
  whole.set("state", all);
  return whole;
}

}  // namespace linkboy

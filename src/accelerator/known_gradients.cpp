// Losses whose gradients were computed together with them.

#include "accelerator/known_gradients.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <utility>

namespace linkboy {
namespace {

using torch::autograd::AccumulateGrad;

/// The node that accumulates the gradient of an edge; null if a hook watches it.
AccumulateGrad* accumulator_without_hooks(const torch::autograd::Edge& edge) {
  auto* const accumulator = dynamic_cast<AccumulateGrad*>(edge.function.get());
  if (accumulator == nullptr) return nullptr;
  const bool has_hooks = !accumulator->pre_hooks().empty() || !accumulator->post_hooks().empty() ||
                         !accumulator->tensor_pre_hooks().empty() ||
                         accumulator->tensor_post_acc_grad_hooks() != nullptr;
  return has_hooks ? nullptr : accumulator;
}

}  // namespace

KnownGradients::KnownGradients(std::vector<at::Tensor> of_parameters)
    : gradients(std::move(of_parameters)) {}

torch::autograd::variable_list KnownGradients::apply(torch::autograd::variable_list&& factors) {
  TORCH_CHECK(!gradients.empty(), "a compiled step has one backward pass");
  const at::Tensor factor = factors[0].reshape({});
  const at::NoGradGuard no_grad;
  if (factor.item<double>() != 1.0) at::_foreach_mul_(gradients, factor);
  return std::exchange(gradients, {});
}

void set_gradients(at::Tensor& loss, const std::vector<at::Tensor>& parameters,
                   std::vector<at::Tensor> gradients) {
  auto node = std::make_shared<KnownGradients>(std::move(gradients));
  for (const at::Tensor& each : parameters) {
    node->add_next_edge(torch::autograd::impl::gradient_edge(each));
  }
  torch::autograd::create_gradient_edge(loss, std::move(node));
}

bool accumulate_known_gradients(const at::Tensor& loss) {
  auto* const node = dynamic_cast<KnownGradients*>(loss.grad_fn().get());
  if (node == nullptr || node->gradients.empty() || !node->retains_grad_hooks().empty() ||
      !node->pre_hooks().empty() || !node->post_hooks().empty() ||
      !node->tensor_pre_hooks().empty()) {
    return false;
  }
  std::vector<AccumulateGrad*> accumulators;
  for (std::size_t i = 0; i < node->gradients.size(); ++i) {
    AccumulateGrad* const accumulator = accumulator_without_hooks(node->next_edge(i));
    if (accumulator == nullptr || accumulator->variable.grad().defined() ||
        !torch::autograd::utils::obeys_layout_contract(node->gradients[i], accumulator->variable)) {
      return false;  // the engine adds or copies
    }
    accumulators.push_back(accumulator);
  }
  std::vector<at::Tensor> gradients = std::exchange(node->gradients, {});
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    accumulators[i]->variable.mutable_grad() = std::move(gradients[i]);
  }
  return true;
}

}  // namespace linkboy

// The weights of an accumulation window, and the batches that a closure needs again.

#include "trainer/window_contents.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "distributed/agreement.hpp"
#include "linkboy/error.hpp"
#include "util/parameters.hpp"

namespace linkboy {

void WindowContents::clear() {
  weights_.clear();
  batch_of_pass_ = {};
  passes_.clear();
  loss_.reset();
}

at::Tensor WindowContents::weighted_loss(const StepOutput& output, const Accelerator& accelerator) {
  // About the size of a batch, so that fp16 does not overflow. A power of two keeps the division
  // exact.
  if (weight_unit_ == 0.0) {
    const int64_t most = max_over_ranks(accelerator.process_group(), output.batch_size);
    weight_unit_ = std::exp2(std::ilogb(most));
  }
  const AccumulationWindow window = accelerator.window();
  weights_.resize(static_cast<std::size_t>(window.length));
  int64_t& weight = weights_[static_cast<std::size_t>(window.index)];
  weight = std::max(weight, output.batch_size);
  return output.loss * (static_cast<double>(output.batch_size) / weight_unit_);
}

void WindowContents::weight_gradients(const torch::optim::Optimizer& optimizer,
                                      const Accelerator& accelerator) {
  const int64_t own = std::accumulate(weights_.begin(), weights_.end(), int64_t{0});
  at::Tensor weight = at::full({1}, own, at::kLong);
  accelerator.process_group().all_reduce(weight);
  LINKBOY_CHECK(weight_unit_ > 0.0 && weight.item<int64_t>() > 0,
                "weight_by_batch_size needs Trainer's forward and backward, but train_step did not "
                "call them. Call them in train_step, or do not set weight_by_batch_size.");
  const auto num_parts =
      static_cast<double>(accelerator.window().length * accelerator.num_processes());
  const auto gradients = gradients_of(parameters_of(optimizer));
  const at::NoGradGuard no_grad;
  if (!gradients.empty()) {
    at::_foreach_mul_(gradients, weight_unit_ * num_parts / weight.item<double>());
  }
}

void WindowContents::add_loss(const at::Tensor& loss, AccumulationWindow window) {
  const at::Tensor share = loss.detach() / window.length;
  loss_ = loss_.defined() ? loss_ + share : share;
}

void WindowContents::keep_pass(int64_t micro_step, AccumulationWindow window) {
  Batch batch = std::exchange(batch_of_pass_, {});
  LINKBOY_CHECK(batch.size() > 0,
                "the optimizer evaluates the loss of the window again, but train_step called "
                "backward without forward. Call both in train_step.");
  if (window.length > 1) {
    // The loader may fill the same memory again.
    Batch copy;
    for (const auto& [name, tensor] : batch.tensors()) copy.set(name, tensor.clone());
    for (const auto& [name, value] : batch.values()) copy.set_value(name, value.deepcopy());
    batch = std::move(copy);
  }
  passes_.push_back({.micro_step = micro_step, .batch = std::move(batch)});
}

at::Tensor WindowContents::take_loss() { return std::exchange(loss_, at::Tensor()); }

}  // namespace linkboy

// Sends a bucket of gradients to its owner when all are ready, in the same order on all ranks.

#include "distributed/zero2_gradient_reducer.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "checkpoint/optimizer_tensors.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

class CallWhenReady final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit CallWhenReady(std::function<void()> call) : call_(std::move(call)) {}
  void operator()(const torch::autograd::Variable&) override { call_(); }

 private:
  std::function<void()> call_;
};

/// Returns the gradient's elements in the parameter's memory order, which the owner's step expects.
at::Tensor flattened(const at::Tensor& gradient, const at::Tensor& parameter) {
  if (!parameter.is_non_overlapping_and_dense()) return gradient.reshape({-1});
  const bool is_laid_out = have_same_layout(gradient, parameter);
  const at::Tensor laid_out = is_laid_out ? gradient : at::empty_like(parameter).copy_(gradient);
  return laid_out.as_strided({parameter.numel()}, {1});
}

/// The inverse of `flattened`: returns a view of the elements that begin at `offset`.
at::Tensor gradient_in(const at::Tensor& flat, int64_t offset, const at::Tensor& parameter) {
  if (!parameter.is_non_overlapping_and_dense()) {
    return flat.narrow(0, offset, parameter.numel()).view_as(parameter);
  }
  return flat.as_strided(parameter.sizes(), parameter.strides(), flat.storage_offset() + offset);
}

}  // namespace

Zero2GradientReducer::Zero2GradientReducer(
    std::shared_ptr<const ProcessGroup> group, std::vector<at::Tensor> parameters,
    const std::function<int64_t(const at::Tensor&)>& owner_of, int64_t bucket_bytes)
    : group_(std::move(group)) {
  std::vector<std::size_t> open(group_->size(), 0);  // 1 + each owner's open bucket, or 0
  // Gradients arrive in the reverse order of the layers.
  for (auto parameter = parameters.rbegin(); parameter != parameters.rend(); ++parameter) {
    std::size_t& place = open[owner_of(*parameter)];
    const auto fits = [&] {
      if (place == 0) return false;
      const auto& others = buckets_[place - 1].parameters;
      std::size_t bytes = parameter->nbytes();
      for (const auto& other : others) bytes += other.nbytes();
      return others.front().options().type_equal(parameter->options()) &&
             others.front().device() == parameter->device() &&
             bytes <= static_cast<std::size_t>(bucket_bytes);
    };
    if (!fits()) {
      buckets_.push_back({.owner = owner_of(*parameter)});
      place = buckets_.size();
    }
    const std::size_t bucket = place - 1;
    buckets_[bucket].parameters.push_back(*parameter);
    LINKBOY_CHECK(
        !torch::autograd::impl::post_acc_grad_hooks(*parameter),
        "zero_stage 2 needs the parameters' post-accumulate-gradient hooks, but a parameter "
        "already has one. Remove it, or use zero_stage 1.");
    torch::autograd::impl::set_post_acc_grad_hooks(
        *parameter, std::make_unique<CallWhenReady>([this, bucket] { mark_ready(bucket); }));
  }
}

Zero2GradientReducer::~Zero2GradientReducer() {
  for (const Bucket& bucket : buckets_) {
    for (const auto& parameter : bucket.parameters) {
      torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
    }
  }
}

void Zero2GradientReducer::begin() {
  for (Bucket& bucket : buckets_) {
    bucket.num_ready = 0;
    bucket.are_used.clear();
    bucket.pending.reset();
    bucket.flat.reset();
  }
  next_to_send_ = 0;
  is_active_ = true;
}

void Zero2GradientReducer::mark_ready(std::size_t bucket) {
  if (!is_active_) return;  // gradients are still accumulated
  ++buckets_[bucket].num_ready;
  while (next_to_send_ < buckets_.size() &&
         buckets_[next_to_send_].num_ready == buckets_[next_to_send_].parameters.size()) {
    send(buckets_[next_to_send_++]);
  }
}

void Zero2GradientReducer::send(Bucket& bucket) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> pieces;
  for (auto& parameter : bucket.parameters) {
    at::Tensor& gradient = parameter.mutable_grad();
    bucket.are_used.push_back(gradient.defined() ? 1 : 0);
    pieces.push_back(gradient.defined() ? flattened(gradient, parameter)
                                        : at::zeros({parameter.numel()}, parameter.options()));
    // Gradients that other ranks own are released as soon as they are sent.
    if (bucket.owner != group_->rank()) gradient.reset();
  }
  // Divide before the sum, like c10d's Reducer, to get the same sums.
  bucket.flat = at::cat(pieces).div_(group_->size());
  bucket.pending = group_->reduce_later(bucket.flat, bucket.owner);
}

/// Returns whether each parameter has a gradient on any rank, in the order of the buckets.
std::vector<int64_t> Zero2GradientReducer::used_on_any_rank() const {
  std::vector<int64_t> all;
  for (const Bucket& bucket : buckets_) {
    all.insert(all.end(), bucket.are_used.begin(), bucket.are_used.end());
  }
  const at::Tensor used = at::tensor(all, at::kLong);
  group_->all_reduce(used, ReduceOp::max);
  return {used.const_data_ptr<int64_t>(), used.const_data_ptr<int64_t>() + used.numel()};
}

void Zero2GradientReducer::end(bool allows_unused) {
  is_active_ = false;
  LINKBOY_CHECK(allows_unused || next_to_send_ == buckets_.size(),
                "a step did not use all parameters, but zero_stage 2 waits for all of them. Set "
                "find_unused_parameters, or freeze the unused ones.");
  while (next_to_send_ < buckets_.size()) send(buckets_[next_to_send_++]);
  std::vector<int64_t> used;
  if (allows_unused) used = used_on_any_rank();
  const at::NoGradGuard no_grad;
  std::size_t index = 0;  // of a parameter
  for (Bucket& bucket : buckets_) {
    bucket.pending->wait();
    int64_t offset = 0;
    for (auto& parameter : bucket.parameters) {
      const bool is_used = !allows_unused || used[index++] != 0;
      if (bucket.owner == group_->rank() && is_used) {
        parameter.mutable_grad() = gradient_in(bucket.flat, offset, parameter);
      }
      offset += parameter.numel();
    }
    bucket.flat.reset();
    bucket.pending.reset();
  }
}

}  // namespace linkboy

// Gives each rank its rows of the gradients while the backward pass runs.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "distributed/parameter_shards.hpp"
#include "distributed/process_group_implementation.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

constexpr const char* kReduction = "the averaging of the gradients";

}  // namespace

void ParameterShards::check_has_rows(const Member& member, const at::Tensor& gradient) {
  if (!gradient.defined()) return;
  const std::vector<int64_t> sizes = member.sizes_of_rows();
  LINKBOY_CHECK(gradient.sizes() == c10::IntArrayRef(sizes), "the parameter ", member.name,
                " has a gradient of shape ", gradient.sizes(),
                ", but with zero_stage 3 it must be this process's rows, ", c10::IntArrayRef(sizes),
                ". Compute gradients with Accelerator::backward, and unfreeze layers between "
                "accumulation windows.");
}

void ParameterShards::begin_backward(const std::vector<at::Tensor>& parameters) {
  abandon_backward();
  for (const at::Tensor& parameter : parameters) {
    const auto number = find(parameter);
    if (!number || !parameter.requires_grad()) continue;
    Member& member = members_[*number];
    check_has_rows(member, parameter.grad());
    member.kept = std::exchange(parameter.mutable_grad(), at::Tensor());
    member.is_awaited = true;
    Unit& unit = units_[member.unit];
    unit.is_trained = true;
    ++unit.num_missing;
  }
  // Gradients arrive in the reverse order of the uses.
  for (std::size_t i = units_.size(); i-- > 0;) {
    if (units_[i].is_trained) to_send_.push_back(i);
  }
  is_in_backward_ = true;
}

void ParameterShards::abandon_backward() {
  is_in_backward_ = false;
  to_send_.clear();
  num_sent_ = num_finished_ = 0;
  for (Member& member : members_) {
    member.gradient.reset();
    member.kept.reset();
    member.is_awaited = member.is_used = false;
  }
  for (Unit& unit : units_) {
    unit.is_trained = false;
    unit.num_missing = 0;
    unit.reducing.reset();
    unit.reduced.reset();
  }
}

void ParameterShards::take_gradient(std::size_t number) {
  Member& member = members_[number];
  if (!is_in_backward_ || !member.is_awaited) return;
  LINKBOY_CHECK(!member.is_used, "the parameter ", member.name,
                " got a second gradient in one backward pass, which zero_stage 3 does not support. "
                "Use zero_stage 2.");
  member.gradient = std::exchange(parameter_of(member).mutable_grad(), at::Tensor());
  member.is_used = true;
  --units_[member.unit].num_missing;
  send_ready_units();
}

void ParameterShards::send_ready_units() {
  while (num_sent_ < to_send_.size() && units_[to_send_[num_sent_]].num_missing == 0) {
    send(units_[to_send_[num_sent_++]]);
  }
}

void ParameterShards::send(Unit& unit) {
  const at::NoGradGuard no_grad;
  // Only the gradients of one unit are on their way, whose memory can be as large as the unit's.
  while (num_finished_ + 1 < num_sent_) finish(units_[to_send_[num_finished_++]]);
  const at::TensorOptions& options = members_[unit.members[0]].options;
  // Divided before the sum, like c10d's Reducer.
  const int64_t divisor = num_ranks_ * replicas_->size();
  unit.reduced = at::empty({unit.size}, options);
  at::Tensor all;  // [ranks, size]
  if (!shared_reducer_) all = at::empty({num_ranks_, unit.size}, options);
  for (const std::size_t number : unit.members) {
    Member& member = members_[number];
    at::Tensor gradient = std::exchange(member.gradient, at::Tensor());
    const at::Tensor blocks = gradient.defined()
                                  ? as_blocks(gradient, member)
                                  : at::zeros({num_ranks_, member.block_size()}, options);
    if (shared_reducer_) {
      unit.last_piece = run_message(*reductions_, kReduction, [&] {
        return shared_reducer_->write(blocks, divisor, block_in(unit.reduced, member));
      });
    } else {
      at::Tensor place = block_in(all, member);
      at::div_out(place, blocks, at::scalar_tensor(static_cast<double>(divisor), at::kDouble));
    }
  }
  if (!shared_reducer_) unit.reducing = reductions_->reduce_scatter_later(unit.reduced, all);
}

void ParameterShards::finish(Unit& unit) {
  if (unit.reducing) std::exchange(unit.reducing, nullptr)->wait();
  if (shared_reducer_) {
    run_message(*reductions_, kReduction, [&] { shared_reducer_->read_until(unit.last_piece); });
  }
  replicas_->all_reduce(unit.reduced);
}

/// Returns for each member whether it has a gradient on any rank.
std::vector<int64_t> ParameterShards::used_on_any_rank() const {
  std::vector<int64_t> all;
  for (const Member& member : members_) all.push_back(member.is_used ? 1 : 0);
  const at::Tensor used = at::tensor(all, at::kLong);
  for (const auto& group : {reductions_, replicas_}) group->all_reduce(used, ReduceOp::max);
  return {used.const_data_ptr<int64_t>(), used.const_data_ptr<int64_t>() + used.numel()};
}

void ParameterShards::end_backward(bool allows_unused) {
  LINKBOY_CHECK(allows_unused || num_sent_ == to_send_.size(),
                "a step did not use all parameters, but zero_stage 3 waits for all of them. Set "
                "find_unused_parameters, or freeze the unused ones.");
  while (num_sent_ < to_send_.size()) send(units_[to_send_[num_sent_++]]);
  while (num_finished_ < to_send_.size()) finish(units_[to_send_[num_finished_++]]);
  std::vector<int64_t> used;
  if (allows_unused && !to_send_.empty()) used = used_on_any_rank();
  const at::NoGradGuard no_grad;
  for (const std::size_t number_of_unit : to_send_) {
    const Unit& unit = units_[number_of_unit];
    for (const std::size_t number : unit.members) {
      Member& member = members_[number];
      const at::Tensor parameter = parameter_of(member);
      if (!member.is_awaited || !parameter.defined()) continue;
      at::Tensor gradient = std::exchange(member.kept, at::Tensor());
      if (used.empty() || used[number] != 0) {
        const at::Tensor added = rows_in(block_in(unit.reduced, member), member);
        gradient = gradient.defined() ? gradient.add_(added) : added;
      }
      parameter.mutable_grad() = gradient;
    }
  }
  abandon_backward();
}

}  // namespace linkboy

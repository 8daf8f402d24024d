// The states of a metric: how they follow the batches to a device, are merged over the processes,
// and are saved. Invalid values are counted there, so that no check waits for the device.

#include "linkboy/metrics/metric.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstring>
#include <string_view>
#include <utility>

#include "linkboy/error.hpp"

namespace linkboy {
namespace {

constexpr const char* kViolations = "violations";

at::Tensor own_copy_on_cpu(const at::Tensor& tensor) {
  return tensor.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
}

/// Concatenates the parts. A part without rows may have any shape, because its process has not seen
/// a batch.
at::Tensor concatenated(const std::vector<at::Tensor>& parts) {
  std::vector<at::Tensor> filled;
  for (const auto& part : parts) {
    if (part.size(0) > 0) filled.push_back(part);
  }
  return filled.empty() ? parts.front().clone() : at::cat(filled);
}

std::string_view bytes_of(const void* data, std::size_t size) {
  return {static_cast<const char*>(data), size};
}

/// Returns the rows of all processes, in rank order. All have the same dtype.
at::Tensor gathered_rows(const at::Tensor& mine, const ProcessGroup& group) {
  const at::Tensor rows = mine.contiguous();
  const auto shapes =
      group.all_gather_bytes(bytes_of(rows.sizes().data(), rows.dim() * sizeof(int64_t)));
  const auto contents = group.all_gather_bytes(bytes_of(rows.const_data_ptr(), rows.nbytes()));
  std::vector<at::Tensor> parts;
  for (std::size_t rank = 0; rank < shapes.size(); ++rank) {
    std::vector<int64_t> sizes(shapes[rank].size() / sizeof(int64_t));
    std::memcpy(sizes.data(), shapes[rank].data(), shapes[rank].size());
    parts.push_back(at::empty(sizes, rows.options()));
    if (!contents[rank].empty()) {
      std::memcpy(parts.back().mutable_data_ptr(), contents[rank].data(), contents[rank].size());
    }
  }
  return concatenated(parts);
}

}  // namespace

std::size_t Metric::add_state(std::string name, at::Tensor initial, Merge merge) {
  at::Tensor value = initial.clone();
  seen_.states.push_back({std::move(name), std::move(initial), merge, std::move(value), {}});
  return seen_.states.size() - 1;
}

void Metric::append(std::size_t number, at::Tensor rows) {
  State& state = seen_.states[number];
  // Copy the rows, because the caller may reuse the memory: a captured step writes to the same
  // outputs each time.
  state.rows.push_back(rows.detach().to(rows.device(), state.initial.scalar_type(),
                                        /*non_blocking=*/true, /*copy=*/true));
}

std::size_t Metric::add_rule(std::string text) {
  rules_.push_back(std::move(text));
  seen_.violations = at::zeros({static_cast<int64_t>(rules_.size())}, at::kLong);
  return rules_.size() - 1;
}

void Metric::count_violations(std::size_t rule, const at::Tensor& is_violation) {
  seen_.violations.select(0, static_cast<int64_t>(rule)).add_(is_violation.sum());
}

void Metric::check_values(std::size_t rule, const at::Tensor& values,
                          const at::Tensor& is_violation) {
  if (!values.is_cpu()) return count_violations(rule, is_violation);
  if (!is_violation.any().item<bool>()) return;
  const auto first = is_violation.flatten().to(at::kByte).argmax().item<int64_t>();
  throw Error(c10::str(rules_[rule], " Element ", first, " of the batch is ",
                       values.flatten()[first].item(), "."));
}

void Metric::follow(const at::Tensor& batch) {
  // Do not wait for pending work on the device. A move to the CPU does wait, because the values are
  // read immediately.
  const bool non_blocking = !batch.is_cpu();
  const auto move = [&](at::Tensor& tensor) {
    tensor = tensor.to(batch.device(), tensor.scalar_type(), non_blocking);
  };
  for (State& state : seen_.states) {
    if (state.merge != Merge::concatenate) move(state.value);
  }
  if (!rules_.empty()) move(seen_.violations);
}

void Metric::reset() { take(); }

Metric::Seen Metric::take() {
  Seen taken = std::exchange(seen_, {});
  for (const State& state : taken.states) {
    seen_.states.push_back({state.name, state.initial, state.merge, state.initial.clone(), {}});
  }
  if (!rules_.empty()) {
    seen_.violations = at::zeros({static_cast<int64_t>(rules_.size())}, at::kLong);
  }
  return taken;
}

at::Tensor Metric::whole(const State& state) {
  if (state.rows.empty()) return state.value;
  std::vector<at::Tensor> parts{state.value.to(state.rows.back().device())};
  for (const auto& rows : state.rows) parts.push_back(rows.to(parts.front().device()));
  return concatenated(parts);
}

at::Tensor Metric::merged(const State& state, const ProcessGroup& group) {
  // On the CPU, because a process without a batch does not have a device.
  at::Tensor mine = own_copy_on_cpu(whole(state));
  if (group.size() == 1) return mine;
  if (state.merge == Merge::concatenate) return gathered_rows(mine, group);
  const bool is_min = state.merge == Merge::min;
  const bool is_max = state.merge == Merge::max;
  group.all_reduce(mine, is_min ? ReduceOp::min : is_max ? ReduceOp::max : ReduceOp::sum);
  return mine;
}

void Metric::check_rules(const ProcessGroup& group) const {
  if (rules_.empty()) return;
  at::Tensor violations = own_copy_on_cpu(seen_.violations);
  group.all_reduce(violations);
  for (std::size_t rule = 0; rule < rules_.size(); ++rule) {
    const auto count = violations[static_cast<int64_t>(rule)].item<int64_t>();
    LINKBOY_CHECK(
        count == 0, count, " values in batches on a device were out of range: ", rules_[rule],
        " Call reset(). To see the value in the error, call update with a batch on the CPU.");
  }
}

at::Tensor Metric::compute(const ProcessGroup& group) const {
  const at::NoGradGuard no_grad;
  check_rules(group);
  std::vector<at::Tensor> states;
  for (const State& state : seen_.states) states.push_back(merged(state, group));
  return value_of(states).to(at::kDouble);
}

StateDict Metric::state_dict() const { return state_dict(seen_); }

StateDict Metric::state_dict(const Seen& seen) const {
  StateDict result;
  for (const State& state : seen.states) result.set(state.name, whole(state).clone());
  if (!rules_.empty()) result.set(kViolations, seen.violations.clone());
  return result;
}

at::Tensor Metric::loaded(const State& state, const StateDict& states) {
  const at::Tensor value = states.get_tensor(state.name);
  bool fits = value.scalar_type() == state.initial.scalar_type();
  if (state.merge == Merge::concatenate) {
    const auto row = state.initial.sizes().slice(1);
    fits = fits && value.dim() > 0 && (row.empty() || value.sizes().slice(1) == row);
  } else {
    fits = fits && value.sizes() == state.initial.sizes();
  }
  LINKBOY_CHECK(fits, "\"", state.name, "\" is ", value.scalar_type(), value.sizes(),
                ", but this metric has ", state.initial.scalar_type(), state.initial.sizes(),
                ". Load the state of a metric with the same options.");
  return value.detach().clone(at::MemoryFormat::Contiguous);
}

void Metric::load_state_dict(const StateDict& state) {
  std::vector<at::Tensor> values;
  for (const State& own : seen_.states) values.push_back(loaded(own, state));
  at::Tensor violations = seen_.violations;
  if (!rules_.empty()) {
    const State own{kViolations, seen_.violations, Merge::sum, {}, {}};
    violations = loaded(own, state);
  }
  for (const auto& [name, value] : state.entries()) {
    bool is_known = !rules_.empty() && name == kViolations;
    for (const State& own : seen_.states) is_known = is_known || own.name == name;
    LINKBOY_CHECK(
        is_known, "the state has \"", name,
        "\", which this metric does not have. Load the state of a metric of the same kind.");
  }
  for (std::size_t i = 0; i < seen_.states.size(); ++i) {
    seen_.states[i].value = std::move(values[i]);
    seen_.states[i].rows.clear();
  }
  seen_.violations = std::move(violations);
}

}  // namespace linkboy

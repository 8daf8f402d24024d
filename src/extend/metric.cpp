// The states of a metric: how they follow the batches to a device, are merged over the processes,
// and are saved. Invalid values are counted there, so that no check waits for the device.

#include "linkboy/metric.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <string_view>
#include <utility>

#include "linkboy/error.hpp"

namespace linkboy {
namespace {

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

/// Runs `work`, and adds the name of the metric to its errors.
template <class Work>
auto named(const std::string& name, Work work) {
  try {
    return work();
  } catch (const DistributedError&) {
    throw;  // its message says which call failed
  } catch (const OptionError& error) {
    throw OptionError(c10::str("metric \"", name, "\": ", error.what()));
  } catch (const Error& error) {
    throw Error(c10::str("metric \"", name, "\": ", error.what()));
  }
}

}  // namespace

Metric::State Metric::without_batches(std::string name, at::Tensor initial, Merge merge) {
  at::Tensor value = initial.clone();
  return {std::move(name), std::move(initial), merge, std::move(value), {}};
}

std::size_t Metric::add_state(std::string name, at::Tensor initial, Merge merge) {
  const std::size_t number = seen_.size() - (rules_.empty() ? 0 : 1);
  seen_.insert(seen_.begin() + static_cast<std::ptrdiff_t>(number),
               without_batches(std::move(name), std::move(initial), merge));
  return number;
}

void Metric::append(std::size_t number, at::Tensor rows) {
  State& state = seen_[number];
  // Copy the rows, because the caller may reuse the memory: a captured step writes to the same
  // outputs each time.
  state.rows.push_back(rows.detach().to(rows.device(), state.initial.scalar_type(),
                                        /*non_blocking=*/true, /*copy=*/true));
}

std::size_t Metric::add_rule(std::string text) {
  if (!rules_.empty()) seen_.pop_back();
  rules_.push_back(std::move(text));
  seen_.push_back(
      without_batches("violations", at::zeros({std::ssize(rules_)}, at::kLong), Merge::sum));
  return rules_.size() - 1;
}

void Metric::count_violations(std::size_t rule, const at::Tensor& is_violation) {
  seen_.back().value.select(0, static_cast<int64_t>(rule)).add_(is_violation.sum());
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
  for (State& state : seen_) {
    if (state.merge == Merge::concatenate) continue;
    state.value = state.value.to(batch.device(), state.value.scalar_type(), non_blocking);
  }
}

Metric::Seen Metric::take() {
  Seen taken = std::exchange(seen_, {});
  for (const State& state : taken) {
    seen_.push_back(without_batches(state.name, state.initial, state.merge));
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
  at::Tensor mine = whole(state).to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
  if (group.size() == 1) return mine;
  if (state.merge == Merge::concatenate) return gathered_rows(mine, group);
  const bool is_min = state.merge == Merge::min;
  const bool is_max = state.merge == Merge::max;
  group.all_reduce(mine, is_min ? ReduceOp::min : is_max ? ReduceOp::max : ReduceOp::sum);
  return mine;
}

void Metric::check_rules(const at::Tensor& violations) const {
  for (std::size_t rule = 0; rule < rules_.size(); ++rule) {
    const auto count = violations[static_cast<int64_t>(rule)].item<int64_t>();
    LINKBOY_CHECK(
        count == 0, count, " values in batches on a device were out of range: ", rules_[rule],
        " Call reset(). To see the value in the error, call update with a batch on the CPU.");
  }
}

at::Tensor Metric::compute(const ProcessGroup& group) const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> states;
  for (const State& state : seen_) states.push_back(merged(state, group));
  if (!rules_.empty()) {
    check_rules(states.back());
    states.pop_back();
  }
  return value_of(states).to(at::kDouble);
}

StateDict Metric::state_dict(const Seen& seen) {
  StateDict result;
  for (const State& state : seen) result.set(state.name, whole(state).clone());
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
  for (const State& own : seen_) values.push_back(loaded(own, state));
  for (const auto& [name, value] : state.entries()) {
    const bool is_known = std::any_of(
        seen_.begin(), seen_.end(), [&name = name](const State& own) { return own.name == name; });
    LINKBOY_CHECK(
        is_known, "the state has \"", name,
        "\", which this metric does not have. Load the state of a metric of the same kind.");
  }
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    seen_[i].value = std::move(values[i]);
    seen_[i].rows.clear();
  }
}

MetricCollection::MetricCollection(std::initializer_list<NamedMetric> metrics) {
  for (const auto& [name, metric] : metrics) add(name, metric);
}

void MetricCollection::add(std::string name, std::shared_ptr<Metric> metric) {
  LINKBOY_CHECK(!name.empty(),
                "the name of a metric is empty; give it a name under which its value is recorded.");
  LINKBOY_CHECK(metric, "the metric \"", name, "\" is null; pass a metric.");
  const bool is_new = std::none_of(metrics_.begin(), metrics_.end(),
                                   [&](const auto& entry) { return entry.first == name; });
  LINKBOY_CHECK(is_new, "there is already a metric \"", name, "\" (the names are: ", names(),
                "); choose another name.");
  metrics_.emplace_back(std::move(name), std::move(metric));
}

std::string MetricCollection::names() const {
  std::string list;
  for (const auto& [name, metric] : metrics_) list += (list.empty() ? "" : ", ") + name;
  return list;
}

Metric& MetricCollection::operator[](std::string_view name) const {
  const auto found = std::find_if(metrics_.begin(), metrics_.end(),
                                  [&](const auto& entry) { return entry.first == name; });
  LINKBOY_CHECK(found != metrics_.end(), "there is no metric \"", name, "\"; there are: ", names(),
                ".");
  return *found->second;
}

void MetricCollection::update(const at::Tensor& outputs, const at::Tensor& targets) {
  for (const auto& entry : metrics_) {
    named(entry.first, [&] { entry.second->update(outputs, targets); });
  }
}

NamedTensors MetricCollection::compute(const ProcessGroup& group) const {
  NamedTensors values;
  for (const auto& entry : metrics_) {
    values.emplace_back(entry.first,
                        named(entry.first, [&] { return entry.second->compute(group); }));
  }
  return values;
}

void MetricCollection::reset() {
  for (const auto& [name, metric] : metrics_) metric->reset();
}

StateDict MetricCollection::state_dict() const {
  StateDict state;
  for (const auto& [name, metric] : metrics_) state.set(name, metric->state_dict());
  return state;
}

MetricCollection::Seen MetricCollection::take() {
  Seen seen;
  for (const auto& [name, metric] : metrics_) seen.push_back(metric->take());
  return seen;
}

void MetricCollection::put_back(Seen seen) {
  for (std::size_t i = 0; i < seen.size(); ++i) metrics_[i].second->seen_ = std::move(seen[i]);
}

StateDict MetricCollection::state_dict(const Seen& seen) const {
  StateDict state;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    state.set(metrics_[i].first, Metric::state_dict(seen[i]));
  }
  return state;
}

void MetricCollection::load_state_dict(const StateDict& state) {
  const StateDict before = state_dict();
  try {
    for (const auto& entry : metrics_) {
      named(entry.first, [&] { entry.second->load_state_dict(state.get_dict(entry.first)); });
    }
  } catch (...) {
    for (const auto& [name, metric] : metrics_) metric->load_state_dict(before.get_dict(name));
    throw;
  }
}

}  // namespace linkboy

// Passes each batch to several metrics, and adds the name of a metric to its errors.

#include "linkboy/metrics/metric_collection.hpp"

#include <algorithm>

#include "linkboy/error.hpp"

namespace linkboy {
namespace {

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
    state.set(metrics_[i].first, metrics_[i].second->state_dict(seen[i]));
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

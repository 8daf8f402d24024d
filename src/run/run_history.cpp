// Keeps the values of each metric in memory, with an index by name.

#include "linkboy/run/run_history.hpp"

#include <algorithm>

#include "linkboy/error.hpp"
#include "linkboy/util/printable.hpp"

namespace linkboy {

int64_t RunHistory::num_metric_values(std::string_view name) const {
  return static_cast<int64_t>(get_metric_values(name).size());
}

const InMemoryRunHistory::Metric* InMemoryRunHistory::find(std::string_view name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : &metrics_[found->second];
}

void InMemoryRunHistory::index() {
  places_.clear();
  for (std::size_t i = 0; i < metrics_.size(); ++i) places_.emplace(metrics_[i].name, i);
}

std::vector<std::string> InMemoryRunHistory::get_metric_names() const {
  std::vector<std::string> names;
  for (const auto& metric : metrics_) names.push_back(metric.name);
  return names;
}

std::vector<double> InMemoryRunHistory::get_metric_values(std::string_view name) const {
  const auto* metric = find(name);
  return metric ? metric->values : std::vector<double>();
}

int64_t InMemoryRunHistory::num_metric_values(std::string_view name) const {
  const auto* metric = find(name);
  return metric ? static_cast<int64_t>(metric->values.size()) : 0;
}

double InMemoryRunHistory::get_latest_metric(std::string_view name) const {
  const auto* metric = find(name);
  if (metric == nullptr) {
    constexpr std::size_t kMaxListed = 50;
    std::string known;
    for (std::size_t i = 0; i < metrics_.size() && i < kMaxListed; ++i) {
      known += (known.empty() ? "" : ", ") + printable(metrics_[i].name, kMaxShownName);
    }
    if (metrics_.size() > kMaxListed) {
      known += c10::str(" and ", metrics_.size() - kMaxListed, " more");
    }
    throw Error(c10::str("no value of the metric ", quote_name(name),
                         " was recorded; recorded metrics: ", known.empty() ? "none" : known, "."));
  }
  return metric->values.back();
}

void InMemoryRunHistory::update_metric(std::string_view name, double value) {
  if (const auto* metric = find(name)) {
    const_cast<Metric*>(metric)->values.push_back(value);
  } else {
    places_.emplace(name, metrics_.size());
    metrics_.push_back({std::string(name), {value}});
  }
}

void InMemoryRunHistory::delete_metric(std::string_view name) {
  LINKBOY_CHECK(find(name) != nullptr, "the metric \"", name,
                "\" cannot be deleted: no value of it was recorded.");
  std::erase_if(metrics_, [name](const Metric& metric) { return metric.name == name; });
  index();
}

void InMemoryRunHistory::shorten_metric(std::string_view name, int64_t num_values) {
  if (num_metric_values(name) <= num_values) return;
  if (num_values == 0) return delete_metric(name);
  metrics_[places_.find(name)->second].values.resize(static_cast<std::size_t>(num_values));
}

void InMemoryRunHistory::reset() {
  metrics_.clear();
  places_.clear();
  current_epoch_ = 1;
}

StateDict InMemoryRunHistory::state_dict() const {
  StateDict metrics;
  for (const auto& metric : metrics_) metrics.set(metric.name, metric.values);
  StateDict state;
  state.set("current_epoch", current_epoch_);
  state.set("prefix", prefix_);
  state.set("metrics", metrics);
  return state;
}

void InMemoryRunHistory::load_state_dict(const StateDict& state) {
  const int64_t epoch = state.get_int("current_epoch");
  std::string prefix = state.get_string("prefix");
  const StateDict saved = state.get_dict("metrics");
  std::vector<Metric> metrics;
  for (const auto& [name, values] : saved.entries()) {
    metrics.push_back({name, saved.get_doubles(name)});
    LINKBOY_CHECK(!metrics.back().values.empty(), "the metric ", quote_name(name),
                  " of the saved run history has no value; each must have one. The state is "
                  "damaged; use another one.");
  }
  current_epoch_ = epoch;
  prefix_ = std::move(prefix);
  metrics_ = std::move(metrics);
  index();
}

}  // namespace linkboy

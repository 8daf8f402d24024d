#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/export.hpp"
#include "linkboy/metrics/metric.hpp"

namespace linkboy {

/// Metrics with names, updated with the same batches.
///
///     linkboy::MetricCollection metrics{{"auroc", std::make_shared<linkboy::AUROC>()},
///                                       {"loss", std::make_shared<linkboy::MeanSquaredError>()}};
///     metrics.update(outputs, targets);
///     for (const auto& [name, value] : metrics.compute()) ...
///
/// Copies share the metrics. Not thread-safe.
class LINKBOY_API MetricCollection {
 public:
  /// A metric and the name of its value.
  using NamedMetric = std::pair<std::string, std::shared_ptr<Metric>>;

  MetricCollection() = default;
  /// @throws Error as `add`.
  MetricCollection(std::initializer_list<NamedMetric> metrics);

  /// @throws Error if the name is empty or there already (the message lists the names), or the
  ///         metric is null.
  void add(std::string name, std::shared_ptr<Metric> metric);

  /// In the order in which they were added.
  const std::vector<NamedMetric>& metrics() const { return metrics_; }
  /// @throws Error if there is no such metric; the message lists the names.
  Metric& operator[](std::string_view name) const;

  /// Adds a batch to each. The first one that refuses it ends the update; those before have it.
  /// @throws Error, with the metric's name, if one refuses it.
  void update(const at::Tensor& outputs, const at::Tensor& targets);

  /// Returns each metric's value, in order.
  /// @param group  As `Metric::compute`.
  /// @throws Error, with the metric's name, if one has no value.
  /// @note Collective over `group`.
  NamedTensors compute(const ProcessGroup& group = current_process_group()) const;

  /// Forgets all batches, of each metric.
  void reset();

  /// The metrics' states by their names.
  StateDict state_dict() const;
  /// @throws Error if a metric's state is absent or does not fit; then nothing is changed.
  void load_state_dict(const StateDict& state);

 private:
  friend class MetricCallback;

  /// What each has seen, in order.
  using Seen = std::vector<Metric::Seen>;
  /// Takes it out of the metrics, without a copy; they start again.
  Seen take();
  void put_back(Seen seen);
  StateDict state_dict(const Seen& seen) const;
  std::string names() const;

  std::vector<NamedMetric> metrics_;
};

}  // namespace linkboy

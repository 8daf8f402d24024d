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

/// Named metrics that are updated with the same batches.
///
///     linkboy::MetricCollection metrics{{"auroc", std::make_shared<linkboy::AUROC>()},
///                                       {"loss", std::make_shared<linkboy::MeanSquaredError>()}};
///     metrics.update(outputs, targets);
///     for (const auto& [name, value] : metrics.compute()) ...
///
/// Copies share the metrics. Not thread-safe.
class LINKBOY_API MetricCollection {
 public:
  /// The name of a value and the metric that computes it.
  using NamedMetric = std::pair<std::string, std::shared_ptr<Metric>>;

  MetricCollection() = default;
  /// @throws Error under the same conditions as `add`.
  MetricCollection(std::initializer_list<NamedMetric> metrics);

  /// Adds a metric.
  /// @throws Error if the name is empty or already in use (the message lists the names), or if the
  ///         metric is null.
  void add(std::string name, std::shared_ptr<Metric> metric);

  /// The metrics, in the order in which they were added.
  const std::vector<NamedMetric>& metrics() const { return metrics_; }
  /// Returns the metric called `name`.
  /// @throws Error that lists the names if there is no such metric.
  Metric& operator[](std::string_view name) const;

  /// Adds a batch to each metric. If a metric rejects the batch, the metrics before it keep the
  /// batch, and those after it do not receive it.
  /// @throws Error with the metric's name if a metric rejects the batch.
  void update(const at::Tensor& outputs, const at::Tensor& targets);

  /// Returns the value of each metric, in order.
  /// @param group  See `Metric::compute`.
  /// @throws Error with the metric's name if a metric cannot compute its value.
  /// @note Collective over `group`.
  [[nodiscard]] NamedTensors compute(const ProcessGroup& group = current_process_group()) const;

  /// Discards all batches of all metrics.
  void reset();

  /// Returns the states of the metrics by name.
  StateDict state_dict() const;
  /// Replaces the states of the metrics.
  /// @throws Error if the state of a metric is missing or does not fit. The metrics are then
  ///         unchanged.
  void load_state_dict(const StateDict& state);

 private:
  friend class MetricCallback;

  /// The accumulated data of each metric, in order.
  using Seen = std::vector<Metric::Seen>;
  /// Returns the accumulated data without a copy, and resets the metrics.
  Seen take();
  void put_back(Seen seen);
  StateDict state_dict(const Seen& seen) const;
  std::string names() const;

  std::vector<NamedMetric> metrics_;
};

}  // namespace linkboy

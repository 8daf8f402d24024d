#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/distributed/process_group.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/make.hpp"  // IWYU pragma: export

namespace linkboy {

/// Measures how well predictions fit their targets, over any number of batches and processes.
///
///     linkboy::Accuracy accuracy({.num_classes = 10});
///     accuracy.update(outputs, targets);      // batch by batch
///     double value = accuracy.compute().item<double>();
///
/// A metric keeps a few tensors, its states, on the device of the batches. `update` never waits for
/// a CUDA device. If a value on a CUDA device is invalid, such as a label out of range, `compute`
/// throws. On the CPU, `update` throws immediately. A batch that `update` rejects does not change
/// the metric.
///
/// With several processes, `compute` combines the states, not the values. The result is therefore
/// the same as if one process had seen all batches, however they were split. Not thread-safe.
class LINKBOY_API Metric {
 public:
  Metric() = default;
  virtual ~Metric() = default;
  // A copy would share the states, which are changed in place.
  Metric(const Metric&) = delete;
  Metric& operator=(const Metric&) = delete;

  /// Adds a batch, whose samples lie along dimension 0. Each metric documents the shapes.
  /// @throws Error if shapes, dtypes or values are invalid.
  virtual void update(const at::Tensor& outputs, const at::Tensor& targets) = 0;

  /// Returns the value over all batches so far, in double precision on the CPU. Each metric
  /// documents the shape, such as a scalar or one value per class. The value is the same on all
  /// ranks. It is NaN if there is nothing to measure, unless the metric documents another value.
  /// Does not change the metric. Waits for a CUDA device.
  ///
  /// @param group  The processes whose batches count. Defaults to all processes of the Trainer run
  ///        in progress; outside of a run, to this process only.
  /// @throws Error on all ranks if a batch on a CUDA device had a value out of range.
  /// @note Collective over `group`.
  [[nodiscard]] at::Tensor compute(const ProcessGroup& group = current_process_group()) const;

  /// Resets the states, which discards all batches.
  void reset() { take(); }

  /// Returns a copy of the states.
  StateDict state_dict() const { return state_dict(seen_); }
  /// Replaces the states.
  /// @throws Error if `state` does not fit this kind of metric. The metric is then unchanged.
  void load_state_dict(const StateDict& state);

 protected:
  /// How the tensors of several processes are combined.
  enum class Merge { sum, min, max, concatenate };

  /// Adds a state. Call it in the constructor.
  /// @param initial  Value before the first batch. With Merge::concatenate, its shape is [0, ...]
  ///        ([0] for scalar rows), rows are appended to it, and processes may have different
  ///        numbers of rows.
  /// @return The number of the state, for `state` and `append`.
  std::size_t add_state(std::string name, at::Tensor initial, Merge merge);

  /// Returns a state on the device of the batches, for changes in place. A state with
  /// Merge::concatenate stays on its device, and this does not include rows from `append`.
  at::Tensor& state(std::size_t number) { return seen_[number].value; }

  /// Appends a copy of the rows to a state with Merge::concatenate, in the dtype of its initial
  /// value.
  void append(std::size_t number, at::Tensor rows);

  /// Adds a rule for the values of a batch, such as "labels must lie in [0, 9].". Call it in the
  /// constructor.
  /// @return The number of the rule, for `count_violations` and `check_values`.
  std::size_t add_rule(std::string text);

  /// Counts the values that violate a rule, so that `compute` throws. Use it for batches that are
  /// not on the CPU, so that `update` does not wait for the device. Call `follow` first.
  /// @param is_violation  Bool, any shape, on the device of the batch.
  void count_violations(std::size_t rule, const at::Tensor& is_violation);

  /// Checks the values of a batch against a rule. On the CPU it throws immediately; on any other
  /// device it calls `count_violations`.
  /// @param is_violation  Bool, with the shape of `values`.
  /// @throws Error on the CPU, with the rule and the first value that violates it.
  void check_values(std::size_t rule, const at::Tensor& values, const at::Tensor& is_violation);

  /// Moves the states to the device of a batch. Call it in `update` before using a state.
  void follow(const at::Tensor& batch);

  /// Computes the value from the combined states. Called on every process with the same tensors.
  /// `compute` converts the result to double.
  /// @param states  Copies on the CPU, in the order in which the states were added.
  virtual at::Tensor value_of(const std::vector<at::Tensor>& states) const = 0;

 private:
  friend class MetricCollection;

  struct State {
    std::string name;
    at::Tensor initial;
    Merge merge;
    at::Tensor value;
    std::vector<at::Tensor> rows;  // with Merge::concatenate, rows appended to `value`
  };
  /// The accumulated data. If there are rules, the last state contains the number of violations of
  /// each.
  using Seen = std::vector<State>;

  static State without_batches(std::string name, at::Tensor initial, Merge merge);
  static at::Tensor whole(const State& state);
  static at::Tensor merged(const State& state, const ProcessGroup& group);
  static at::Tensor loaded(const State& state, const StateDict& states);
  static StateDict state_dict(const Seen& seen);
  void check_rules(const at::Tensor& violations) const;
  /// Returns the accumulated data without a copy, and resets the metric.
  Seen take();

  Seen seen_;
  std::vector<std::string> rules_;
};

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

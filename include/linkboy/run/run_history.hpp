#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// The metrics of a run, epoch by epoch. Derive from this class to store them elsewhere.
///
/// Reading never changes the history. Only the thread that runs the Trainer uses it.
class LINKBOY_API RunHistory {
 public:
  virtual ~RunHistory() = default;

  /// Names of the metrics with at least one value, in the order in which they were first recorded.
  virtual std::vector<std::string> get_metric_names() const = 0;

  /// All values of a metric, oldest first; empty if the metric does not exist.
  virtual std::vector<double> get_metric_values(std::string_view name) const = 0;

  /// Number of values of a metric. Called at each epoch and evaluation; override it if copying all
  /// values is slow.
  virtual int64_t num_metric_values(std::string_view name) const;

  /// Returns the newest value of a metric.
  /// @throws Error if the metric has no value; the message lists the metrics that have one.
  virtual double get_latest_metric(std::string_view name) const = 0;

  /// Appends a value.
  virtual void update_metric(std::string_view name, double value) = 0;

  /// Removes a metric and its values.
  /// @throws Error if there is no such metric.
  virtual void delete_metric(std::string_view name) = 0;

  /// Sets the prefix of the names that Trainer records and that `Trainer::metric_name` returns.
  virtual void set_metric_name_prefix(std::string prefix) = 0;
  /// The prefix of the names; empty by default.
  virtual const std::string& metric_name_prefix() const = 0;

  /// The current epoch, counted from 1.
  virtual int64_t current_epoch() const = 0;
  /// Sets the current epoch, for a resumed run and for `increment_epoch`.
  virtual void set_epoch(int64_t epoch) = 0;
  /// Proceeds to the next epoch.
  void increment_epoch() { set_epoch(current_epoch() + 1); }

  /// Removes all metrics and sets the epoch to 1. Keeps the prefix.
  virtual void reset() = 0;

  /// Returns the metrics, the epoch and the prefix.
  [[nodiscard]] virtual StateDict state_dict() const = 0;
  /// Restores the metrics, the epoch and the prefix.
  /// @throws Error if `state` is not a state that `state_dict` returned.
  virtual void load_state_dict(const StateDict& state) = 0;

  /// Keeps the first `num_values` values of a metric; 0 removes the metric. Has no effect if it
  /// does not have more values. Called after an evaluation was interrupted.
  virtual void shorten_metric(std::string_view name, int64_t num_values) = 0;
};

/// A run history in memory.
class LINKBOY_API InMemoryRunHistory final : public RunHistory {
 public:
  std::vector<std::string> get_metric_names() const override;
  std::vector<double> get_metric_values(std::string_view name) const override;
  int64_t num_metric_values(std::string_view name) const override;
  double get_latest_metric(std::string_view name) const override;
  void update_metric(std::string_view name, double value) override;
  void delete_metric(std::string_view name) override;
  void set_metric_name_prefix(std::string prefix) override { prefix_ = std::move(prefix); }
  const std::string& metric_name_prefix() const override { return prefix_; }
  int64_t current_epoch() const override { return current_epoch_; }
  void set_epoch(int64_t epoch) override { current_epoch_ = epoch; }
  void reset() override;
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;
  void shorten_metric(std::string_view name, int64_t num_values) override;

 private:
  struct Metric {
    std::string name;
    std::vector<double> values;
  };

  const Metric* find(std::string_view name) const;

  void index();

  std::vector<Metric> metrics_;
  std::map<std::string, std::size_t, std::less<>> places_;  // index of each name in metrics_
  std::string prefix_;
  int64_t current_epoch_ = 1;
};

}  // namespace linkboy

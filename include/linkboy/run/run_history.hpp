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

/// The metrics of a run, epoch by epoch. Implement it to keep them elsewhere.
///
/// Reading never changes it. Used by the thread that runs the Trainer.
class LINKBOY_API RunHistory {
 public:
  virtual ~RunHistory() = default;

  /// Names with at least one value, in the order of their first value.
  virtual std::vector<std::string> get_metric_names() const = 0;

  /// All values of a metric, oldest first; empty if there is none.
  virtual std::vector<double> get_metric_values(std::string_view name) const = 0;

  /// How many these are. Asked for at each epoch and evaluation: override it where values are many.
  virtual int64_t num_metric_values(std::string_view name) const;

  /// @throws Error if the metric has no value; the message lists the names that have.
  virtual double get_latest_metric(std::string_view name) const = 0;

  /// Appends a value.
  virtual void update_metric(std::string_view name, double value) = 0;

  /// @throws Error if there is no such metric.
  virtual void delete_metric(std::string_view name) = 0;

  /// Put before the names of what Trainer records, and by `Trainer::metric_name`.
  virtual void set_metric_name_prefix(std::string prefix) = 0;
  /// Empty unless it was set.
  virtual const std::string& metric_name_prefix() const = 0;

  /// The epoch in progress, counted from 1.
  virtual int64_t current_epoch() const = 0;
  /// For a run that is resumed, and for `increment_epoch`.
  virtual void set_epoch(int64_t epoch) = 0;
  /// The next epoch begins.
  void increment_epoch() { set_epoch(current_epoch() + 1); }

  /// Forgets the metrics and starts at epoch 1 again. The prefix stays.
  virtual void reset() = 0;

  /// The metrics and the epoch.
  virtual StateDict state_dict() const = 0;
  /// @throws Error if `state` is not what `state_dict` gave.
  virtual void load_state_dict(const StateDict& state) = 0;
};

/// A history that lives in memory.
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

 private:
  struct Metric {
    std::string name;
    std::vector<double> values;
  };

  const Metric* find(std::string_view name) const;

  void index();

  std::vector<Metric> metrics_;
  std::map<std::string, std::size_t, std::less<>> places_;  // of the names
  std::string prefix_;
  int64_t current_epoch_ = 1;
};

}  // namespace linkboy

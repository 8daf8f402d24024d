#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace linkboy {

class RunHistory;

/// Reads the values of one metric as the epochs bring them.
class MetricReader {
 public:
  explicit MetricReader(std::string name) : name_(std::move(name)) {}

  const std::string& name() const { return name_; }

  /// Passes over what the history has already.
  void skip(const RunHistory& history);

  /// The newest value, or nothing if there is none since the last call: the epoch was not
  /// evaluated.
  ///
  /// @param has_eval_data  Whether the run evaluates: then the metric may still come.
  /// @throws Error if there never was such a metric and none is to be waited for; the message lists
  ///         the metrics.
  std::optional<double> next(const RunHistory& history, bool has_eval_data);

  /// Values read so far; part of the state of who reads.
  int64_t num_read() const { return num_read_; }
  void set_num_read(int64_t num_read) { num_read_ = num_read; }

 private:
  std::string name_;
  int64_t num_read_ = 0;
};

}  // namespace linkboy

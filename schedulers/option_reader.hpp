#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "linkboy/error.hpp"
#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

struct RunConfig;

/// A scheduler option with one value for all param groups, or one value per group.
class LINKBOY_API PerGroup {
 public:
  /// Creates an option with the same value for all groups.
  PerGroup(double value) : values_{value}, is_shared_(true) {}  // NOLINT: a number is a value
  /// Creates an option with one value per group, in the optimizer's order.
  PerGroup(std::vector<double> values) : values_(std::move(values)) {}  // NOLINT

  /// Parses a single value, or comma-separated values, one per group.
  /// @throws OptionError under the same conditions as `from_text`.
  static PerGroup parse(const std::string& text) {
    auto values = from_text<std::vector<double>>(text);
    return values.size() == 1 ? PerGroup(values[0]) : PerGroup(std::move(values));
  }
  /// Returns a text that `parse` accepts.
  std::string to_string() const { return to_text(values_); }

  /// Checks the number of values.
  /// @param name  Name of the option in the error.
  /// @throws OptionError unless there is a single value or one value per group.
  void check(std::size_t num_groups, const char* name) const {
    LINKBOY_CHECK_OPTION(is_shared_ || values_.size() == num_groups, name, " has ", values_.size(),
                         " values, but the optimizer has ", num_groups,
                         " param groups; give one value for each, or a single one for all.");
  }

  /// Returns the value of a group.
  /// @throws OptionError if the group was added later and does not have a value.
  double at(std::size_t group, const char* name) const {
    if (is_shared_) return values_[0];
    LINKBOY_CHECK_OPTION(group < values_.size(), name, " has ", values_.size(),
                         " values, but a param group was added; give a single value for all.");
    return values_[group];
  }

 private:
  std::vector<double> values_;
  bool is_shared_ = false;
};

/// Resolves and checks the options of a schedule. An error message contains the schedule, the
/// option, its value and the accepted values.
class LINKBOY_API OptionReader {
 public:
  /// @param schedule  Name of the schedule in errors, such as "step schedule".
  /// @param config  Must outlive the reader.
  OptionReader(std::string schedule, const RunConfig& config)
      : schedule_(std::move(schedule)), config_(&config) {}

  /// Returns a whole number of updates.
  /// @throws OptionError if it is less than `minimum`; Error if it is not a whole number or a
  ///         placeholder has no value.
  int64_t count(const char* name, const RunExpression& value, int64_t minimum = 1) const;

  /// Returns a number of updates that does not have to be a whole number.
  /// @throws OptionError if it is less than `minimum`; Error if a placeholder has no value.
  double length(const char* name, const RunExpression& value, double minimum = 0.0) const;

  /// Returns whole numbers of updates.
  /// @throws OptionError if `values` is empty, if a number is less than 1, or if the numbers do not
  ///         increase; Error if a number is not whole or a placeholder has no value.
  std::vector<int64_t> milestones(const std::vector<RunExpression>& values) const;

  /// @throws OptionError if `value` is not positive and finite.
  void positive(const char* name, double value) const;
  /// @throws OptionError if `value` is negative or not finite.
  void not_negative(const char* name, double value) const;
  /// @throws OptionError if `value` is not in [minimum, maximum].
  void in_range(const char* name, double value, double minimum, double maximum) const;
  /// @throws OptionError if a value is negative or not finite, or if there is neither a single
  ///         value nor one value per group.
  void not_negative(const char* name, const PerGroup& values, std::size_t num_groups) const;

  /// @throws OptionError if the run is known to have fewer than `updates` updates.
  void fits_run(const char* name, double updates) const;

 private:
  std::string schedule_;
  const RunConfig* config_;
};

}  // namespace linkboy

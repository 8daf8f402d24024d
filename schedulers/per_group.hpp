#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "linkboy/error.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

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

}  // namespace linkboy

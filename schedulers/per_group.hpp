#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "linkboy/error.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// An option of a scheduler: one value for all param groups, or one for each.
class LINKBOY_API PerGroup {
 public:
  /// The same for all.
  PerGroup(double value) : values_{value}, is_shared_(true) {}  // NOLINT: a number is a value
  /// One for each, in the optimizer's order.
  PerGroup(std::vector<double> values) : values_(std::move(values)) {}  // NOLINT

  /// Reads one value, or one for each group with commas between.
  /// @throws Error as `from_text`.
  static PerGroup parse(const std::string& text) {
    auto values = from_text<std::vector<double>>(text);
    return values.size() == 1 ? PerGroup(values[0]) : PerGroup(std::move(values));
  }
  /// What `parse` reads.
  std::string to_string() const { return to_text(values_); }

  /// @param name  Of the option, for the error.
  /// @throws Error unless there is a single value or one for each group.
  void check(std::size_t num_groups, const char* name) const {
    LINKBOY_CHECK(is_shared_ || values_.size() == num_groups, name, " has ", values_.size(),
                  " values, but the optimizer has ", num_groups,
                  " param groups; give one value for each, or a single one for all.");
  }

  /// @throws Error if there is no value for a group that was added later.
  double at(std::size_t group, const char* name) const {
    if (is_shared_) return values_[0];
    LINKBOY_CHECK(group < values_.size(), name, " has ", values_.size(),
                  " values, but a param group was added; give a single value for all.");
    return values_[group];
  }

 private:
  std::vector<double> values_;
  bool is_shared_ = false;
};

}  // namespace linkboy

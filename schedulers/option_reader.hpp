#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/scheduler.hpp"
#include "linkboy/schedulers/per_group.hpp"

namespace linkboy {

struct RunConfig;

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

  /// Name of the schedule in errors.
  const std::string& schedule() const { return schedule_; }
  /// The configuration of the run.
  const RunConfig& config() const { return *config_; }

 private:
  std::string schedule_;
  const RunConfig* config_;
};

/// Returns the fields that a schedule sets in addition to `field`: the momentum if `cycle_momentum`
/// is true, otherwise none.
/// @param schedule  Name of the schedule in errors, such as "cyclic schedule".
/// @throws OptionError if `cycle_momentum` is true and `field` is the momentum.
LINKBOY_API std::vector<ParamGroupField> momentum_beside(ParamGroupField field, bool cycle_momentum,
                                                         std::string_view schedule);

}  // namespace linkboy

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

/// Resolves and checks the options of a schedule. Errors name the schedule and the option, show the
/// value and say what is allowed.
class LINKBOY_API OptionReader {
 public:
  /// @param schedule  As errors call it: "step schedule".
  OptionReader(std::string schedule, const RunConfig& config)
      : schedule_(std::move(schedule)), config_(&config) {}

  /// A whole number of updates.
  /// @throws Error if it is less than `minimum` or not whole, or a placeholder has no value.
  int64_t count(const char* name, const RunExpression& value, int64_t minimum = 1) const;

  /// A number of updates that need not be whole.
  double length(const char* name, const RunExpression& value, double minimum = 0.0) const;

  /// Whole numbers of updates, at least one of them, each greater than the one before.
  std::vector<int64_t> milestones(const std::vector<RunExpression>& values) const;

  /// @throws Error if `value` is not so. NaN never is.
  void positive(const char* name, double value) const;
  /// @throws Error if `value` is negative or NaN.
  void not_negative(const char* name, double value) const;
  /// @throws Error if `value` is not in [minimum, maximum].
  void in_range(const char* name, double value, double minimum, double maximum) const;
  /// @throws Error if a value is negative, or there is not one for each group.
  void not_negative(const char* name, const PerGroup& values, std::size_t num_groups) const;

  /// @throws Error if the run is known to have fewer than `updates` updates.
  void fits_run(const char* name, double updates) const;

  /// The schedule's name in messages.
  const std::string& schedule() const { return schedule_; }
  /// The configuration of the run that starts.
  const RunConfig& config() const { return *config_; }

 private:
  std::string schedule_;
  const RunConfig* config_;
};

/// The fields that a schedule of `field` moves with it.
/// @param schedule  As errors call it: "cyclic schedule".
/// @throws Error if it cycles the momentum, and `field` is that.
LINKBOY_API std::vector<ParamGroupField> momentum_beside(ParamGroupField field, bool cycle_momentum,
                                                         std::string_view schedule);

}  // namespace linkboy

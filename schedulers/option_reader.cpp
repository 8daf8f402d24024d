// Resolves and checks the options of schedules, so that all of them have the same errors.

#include "linkboy/schedulers/option_reader.hpp"

#include <cmath>

#include "linkboy/error.hpp"
#include "linkboy/run/run_config.hpp"

namespace linkboy {

int64_t OptionReader::count(const char* name, const RunExpression& value, int64_t minimum) const {
  const int64_t result = value.resolve_count(*config_);
  LINKBOY_CHECK_OPTION(result >= minimum, "the ", schedule_, "'s ", name, " (", value.to_string(),
                       ") is ", result, "; it must be at least ", minimum, ".");
  return result;
}

double OptionReader::length(const char* name, const RunExpression& value, double minimum) const {
  const double result = value.resolve(*config_);
  LINKBOY_CHECK_OPTION(result >= minimum, "the ", schedule_, "'s ", name, " (", value.to_string(),
                       ") is ", result, "; it must be at least ", minimum, ".");
  return result;
}

std::vector<int64_t> OptionReader::milestones(const std::vector<RunExpression>& values) const {
  LINKBOY_CHECK_OPTION(!values.empty(), "the ", schedule_, " has no milestones; set at least one.");
  std::vector<int64_t> milestones;
  for (const RunExpression& value : values) {
    const int64_t milestone = count("milestone", value);
    LINKBOY_CHECK_OPTION(milestones.empty() || milestone > milestones.back(), "the ", schedule_,
                         "'s milestones are ", c10::Join(", ", milestones), " and then ", milestone,
                         "; they must increase.");
    milestones.push_back(milestone);
  }
  return milestones;
}

void OptionReader::positive(const char* name, double value) const {
  LINKBOY_CHECK_OPTION(std::isfinite(value) && value > 0.0, "the ", schedule_, "'s ", name, " is ",
                       value, "; it must be positive and finite.");
}

void OptionReader::not_negative(const char* name, double value) const {
  LINKBOY_CHECK_OPTION(std::isfinite(value) && value >= 0.0, "the ", schedule_, "'s ", name, " is ",
                       value, "; it must be finite and not negative.");
}

void OptionReader::in_range(const char* name, double value, double minimum, double maximum) const {
  LINKBOY_CHECK_OPTION(value >= minimum && value <= maximum, "the ", schedule_, "'s ", name, " is ",
                       value, "; it must be from ", minimum, " to ", maximum, ".");
}

void OptionReader::not_negative(const char* name, const PerGroup& values,
                                std::size_t num_groups) const {
  values.check(num_groups, name);
  for (std::size_t group = 0; group < num_groups; ++group) {
    not_negative(name, values.at(group, name));
  }
}

void OptionReader::fits_run(const char* name, double updates) const {
  const auto run = static_cast<double>(config_->max_num_updates);
  LINKBOY_CHECK_OPTION(run == 0.0 || updates <= run, "the ", schedule_, "'s ", name, " is ",
                       updates, " updates, but the run has only ", run, ". Make it shorter.");
}

}  // namespace linkboy

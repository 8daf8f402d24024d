#pragma once

#include <memory>
#include <string>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/metric.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// Creates the metric called `name`, for command lines and config files:
/// `make_metric("accuracy", {{"num_classes", "10"}})`. The keys are the member names of the
/// metric's options struct.
/// @throws OptionError if there is no such metric or option (the message lists the names), if a
///         value cannot be parsed, or if a required option is missing; any error of the metric's
///         constructor.
[[nodiscard]] LINKBOY_API std::shared_ptr<Metric> make_metric(const std::string& name,
                                                              const TextSettings& settings = {});

/// Returns the names that `make_metric` accepts, such as "accuracy" and "auroc". MeanMetric and
/// FunctionMetric are not included, because MeanMetric has no targets and FunctionMetric needs a
/// function.
LINKBOY_API std::vector<std::string> metric_names();

/// Returns the options of the metric, with their defaults. A required option has the value 0.
/// @throws OptionError if there is no such metric.
LINKBOY_API TextSettings metric_options(const std::string& name);

}  // namespace linkboy

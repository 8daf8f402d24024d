#pragma once

#include <memory>
#include <string>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/metrics/metric.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// Makes the metric called `name`, for command lines and config files:
/// `make_metric("accuracy", {{"num_classes", "10"}})`. The keys are the names of the members of its
/// options struct.
/// @throws OptionError if there is no such metric or option (the message lists the names), if a
///         value cannot be parsed, or if a required option is missing; any error of the metric's
///         constructor.
LINKBOY_API std::shared_ptr<Metric> make_metric(const std::string& name,
                                                const TextSettings& settings = {});

/// Returns the names, such as accuracy and auroc. MeanMetric does not take targets and
/// FunctionMetric needs a function, so they cannot be made by name.
LINKBOY_API std::vector<std::string> metric_names();

/// Returns the options of the metric, with their defaults. A required option has the value 0.
/// @throws OptionError if there is no such metric.
LINKBOY_API TextSettings metric_options(const std::string& name);

}  // namespace linkboy

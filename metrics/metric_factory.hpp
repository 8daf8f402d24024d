#pragma once

#include <memory>
#include <string>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/metrics/metric.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// Makes a metric by its name, for command lines and config files: `make_metric("accuracy",
/// {{"num_classes", "10"}})`. Keys are the names of the members of its options.
/// @throws OptionError if there is no such metric or option, a value cannot be read, or a required
///         option is missing; the message lists what there is. Error as the metric's constructor.
LINKBOY_API std::shared_ptr<Metric> make_metric(const std::string& name,
                                                const TextSettings& settings = {});

/// accuracy, auroc, ... : all but MeanMetric and FunctionMetric, which take no targets or a
/// function.
LINKBOY_API std::vector<std::string> metric_names();

/// The options that the metric takes, with their defaults; a required one has 0.
/// @throws OptionError if there is no such metric.
LINKBOY_API TextSettings metric_options(const std::string& name);

}  // namespace linkboy

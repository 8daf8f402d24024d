#pragma once

#include <memory>
#include <string>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/metric.hpp"
#include "linkboy/util/make.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// The metrics that can be created by name, for command lines and config files: "accuracy", "auroc"
/// and so on. A required option has the value 0. MeanMetric and FunctionMetric are not included,
/// because MeanMetric has no targets and FunctionMetric needs a function.
LINKBOY_API const NamedFactory<std::shared_ptr<Metric>>& metric_factory();

/// Creates the metric called `name`: `make_metric("accuracy", {{"num_classes", "10"}})`. The keys
/// are the member names of the metric's options struct.
/// @throws OptionError if there is no such metric or option (the message lists the names), if a
///         value cannot be parsed, or if a required option is missing; any error of the metric's
///         constructor.
[[nodiscard]] inline std::shared_ptr<Metric> make_metric(const std::string& name,
                                                         const TextSettings& settings = {}) {
  return metric_factory().make(name, settings);
}

/// Returns the names that `make_metric` accepts.
inline std::vector<std::string> metric_names() { return metric_factory().names(); }

/// Returns the options of the metric, with their defaults. A required option has the value 0.
/// @throws OptionError if there is no such metric.
inline TextSettings metric_options(const std::string& name) {
  return metric_factory().options(name);
}

}  // namespace linkboy

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/make.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// The callbacks that can be created by name, for command lines and config files: "early-stopping",
/// "model-ema" and so on. Callbacks that need objects are not included (FreezeLayers,
/// LambdaCallback, MetricCallback, TrackRun).
LINKBOY_API const NamedFactory<std::shared_ptr<Callback>>& callback_factory();

/// Creates the callback called `name`. The keys are the names in LINKBOY_FIELDS of the callback's
/// options; `fast-dev-run` has `num_batches`. Options without a setting keep their defaults. The
/// items of a list of enumeration values are separated by '+': `fields=lr+momentum`.
///
/// @throws OptionError if there is no such callback or option (the message lists the names), if a
///         value cannot be parsed, or if a required option is missing; any error of the callback's
///         constructor.
[[nodiscard]] inline std::shared_ptr<Callback> make_callback(const std::string& name,
                                                             const TextSettings& settings = {}) {
  return callback_factory().make(name, settings);
}

/// Returns the names that `make_callback` accepts.
inline std::vector<std::string> callback_names() { return callback_factory().names(); }

/// Returns the options of the callback called `name`, with their defaults.
/// @throws OptionError that lists the names if there is no such callback.
inline TextSettings callback_options(const std::string& name) {
  return callback_factory().options(name);
}

}  // namespace linkboy

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// Creates the callback called `name`, for command lines and config files. The keys are the names
/// in LINKBOY_FIELDS of the callback's options; `time-limit` has `minutes` and `fast-dev-run` has
/// `num_batches`. Options without a setting keep their defaults. The items of a list of enumeration
/// values are separated by '+': `fields=lr+momentum`.
///
/// @throws OptionError if there is no such callback or option (the message lists the names), if a
///         value cannot be parsed, or if a required option is missing; any error of the callback's
///         constructor.
[[nodiscard]] LINKBOY_API std::shared_ptr<Callback> make_callback(
    const std::string& name, const TextSettings& settings = {});

/// Returns the names of all callbacks that `make_callback` can create: "early-stopping",
/// "model-ema" and so on. Callbacks that need objects are not included (FreezeLayers,
/// LambdaCallback, MetricCallback, TrackRun).
LINKBOY_API std::vector<std::string> callback_names();

/// Returns the options of the callback called `name`, with their defaults.
/// @throws OptionError that lists the names if there is no such callback.
LINKBOY_API TextSettings callback_options(const std::string& name);

}  // namespace linkboy

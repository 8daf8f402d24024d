#pragma once

#include <memory>
#include <string>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// Makes a callback by its name, for command lines and config files. Keys are the names in
/// its options' LINKBOY_FIELDS (the timer has `minutes`); what is not given has the default. Lists
/// have '+' between their items: `fields=lr+momentum`.
///
/// @throws Error if there is no such callback or option, or a value cannot be read; the message
///         lists what there is. What is out of its range is thrown as the callback's constructor
///         does.
LINKBOY_API std::shared_ptr<Callback> make_callback(const std::string& name,
                                                    const TextSettings& settings = {});

/// early-stopping, model-ema, ... : all but those that are made from objects (FreezeLayers,
/// LambdaCallback, MetricCallback, TrackRun).
LINKBOY_API std::vector<std::string> callback_names();

/// The options that the callback takes, with their defaults.
/// @throws Error if there is no such callback.
LINKBOY_API TextSettings callback_options(const std::string& name);

}  // namespace linkboy

#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "linkboy/tracking/tracker.hpp"

namespace linkboy {

using Json = nlohmann::ordered_json;

/// Returns a number, or "NaN", "Infinity" or "-Infinity" for values that JSON does not support.
Json json_number(double value);
/// Returns the number from which `json_number` created `json`.
/// @throws nlohmann::json::exception if `json` is neither a number nor a string.
double number_of(const Json& json);

/// Returns an integer.
/// @throws nlohmann::json::exception if `json` is not an integer, because the cast of another
///         number could be undefined.
int64_t integer_of(const Json& json);

Json json_object(const TrackedRun::Entries& entries);
/// @throws nlohmann::json::exception if `json` is not an object of strings.
TrackedRun::Entries entries_of(const Json& json);

/// Returns one line without the line break. Bytes that are not UTF-8 become U+FFFD.
std::string json_line(const Json& json);

}  // namespace linkboy

#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "linkboy/tracking/tracker.hpp"

namespace linkboy {

using Json = nlohmann::ordered_json;

/// A number; "NaN", "Infinity" or "-Infinity" for numbers that JSON cannot hold.
Json json_number(double value);
/// What `json_number` made. @throws nlohmann::json::exception if it is no number.
double number_of(const Json& json);

/// A whole number. @throws nlohmann::json::exception if it is something else: a cast of any other
/// number may be undefined.
int64_t integer_of(const Json& json);

Json json_object(const TrackedRun::Entries& entries);
/// @throws nlohmann::json::exception if it is not an object of strings.
TrackedRun::Entries entries_of(const Json& json);

/// One line, without its end; bytes that are not UTF-8 become U+FFFD.
std::string json_line(const Json& json);

}  // namespace linkboy

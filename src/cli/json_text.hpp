// Conversions between JSON and the texts of options, for config files and recorded configurations.

#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace linkboy::cli {

/// Returns the value as text for `from_text`: a string unchanged, null as "none", an array with
/// commas between its items, and everything else as JSON.
std::string text_of_json(const nlohmann::ordered_json& value);

/// Parses a JSON text.
/// @throws OptionError if an object has a key twice; nlohmann::json::exception if `text` is not
///         JSON.
nlohmann::ordered_json parse_json(const std::string& text);

/// Returns a number or a boolean if its JSON is exactly `text`, and otherwise a string. "0.10"
/// stays a string, because as a number it would become "0.1".
nlohmann::ordered_json json_of_text(const std::string& text);

}  // namespace linkboy::cli

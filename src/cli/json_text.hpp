#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace linkboy::cli {

/// Returns what `from_text` reads: a string as it is, null as "none", an array with commas between
/// its items, everything else as JSON.
std::string text_of_json(const nlohmann::ordered_json& value);

/// Returns the number, true or false that `text` is exactly, else a string; "0.10" stays a string,
/// for it would come back as "0.1".
nlohmann::ordered_json json_of_text(const std::string& text);

}  // namespace linkboy::cli

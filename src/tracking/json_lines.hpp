// The format of records that JsonLinesTracker and HtmlReport share.

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "line_file.hpp"
#include "linkboy/tracking/tracker.hpp"

namespace linkboy {

/// Returns the lines that JsonLinesTracker documents, each with its line break. Bytes that are not
/// UTF-8 become U+FFFD.
/// @{
std::string run_line(const TrackedRun& run);
std::string scalars_line(std::span<const TrackedScalar> scalars, const TrackedTime& time);
std::string text_line(std::string_view name, std::string_view text, const TrackedTime& time);
std::string histogram_line(std::string_view name, const at::Tensor& values,
                           const TrackedTime& time);
std::string end_line(std::string_view outcome, std::span<const TrackedScalar> last);
/// @}

/// Returns the update, the epoch and the kind of a line, without `begin`.
/// @throws nlohmann::json::exception if none of these functions created the line.
OldRecord old_record(const nlohmann::json& line);

}  // namespace linkboy

#pragma once

#include <string>
#include <string_view>

#include "html_records.hpp"

namespace linkboy {

/// Returns the complete report. `title` is used if the run does not have a name.
std::string html_page(const HtmlRecords& records, std::string_view title);

/// Returns the records that a page contains as JSON.
/// @throws nlohmann::json::exception if `html_page` did not create `page`.
HtmlRecords records_of_page(std::string_view page);

}  // namespace linkboy

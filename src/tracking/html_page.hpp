#pragma once

#include <string>
#include <string_view>

#include "html_records.hpp"

namespace linkboy {

/// The whole report. `title` is used if the run has no name.
std::string html_page(const HtmlRecords& records, std::string_view title);

/// The JSON of the records within a page.
/// @throws nlohmann::json::exception if `page` is not what `html_page` made.
HtmlRecords records_of_page(std::string_view page);

}  // namespace linkboy

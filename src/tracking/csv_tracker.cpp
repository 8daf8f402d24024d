// Rows of time, epoch, update, name and value. One write appends the rows of one call.

#include "linkboy/tracking/csv_tracker.hpp"

#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "line_file.hpp"
#include "util/parse_number.hpp"

namespace linkboy {
namespace {

std::string csv_text(std::string text) {
  // Spreadsheets would read such a name as a formula, and a name can come from an untrusted
  // training state.
  if (!text.empty() && std::string_view("=+-@\t\r").find(text[0]) != text.npos)
    text.insert(text.begin(), '\'');
  if (text.find_first_of(",\"\r\n") == text.npos) return text;
  c10::ReplaceAll(text, "\"", "\"\"");
  return '"' + text + '"';
}

std::string csv_number(double value) {
  return std::isnan(value) ? "nan" : fmt::format("{}", value);  // {fmt} would write "-nan"
}

/// Returns the size of the first row including the end of the line, or 0 if the row is incomplete.
std::size_t first_row_size(std::string_view text) {
  bool is_quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') is_quoted = !is_quoted;
    if (text[i] == '\n' && !is_quoted) return i + 1;
  }
  return 0;
}

std::optional<OldRecord> parse_row(std::string_view row) {
  std::array<std::string_view, 3> fields;  // time, epoch and update
  for (std::string_view& field : fields) {
    field = row.substr(0, row.find(','));
    row.remove_prefix(std::min(field.size() + 1, row.size()));
  }
  const auto epoch = parse_number<int64_t>(fields[1]);
  const auto update = parse_number<int64_t>(fields[2]);
  if (!epoch || !update) return std::nullopt;
  return OldRecord{.update = *update, .epoch = *epoch};
}

constexpr LineFormat kCsvFormat{.header = "time,epoch,update,name,value\n",
                                .record_size = first_row_size,
                                .parse = parse_row,
                                .description = "a table that CsvTracker wrote"};

}  // namespace

CsvTracker::CsvTracker(std::filesystem::path path, CsvTrackerOptions options)
    : options_(options), file_(std::make_unique<LineFile>(std::move(path))) {}

CsvTracker::~CsvTracker() = default;

void CsvTracker::start(const TrackedRun& run) {
  file_->start(run, options_.append, kCsvFormat, "");
}

void CsvTracker::log_scalars(std::span<const TrackedScalar> scalars, const TrackedTime& time) {
  std::string rows;
  for (const TrackedScalar& scalar : scalars) {
    fmt::format_to(std::back_inserter(rows), "{},{},{},{},{}\n", csv_number(time.seconds),
                   time.epoch, time.update, csv_text(scalar.name), csv_number(scalar.value));
  }
  file_->append(rows);
}

void CsvTracker::finish(std::string_view, std::span<const TrackedScalar>) { file_->close(); }

}  // namespace linkboy

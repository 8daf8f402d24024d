#include "linkboy/tracking/csv_tracker.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "line_file.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

constexpr std::string_view kHeader = "time,epoch,update,name,value\n";

std::string csv_text(std::string text) {
  // Spreadsheets would read such a name as a formula, and a name can come from an untrusted
  // training state.
  if (!text.empty() && std::string_view("=+-@\t\r").find(text[0]) != text.npos) text.insert(0, "'");
  if (text.find_first_of(",\"\r\n") == text.npos) return text;
  std::string quoted = "\"";
  for (const char letter : text) quoted.append(letter == '"' ? 2 : 1, letter);
  return quoted + '"';
}

std::string csv_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return fmt::format("{}", value);
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

/// Removes the number and the comma after it from the front of `row`.
bool take_integer(std::string_view& row, int64_t& value) {
  const auto [end, error] = std::from_chars(row.data(), row.data() + row.size(), value);
  if (error != std::errc() || end == row.data() + row.size() || *end != ',') return false;
  row.remove_prefix(static_cast<std::size_t>(end - row.data()) + 1);
  return true;
}

/// The table of an earlier run. Omits rows that were damaged, for example by a power failure.
///
/// @throws Error if the header and the first row show that a CsvTracker did not write the file.
class OldTable {
 public:
  OldTable(std::string_view text, const std::filesystem::path& path) {
    // If another program created the file, the header may be incomplete as well.
    bool is_table = text.starts_with(kHeader) || kHeader.starts_with(text);
    if (text.starts_with(kHeader)) {
      kept_ = kHeader;
      text.remove_prefix(kHeader.size());
    } else {
      text = "";
    }
    while (const std::size_t size = first_row_size(text)) {
      if (!add(text.substr(0, size))) is_table = is_table && !records_.empty();
      text.remove_prefix(size);
    }
    LINKBOY_CHECK(is_table, "\"", path.string(),
                  "\" is not a table that CsvTracker wrote. Choose another path, or move the file "
                  "away.");
  }

  const std::vector<OldRecord>& records() const { return records_; }
  /// The header and all complete rows; empty if the header is incomplete.
  const std::string& text() const { return kept_; }

 private:
  bool add(std::string_view row) {
    OldRecord record{.begin = kept_.size()};
    std::string_view fields = row.substr(std::min(row.find(','), row.size() - 1) + 1);
    if (!take_integer(fields, record.epoch) || !take_integer(fields, record.update)) return false;
    records_.push_back(record);
    kept_ += row;
    return true;
  }

  std::vector<OldRecord> records_;
  std::string kept_;
};

}  // namespace

CsvTracker::CsvTracker(std::filesystem::path path, CsvTrackerOptions options)
    : options_(options), file_(std::make_unique<LineFile>(std::move(path))) {}

CsvTracker::~CsvTracker() = default;

void CsvTracker::start(const TrackedRun& run) {
  const ResumePoint resume_point(run);
  OldFile old = file_->lock_old();
  const OldTable table(old.bytes, file_->path());
  std::string text = table.text();
  std::size_t kept = options_.append ? text.size() : 0;
  if (resume_point.is_resumed()) kept = resume_point.cut(table.records(), text.size());
  text.resize(kept);
  file_->open(std::move(old.lock), text, kept == 0 ? kHeader : "");
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

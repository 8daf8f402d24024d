#include "linkboy/csv_tracker.hpp"

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

std::string csv_text(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char letter : text) quoted.append(letter == '"' ? 2 : 1, letter);
  return quoted + '"';
}

std::string csv_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return fmt::format("{}", value);
}

/// The size of the first row, with the end of the line; 0 if it is cut off.
std::size_t first_row_size(std::string_view text) {
  bool is_quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') is_quoted = !is_quoted;
    if (text[i] == '\n' && !is_quoted) return i + 1;
  }
  return 0;
}

/// Takes the number and the comma after it off the front of `row`.
bool take_integer(std::string_view& row, int64_t& value) {
  const auto [end, error] = std::from_chars(row.data(), row.data() + row.size(), value);
  if (error != std::errc() || end == row.data() + row.size() || *end != ',') return false;
  row.remove_prefix(static_cast<std::size_t>(end - row.data()) + 1);
  return true;
}

/// @throws Error if a row is not one that a CsvTracker writes.
class OldTable {
 public:
  OldTable(std::string_view text, const std::filesystem::path& path) : path_(path) {
    // The header alone may be cut off, too, if another program made the file.
    check(text.starts_with(kHeader) || kHeader.starts_with(text));
    size_ = std::min(text.size(), kHeader.size());
    if (size_ < kHeader.size()) size_ = 0;
    while (const std::size_t row = first_row_size(text.substr(size_))) {
      add(text.substr(size_, row - 1));
      size_ += row;
    }
  }

  const std::vector<OldRecord>& records() const { return records_; }
  /// Bytes up to the end of the last whole row.
  std::size_t size() const { return size_; }

 private:
  void check(bool is_table) const {
    LINKBOY_CHECK(is_table, "\"", path_.string(), "\" is not a table that CsvTracker wrote (row ",
                  records_.size() + 1, "). Choose another path, or move the file away.");
  }

  void add(std::string_view row) {
    OldRecord record{.begin = size_};
    const std::size_t comma = row.find(',');
    check(comma != std::string_view::npos);
    row.remove_prefix(comma + 1);
    check(take_integer(row, record.epoch) && take_integer(row, record.update));
    records_.push_back(record);
  }

  const std::filesystem::path& path_;
  std::vector<OldRecord> records_;
  std::size_t size_ = 0;
};

}  // namespace

CsvTracker::CsvTracker(std::filesystem::path path, CsvTrackerOptions options)
    : options_(options), file_(std::make_unique<LineFile>(std::move(path))) {}

CsvTracker::~CsvTracker() = default;

void CsvTracker::start(const TrackedRun& run) {
  const ResumePoint resume_point(run);
  std::string text = read_old_file(file_->path());
  const OldTable table(text, file_->path());
  std::size_t kept = options_.append ? table.size() : 0;
  if (resume_point.is_resumed()) kept = resume_point.cut(table.records(), table.size());
  text.resize(kept);
  file_->open(kept == 0 ? kHeader : text);
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

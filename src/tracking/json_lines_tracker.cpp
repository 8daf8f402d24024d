// Appends the lines of json_lines.cpp to a file.

#include "linkboy/tracking/json_lines_tracker.hpp"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "json_lines.hpp"
#include "line_file.hpp"

namespace linkboy {
namespace {

std::size_t first_line_size(std::string_view text) { return text.find('\n') + 1; }

std::optional<OldRecord> parse_line(std::string_view line) {
  try {
    return old_record(nlohmann::json::parse(line));
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

constexpr LineFormat kJsonLinesFormat{.header = "",
                                      .record_size = first_line_size,
                                      .parse = parse_line,
                                      .description = "a file that JsonLinesTracker wrote"};

}  // namespace

JsonLinesTracker::JsonLinesTracker(std::filesystem::path path, JsonLinesTrackerOptions options)
    : options_(options), file_(std::make_unique<LineFile>(std::move(path))) {}

JsonLinesTracker::~JsonLinesTracker() = default;

void JsonLinesTracker::start(const TrackedRun& run) {
  file_->start(run, options_.append, kJsonLinesFormat, run_line(run));
}

void JsonLinesTracker::log_scalars(std::span<const TrackedScalar> scalars,
                                   const TrackedTime& time) {
  file_->append(scalars_line(scalars, time));
}

void JsonLinesTracker::log_text(std::string_view name, std::string_view text,
                                const TrackedTime& time) {
  file_->append(text_line(name, text, time));
}

void JsonLinesTracker::log_histogram(std::string_view name, const at::Tensor& values,
                                     const TrackedTime& time) {
  file_->append(histogram_line(name, values, time));
}

void JsonLinesTracker::finish(std::string_view outcome, std::span<const TrackedScalar> last) {
  file_->append(end_line(outcome, last));
  file_->close();
}

}  // namespace linkboy

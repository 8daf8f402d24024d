#include "linkboy/tracking/json_lines_tracker.hpp"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "json_lines_histogram.hpp"
#include "json_lines_value.hpp"
#include "line_file.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

Json measured(std::string_view type, const TrackedTime& time) {
  return {{"type", type},
          {"time", json_number(time.seconds)},
          {"epoch", time.epoch},
          {"update", time.update}};
}

Json scalar_values(std::span<const TrackedScalar> scalars) {
  Json values = Json::object();
  for (const TrackedScalar& scalar : scalars) values[scalar.name] = json_number(scalar.value);
  return values;
}

Json run_line(const TrackedRun& run) {
  return {{"type", "run"},
          {"name", run.name},
          {"first_update", run.first_update},
          {"first_epoch", run.first_epoch},
          {"config", json_object(run.config)},
          {"environment", json_object(run.environment)}};
}

/// @throws nlohmann::json::exception if a JsonLinesTracker did not write the line.
OldRecord old_record(std::string_view text, std::size_t begin) {
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  const Json line = Json::parse(text);
  OldRecord record{.begin = begin};
  const auto type = line.at("type").get<std::string>();
  if (type == "end") {
    record.update = record.epoch = kNever;  // dropped when the run resumes
  } else if (type == "run") {
    record.update = integer_of(line.at("first_update"));
    record.epoch = kNever;  // also drops the line of an attempt that resumed here
    record.starts_run = record.update == 0 && line.at("first_epoch") == 0;
  } else {
    record.update = integer_of(line.at("update"));
    record.epoch = integer_of(line.at("epoch"));
  }
  return record;
}

struct OldLines {
  std::vector<OldRecord> records;
  std::string text;  // all complete lines
};

/// Reads the lines of a file. Omits lines that were damaged, for example by a power failure.
///
/// @throws Error if the first line shows that a JsonLinesTracker did not write the file.
OldLines read_lines(std::string_view text, const std::filesystem::path& path) {
  OldLines lines;
  for (std::size_t size; (size = text.find('\n') + 1) != 0; text.remove_prefix(size)) {
    try {
      lines.records.push_back(old_record(text.substr(0, size), lines.text.size()));
      lines.text += text.substr(0, size);
    } catch (const nlohmann::json::exception&) {
      if (lines.records.empty()) break;
    }
  }
  // If no line is valid, another program wrote the file.
  LINKBOY_CHECK(!lines.records.empty() || text.empty(), "\"", path.string(),
                "\" is not a file that JsonLinesTracker wrote. Choose another path, or move the "
                "file away.");
  return lines;
}

}  // namespace

JsonLinesTracker::JsonLinesTracker(std::filesystem::path path, JsonLinesTrackerOptions options)
    : options_(options), file_(std::make_unique<LineFile>(std::move(path))) {}

JsonLinesTracker::~JsonLinesTracker() = default;

void JsonLinesTracker::start(const TrackedRun& run) {
  const ResumePoint resume_point(run);
  OldFile old = file_->lock_old();
  OldLines lines = read_lines(old.bytes, file_->path());
  std::size_t kept = options_.append ? lines.text.size() : 0;
  if (resume_point.is_resumed()) kept = resume_point.cut(lines.records, lines.text.size());
  lines.text.resize(kept);
  file_->open(std::move(old.lock), lines.text, json_line(run_line(run)) + '\n');
}

void JsonLinesTracker::log_scalars(std::span<const TrackedScalar> scalars,
                                   const TrackedTime& time) {
  Json line = measured("scalars", time);
  line["values"] = scalar_values(scalars);
  file_->append(json_line(line) + '\n');
}

void JsonLinesTracker::log_text(std::string_view name, std::string_view text,
                                const TrackedTime& time) {
  Json line = measured("text", time);
  line["name"] = name;
  line["text"] = text;
  file_->append(json_line(line) + '\n');
}

void JsonLinesTracker::log_histogram(std::string_view name, const at::Tensor& values,
                                     const TrackedTime& time) {
  const LinearHistogram histogram = make_linear_histogram(values);
  Json line = measured("histogram", time);
  line["name"] = name;
  line["count"] = histogram.count;
  line["non_finite"] = histogram.non_finite;
  line["min"] = json_number(histogram.min);
  line["max"] = json_number(histogram.max);
  line["mean"] = json_number(histogram.mean);
  line["standard_deviation"] = json_number(histogram.standard_deviation);
  line["edges"] = Json::array();
  for (const double edge : histogram.edges) line["edges"].push_back(json_number(edge));
  line["counts"] = histogram.counts;
  file_->append(json_line(line) + '\n');
}

void JsonLinesTracker::finish(std::string_view outcome, std::span<const TrackedScalar> last) {
  const Json line = {{"type", "end"}, {"outcome", outcome}, {"last", scalar_values(last)}};
  file_->append(json_line(line) + '\n');
  file_->close();
}

}  // namespace linkboy

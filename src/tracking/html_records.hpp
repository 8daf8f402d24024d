#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "json_lines_histogram.hpp"
#include "linkboy/tracking/tracker.hpp"

namespace linkboy {

struct MetricPoint {
  TrackedTime time;
  double value = 0.0;
};

struct MetricRecords {
  std::string name;
  std::vector<MetricPoint> points;
};

struct TextRecord {
  std::string name;
  std::string text;
  TrackedTime time;
};

struct HistogramRecord {
  std::string name;
  LinearHistogram histogram;
  TrackedTime time;
};

/// Everything that an HTML report shows and stores for a resumed run.
struct HtmlRecords {
  TrackedRun run{};
  std::string outcome{};  // empty while the run is in progress
  std::vector<MetricRecords> metrics{};
  std::map<std::string, std::size_t> places{};  // indexes in `metrics`, by name
  std::vector<TextRecord> texts{};
  std::vector<HistogramRecord> histograms{};  // the newest one of each name

  /// Returns the records of the metric `name`. Adds the metric if it does not exist.
  MetricRecords& metric(const std::string& name);
  void add(const TrackedScalar& scalar, const TrackedTime& time);
  void add(HistogramRecord histogram);

  /// Drops the records after the point at which `run` resumes.
  void resume(const TrackedRun& run);

  /// Returns JSON that does not contain "<", so that it can be embedded in an HTML element.
  std::string to_json() const;
  /// @throws nlohmann::json::exception if `to_json` did not create `text`.
  static HtmlRecords from_json(std::string_view text);
};

}  // namespace linkboy

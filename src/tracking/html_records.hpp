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

/// All that an HTML report shows and keeps for a resumed run.
struct HtmlRecords {
  TrackedRun run{};
  std::string outcome{};  // empty while the run goes on
  std::vector<MetricRecords> metrics{};
  std::map<std::string, std::size_t> places{};  // in `metrics`, by name
  std::vector<TextRecord> texts{};
  std::vector<HistogramRecord> histograms{};  // the newest of each name

  /// The points of the metric of this name, which is made if it is not there.
  MetricRecords& metric(const std::string& name);
  void add(const TrackedScalar& scalar, const TrackedTime& time);
  void add(HistogramRecord histogram);

  /// Drops the records after the point from which `run` resumes.
  void resume(const TrackedRun& run);

  /// JSON without "<", so that it can stand within an HTML element.
  std::string to_json() const;
  /// @throws nlohmann::json::exception if `text` is not what `to_json` made.
  static HtmlRecords from_json(std::string_view text);
};

}  // namespace linkboy

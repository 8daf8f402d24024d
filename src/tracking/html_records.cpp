#include "html_records.hpp"

#include <algorithm>
#include <utility>

#include "json_lines_value.hpp"
#include "line_file.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

Json numbers(const std::vector<double>& values) {
  Json list = Json::array();
  for (const double value : values) list.push_back(json_number(value));
  return list;
}

std::vector<double> numbers_of(const Json& list) {
  std::vector<double> values;
  for (const Json& value : list) values.push_back(number_of(value));
  return values;
}

std::vector<int64_t> integers_of(const Json& list) {
  std::vector<int64_t> values;
  for (const Json& value : list) values.push_back(integer_of(value));
  return values;
}

Json time_fields(const TrackedTime& time) {
  return {{"update", time.update}, {"epoch", time.epoch}, {"time", json_number(time.seconds)}};
}

TrackedTime time_of(const Json& json) {
  return {.update = integer_of(json.at("update")),
          .epoch = integer_of(json.at("epoch")),
          .seconds = number_of(json.at("time"))};
}

/// Writes columns, which need half as many bytes as an object per point.
Json metric_json(const MetricRecords& metric) {
  Json json = {{"name", metric.name},
               {"update", Json::array()},
               {"epoch", Json::array()},
               {"time", Json::array()},
               {"value", Json::array()}};
  for (const auto& [time, value] : metric.points) {
    json["update"].push_back(time.update);
    json["epoch"].push_back(time.epoch);
    json["time"].push_back(json_number(time.seconds));
    json["value"].push_back(json_number(value));
  }
  return json;
}

std::vector<MetricPoint> points_of(const Json& json) {
  std::vector<MetricPoint> points;
  for (std::size_t i = 0; i < json.at("value").size(); ++i) {
    points.push_back({.time = {.update = integer_of(json.at("update").at(i)),
                               .epoch = integer_of(json.at("epoch").at(i)),
                               .seconds = number_of(json.at("time").at(i))},
                      .value = number_of(json.at("value").at(i))});
  }
  return points;
}

Json text_json(const TextRecord& record) {
  Json json = time_fields(record.time);
  json["name"] = record.name;
  json["text"] = record.text;
  return json;
}

Json histogram_json(const HistogramRecord& record) {
  Json json = time_fields(record.time);
  const LinearHistogram& histogram = record.histogram;
  json["name"] = record.name;
  json["count"] = histogram.count;
  json["non_finite"] = histogram.non_finite;
  json["statistics"] =
      numbers({histogram.min, histogram.max, histogram.mean, histogram.standard_deviation});
  json["edges"] = numbers(histogram.edges);
  json["counts"] = histogram.counts;
  return json;
}

HistogramRecord histogram_record_of(const Json& json) {
  const std::vector<double> statistics = numbers_of(json.at("statistics"));
  const Json& edges = json.at("edges");
  const Json& counts = json.at("counts");
  const bool is_whole = counts.empty() ? edges.empty() : edges.size() == counts.size() + 1;
  LINKBOY_CHECK(is_whole, "a histogram has ", counts.size(), " counts and ", edges.size(),
                " edges; it must have one more edge than counts.");
  return {.name = json.at("name"),
          .histogram = {.count = integer_of(json.at("count")),
                        .non_finite = integer_of(json.at("non_finite")),
                        .min = statistics.at(0),
                        .max = statistics.at(1),
                        .mean = statistics.at(2),
                        .standard_deviation = statistics.at(3),
                        .edges = numbers_of(edges),
                        .counts = integers_of(counts)},
          .time = time_of(json)};
}

}  // namespace

MetricRecords& HtmlRecords::metric(const std::string& name) {
  const auto [place, is_new] = places.try_emplace(name, metrics.size());
  if (is_new) metrics.push_back({.name = name, .points = {}});
  return metrics[place->second];
}

void HtmlRecords::add(const TrackedScalar& scalar, const TrackedTime& time) {
  metric(scalar.name).points.push_back({.time = time, .value = scalar.value});
}

void HtmlRecords::add(HistogramRecord histogram) {
  std::erase_if(histograms, [&](const auto& old) { return old.name == histogram.name; });
  histograms.push_back(std::move(histogram));
}

void HtmlRecords::resume(const TrackedRun& next) {
  const ResumePoint resume_point(next);
  const auto is_void = [&](const auto& record) {
    return !resume_point.keeps(record.time.update, record.time.epoch);
  };
  for (MetricRecords& metric : metrics) std::erase_if(metric.points, is_void);
  std::erase_if(metrics, [](const MetricRecords& metric) { return metric.points.empty(); });
  places.clear();
  for (std::size_t i = 0; i < metrics.size(); ++i) places[metrics[i].name] = i;
  std::erase_if(texts, is_void);
  std::erase_if(histograms, is_void);
  outcome.clear();
  run = next;
}

std::string HtmlRecords::to_json() const {
  Json json = {{"name", run.name},
               {"first_update", run.first_update},
               {"first_epoch", run.first_epoch},
               {"config", json_object(run.config)},
               {"environment", json_object(run.environment)},
               {"outcome", outcome},
               {"metrics", Json::array()},
               {"texts", Json::array()},
               {"histograms", Json::array()}};
  for (const MetricRecords& metric : metrics) json["metrics"].push_back(metric_json(metric));
  for (const TextRecord& text : texts) json["texts"].push_back(text_json(text));
  for (const HistogramRecord& histogram : histograms) {
    json["histograms"].push_back(histogram_json(histogram));
  }
  std::string safe;
  for (const char letter : json_line(json)) {
    // In JSON, only a string can contain "<".
    if (letter == '<') {
      safe += "\\u003c";
    } else {
      safe += letter;
    }
  }
  return safe;
}

HtmlRecords HtmlRecords::from_json(std::string_view text) {
  const Json json = Json::parse(text);
  HtmlRecords records;
  records.run = {.name = json.at("name"),
                 .config = entries_of(json.at("config")),
                 .environment = entries_of(json.at("environment")),
                 .first_update = integer_of(json.at("first_update")),
                 .first_epoch = integer_of(json.at("first_epoch"))};
  records.outcome = json.at("outcome");
  for (const Json& metric : json.at("metrics")) {
    records.metric(metric.at("name")).points = points_of(metric);
  }
  for (const Json& text_record : json.at("texts")) {
    records.texts.push_back({.name = text_record.at("name"),
                             .text = text_record.at("text"),
                             .time = time_of(text_record)});
  }
  for (const Json& histogram : json.at("histograms")) {
    records.histograms.push_back(histogram_record_of(histogram));
  }
  return records;
}

}  // namespace linkboy

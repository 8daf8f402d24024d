#include "html_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <vector>

#include "html_style.hpp"
#include "html_text.hpp"
#include "svg_chart.hpp"

namespace linkboy {
namespace {

constexpr std::string_view kRecordsBegin =
    "<script type=\"application/json\" id=\"linkboy-records\">";
constexpr std::string_view kRecordsEnd = "</script>";

class Page {
 public:
  Page(const HtmlRecords& records, std::string_view title)
      : records_(records),
        title_(html_text(records.run.name.empty() ? title : std::string_view(records.run.name))) {}

  std::string html() {
    add("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
        "<meta name=\"generator\" content=\"linkboy\">\n<title>{}</title>\n<style>{}</style>\n"
        "</head>\n<body>\n<main>\n",
        title_, kHtmlStyle);
    add_header();
    add_charts();
    add_metrics();
    add_histograms();
    add_texts();
    add_entries();
    add("<footer>Written by linkboy. The page needs neither scripts nor a network; it contains the "
        "records as JSON.</footer>\n</main>\n{}{}{}\n</body>\n</html>\n",
        kRecordsBegin, records_.to_json(), kRecordsEnd);
    return std::move(html_);
  }

 private:
  template <class... Arguments>
  void add(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    fmt::format_to(std::back_inserter(html_), format, std::forward<Arguments>(arguments)...);
  }

  void add_header() {
    const std::string& outcome = records_.outcome;
    const std::string_view kind = outcome.empty() ? "" : outcome == "failed" ? " bad" : " good";
    add("<header>\n<h1>{}</h1>\n<ul class=\"facts\">\n<li class=\"outcome{}\">{}</li>\n", title_,
        kind, outcome.empty() ? "running" : html_text(outcome));
    double begin = HUGE_VAL, end = -HUGE_VAL;
    int64_t updates = records_.run.first_update, epoch = 0;
    for (const MetricRecords& metric : records_.metrics) {
      for (const MetricPoint& point : metric.points) {
        begin = std::min(begin, point.time.seconds);
        end = std::max(end, point.time.seconds);
        updates = std::max(updates, point.time.update);
        epoch = std::max(epoch, point.time.epoch);
      }
    }
    add("<li><b>{}</b> updates</li>\n", updates);
    if (epoch > 0) add("<li>epoch <b>{}</b></li>\n", epoch);
    if (begin < end) add("<li><b>{}</b></li>\n", html_duration(end - begin));
    if (begin <= end) add("<li>{} to {}</li>\n", html_time(begin), html_time(end));
    add("</ul>\n</header>\n");
  }

  void add_charts() {
    const std::vector<Chart> charts = charts_of(records_.metrics);
    add("<section class=\"charts\">\n");
    if (charts.empty()) add("<p class=\"card note\">No metrics are recorded yet.</p>\n");
    for (const Chart& chart : charts) {
      add("<figure class=\"card\">\n<h3>{}</h3>\n{}<ul class=\"legend\">\n", html_text(chart.title),
          svg_chart(chart));
      for (std::size_t i = 0; i < chart.metrics.size(); ++i) {
        const MetricRecords& metric = *chart.metrics[i];
        add("<li class=\"s{}\"><i></i><span>{}</span> <b>{}</b></li>\n", i % 6,
            html_text(metric.name), html_number(metric.points.back().value));
      }
      add("</ul>\n");
      add_gap_notes(chart);
      add("</figure>\n");
    }
    add("</section>\n");
  }

  void add_gap_notes(const Chart& chart) {
    for (const MetricRecords* metric : chart.metrics) {
      const auto is_gap = [](const MetricPoint& point) { return !std::isfinite(point.value); };
      const auto& points = metric->points;
      const auto first = std::find_if(points.begin(), points.end(), is_gap);
      if (first == points.end()) continue;
      const auto count = std::count_if(first, points.end(), is_gap);
      add("<p class=\"note bad\">{} of {} values of {} {} not finite, first at update {}.</p>\n",
          count, points.size(), html_text(metric->name), count == 1 ? "is" : "are",
          first->time.update);
    }
  }

  void add_metrics() {
    if (records_.metrics.empty()) return;
    add("<h2>Metrics</h2>\n<div class=\"card wide\">\n<table class=\"metrics\">\n<thead><tr>"
        "<th>Metric</th><th class=\"number\">Last</th><th class=\"number\">Lowest</th><th>at</th>"
        "<th class=\"number\">Highest</th><th>at</th><th class=\"number\">Records</th></tr>"
        "</thead>\n<tbody>\n");
    for (const MetricRecords& metric : records_.metrics) {
      const auto order = [](const MetricPoint& a, const MetricPoint& b) {
        return a.value < b.value;
      };
      std::vector<MetricPoint> finite;
      std::copy_if(metric.points.begin(), metric.points.end(), std::back_inserter(finite),
                   [](const MetricPoint& point) { return std::isfinite(point.value); });
      const auto [lowest, highest] = std::minmax_element(finite.begin(), finite.end(), order);
      add("<tr><th>{}</th><td class=\"number\">{}</td>", html_text(metric.name),
          html_number(metric.points.back().value));
      add_extreme(finite.empty() ? nullptr : &*lowest);
      add_extreme(finite.empty() ? nullptr : &*highest);
      add("<td class=\"number\">{}</td></tr>\n", metric.points.size());
    }
    add("</tbody>\n</table>\n</div>\n");
  }

  void add_extreme(const MetricPoint* point) {
    if (point == nullptr) {
      add("<td class=\"number\">–</td><td class=\"at\"></td>");
      return;
    }
    add("<td class=\"number\">{}</td><td class=\"at\">epoch {}, update {}</td>",
        html_number(point->value), point->time.epoch, point->time.update);
  }

  void add_histograms() {
    if (records_.histograms.empty()) return;
    add("<h2>Histograms</h2>\n<section class=\"small\">\n");
    for (const HistogramRecord& record : records_.histograms) {
      const LinearHistogram& histogram = record.histogram;
      add("<figure class=\"card\">\n<h3>{}</h3>\n{}<p class=\"note\">mean {}, standard deviation "
          "{}, {} values; update {}</p>\n",
          html_text(record.name), svg_histogram(record), html_number(histogram.mean),
          html_number(histogram.standard_deviation), histogram.count, record.time.update);
      if (histogram.non_finite > 0) {
        add("<p class=\"note bad\">{} values are not finite.</p>\n", histogram.non_finite);
      }
      add("</figure>\n");
    }
    add("</section>\n");
  }

  void add_texts() {
    if (records_.texts.empty()) return;
    add("<h2>Texts</h2>\n<section class=\"pairs\">\n");
    for (const TextRecord& record : records_.texts) {
      add("<article class=\"card\">\n<h3>{}</h3>\n<pre>{}</pre>\n<p class=\"note\">epoch {}, "
          "update "
          "{}</p>\n</article>\n",
          html_text(record.name), html_text(record.text), record.time.epoch, record.time.update);
    }
    add("</section>\n");
  }

  void add_entries() {
    const TrackedRun& run = records_.run;
    if (run.config.empty() && run.environment.empty()) return;
    add("<h2>Run</h2>\n<section class=\"pairs\">\n");
    add_table("Configuration", run.config);
    add_table("Environment", run.environment);
    add("</section>\n");
  }

  void add_table(std::string_view title, const TrackedRun::Entries& entries) {
    if (entries.empty()) return;
    add("<article class=\"card\">\n<h3>{}</h3>\n<table>\n<tbody>\n", title);
    for (const auto& [name, value] : entries) {
      add("<tr><th>{}</th><td>{}</td></tr>\n", html_text(name), html_text(value));
    }
    add("</tbody>\n</table>\n</article>\n");
  }

  const HtmlRecords& records_;
  std::string title_;  // escaped
  std::string html_;
};

}  // namespace

std::string html_page(const HtmlRecords& records, std::string_view title) {
  return Page(records, title).html();
}

HtmlRecords records_of_page(std::string_view page) {
  const std::size_t begin = page.rfind(kRecordsBegin);
  const std::size_t end = page.rfind(kRecordsEnd);
  if (begin == page.npos || end == page.npos || end < begin) return HtmlRecords::from_json("");
  const std::size_t first = begin + kRecordsBegin.size();
  return HtmlRecords::from_json(page.substr(first, end - first));
}

}  // namespace linkboy

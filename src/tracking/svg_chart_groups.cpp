#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <string>
#include <string_view>

#include "svg_chart.hpp"

namespace linkboy {
namespace {

using Words = std::vector<std::string>;

constexpr std::array<std::string_view, 8> kPhases = {"train", "training",   "eval", "evaluation",
                                                     "valid", "validation", "val",  "test"};

Words words_of(std::string_view name) {
  Words words(1);
  for (const char letter : name) {
    if (letter == '_' || letter == '/' || letter == ' ') {
      words.emplace_back();
    } else {
      words.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    }
  }
  return words;
}

bool contains(const Words& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool is_learning_rate(const Words& words) {
  return contains(words, "lr") || (contains(words, "learning") && contains(words, "rate"));
}

bool is_number(const std::string& word) {
  return word.find_first_not_of("0123456789") == word.npos;
}

/// Returns the words of a name without those for the phase. The learning rates of all param groups
/// belong to one family.
Words family_of(std::string_view name) {
  const Words words = words_of(name);
  const bool is_rate = is_learning_rate(words);
  Words family;
  for (const std::string& word : words) {
    const bool is_phase = std::find(kPhases.begin(), kPhases.end(), word) != kPhases.end();
    const bool is_group = is_rate && (word == "group" || is_number(word));
    if (!is_phase && !is_group) family.push_back(word);
  }
  return family.empty() ? words : family;
}

std::string title_of(const Words& family) {
  std::string title;
  for (std::size_t i = 0; i < family.size(); ++i) {
    if (i > 0) title += i + 1 == family.size() && family[i] == "epoch" ? " per " : " ";
    title += family[i] == "lr" ? "learning rate" : family[i];
  }
  if (!title.empty()) {
    title[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(title[0])));
  }
  return title;
}

bool has_one_record_per_epoch(const MetricRecords& metric) {
  return std::adjacent_find(metric.points.begin(), metric.points.end(),
                            [](const MetricPoint& a, const MetricPoint& b) {
                              return a.time.epoch >= b.time.epoch;
                            }) == metric.points.end();
}

bool spans_two_decades(const std::vector<const MetricRecords*>& metrics) {
  double low = HUGE_VAL;
  double high = 0.0;
  for (const MetricRecords* metric : metrics) {
    for (const MetricPoint& point : metric->points) {
      if (!std::isfinite(point.value)) continue;
      low = std::min(low, point.value);
      high = std::max(high, point.value);
    }
  }
  return low > 0.0 && high > low * 100.0;
}

}  // namespace

std::vector<Chart> charts_of(const std::vector<MetricRecords>& metrics) {
  struct Group {
    Words family;
    Chart chart;
  };
  std::vector<Group> groups;
  for (const MetricRecords& metric : metrics) {
    Words family = family_of(metric.name);
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const Group& other) { return other.family == family; });
    if (group == groups.end()) {
      const std::string title = title_of(family);
      group = groups.insert(group, {std::move(family), {.title = title, .by_epoch = true}});
    }
    group->chart.metrics.push_back(&metric);
    group->chart.by_epoch = group->chart.by_epoch && has_one_record_per_epoch(metric);
  }
  std::stable_partition(groups.begin(), groups.end(),
                        [](const Group& group) { return contains(group.family, "loss"); });
  std::vector<Chart> charts;
  for (auto& [family, chart] : groups) {
    chart.is_logarithmic = is_learning_rate(family) && spans_two_decades(chart.metrics);
    charts.push_back(std::move(chart));
  }
  return charts;
}

}  // namespace linkboy

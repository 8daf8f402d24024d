// Tests of HtmlReport's charts: the metrics that share a chart, the axes, the lines and the gaps.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tracking/svg_chart.hpp"
#include "tracking/svg_chart_axis.hpp"
#include "tracking/svg_chart_line.hpp"

namespace linkboy::svg_chart_test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

MetricRecords metric(std::string name, const std::vector<double>& values) {
  MetricRecords records{.name = std::move(name), .points = {}};
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto update = static_cast<int64_t>(i) + 1;
    records.points.push_back(
        {.time = {.update = update, .epoch = 1, .seconds = 0.0}, .value = values[i]});
  }
  return records;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t result = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++result;
  return result;
}

std::vector<std::string> labels(const ChartAxis& axis) {
  std::vector<std::string> result;
  for (const Tick& tick : axis.ticks()) result.push_back(tick.label);
  return result;
}

TEST(SvgChartTest, MetricsThatDifferOnlyInThePhaseShareAChart) {
  const std::vector<MetricRecords> metrics = {
      metric("lr/group_0", {1.0}),     metric("train_loss_epoch", {1.0}),
      metric("train_accuracy", {1.0}), metric("eval_loss_epoch", {1.0}),
      metric("lr/group_1", {1.0}),     metric("train_loss", {1.0}),
      metric("val/accuracy", {1.0}),   metric("evaluation", {1.0})};

  std::vector<std::string> outline;
  for (const Chart& chart : charts_of(metrics)) {
    std::string line = chart.title + ":";
    for (const MetricRecords* drawn : chart.metrics) line += " " + drawn->name;
    outline.push_back(line);
  }

  EXPECT_EQ(outline, (std::vector<std::string>{
                         "Loss per epoch: train_loss_epoch eval_loss_epoch", "Loss: train_loss",
                         "Learning rate: lr/group_0 lr/group_1",
                         "Accuracy: train_accuracy val/accuracy", "Evaluation: evaluation"}));
}

TEST(SvgChartTest, LearningRatesOverTwoDecadesHaveALogarithmicAxis) {
  const auto is_logarithmic = [](std::string name, std::vector<double> values) {
    const std::vector<MetricRecords> metrics = {metric(std::move(name), values)};
    return charts_of(metrics).front().is_logarithmic;
  };

  EXPECT_TRUE(is_logarithmic("lr", {1e-1, kNaN, 0.9e-3}));
  EXPECT_FALSE(is_logarithmic("lr", {1e-1, 1.1e-3}));
  EXPECT_FALSE(is_logarithmic("lr", {1e-1, 0.9e-3, 0.0}));
  EXPECT_FALSE(is_logarithmic("loss", {1e-1, 0.9e-3}));
}

TEST(SvgChartTest, NonFiniteValuesBreakTheLine) {
  const std::vector<MetricRecords> metrics = {metric("loss", {1.0, 2.0, kNaN, 3.0, HUGE_VAL})};

  const std::string svg = svg_chart(charts_of(metrics).front());

  const std::size_t begin = svg.find("<path class=\"line\"");
  const std::string line = svg.substr(begin, svg.find("/>", begin) - begin);
  EXPECT_EQ(count(line, "M"), 2U) << line;
  EXPECT_EQ(count(line, "L"), 1U) << line;
  EXPECT_EQ(count(svg, "class=\"gap\""), 2U);
  EXPECT_EQ(svg.find("nan"), svg.npos);
  EXPECT_EQ(svg.find("inf"), svg.npos);
}

TEST(SvgChartTest, LongLinesAreReducedToTheirExtent) {
  std::vector<double> values(100000, 1.0);
  values[54321] = 7.0;
  values[54322] = -7.0;
  const std::vector<MetricRecords> metrics = {metric("loss", values)};

  const std::string svg = svg_chart(charts_of(metrics).front());

  EXPECT_NE(svg.find("data-points=\"100000\""), svg.npos);
  const std::size_t begin = svg.find("<path class=\"line\"");
  const std::string line = svg.substr(begin, svg.find("/>", begin) - begin);
  EXPECT_LT(count(line, "L"), 1300U);
  // All points are at the same height, except the two extremes.
  const std::string level = line.substr(line.find(',') + 1, line.find('L') - line.find(',') - 1);
  EXPECT_GE(count(line, "L") - count(line, "," + level + "L"), 2U);
}

TEST(SvgChartTest, ExtremeValuesCanBeDrawn) {
  const std::vector<std::vector<double>> cases = {
      {1.7e308, -1.7e308}, {5e-324, 0.0},      {0.0},
      {1e300, 1e300},      {1.0, 1.0 + 1e-15}, {kNaN, HUGE_VAL},
      {-1e-300, 1e-310},   {5e-324, 1.7e308}};
  for (const std::vector<double>& values : cases) {
    const std::vector<MetricRecords> metrics = {metric("loss", values), metric("lr", values)};
    for (const Chart& chart : charts_of(metrics)) {
      const std::string svg = svg_chart(chart);
      EXPECT_EQ(svg.find("\"nan"), svg.npos) << svg;
      EXPECT_EQ(svg.find(",nan"), svg.npos) << svg;
      EXPECT_EQ(svg.find("inf"), svg.npos) << svg;
    }
  }
}

TEST(SvgChartTest, TicksAreMultiplesOfOneTwoAndFive) {
  using Labels = std::vector<std::string>;
  EXPECT_EQ(labels(ChartAxis::linear(0.0, 2.3)), (Labels{"0", "0.5", "1.0", "1.5", "2.0", "2.5"}));
  EXPECT_EQ(labels(ChartAxis::linear(-0.013, 0.07)),
            (Labels{"-0.02", "0", "0.02", "0.04", "0.06", "0.08"}));
  EXPECT_EQ(labels(ChartAxis::linear(0.0, 4.1e6)),
            (Labels{"0", "1e+06", "2e+06", "3e+06", "4e+06", "5e+06"}));
  EXPECT_EQ(labels(ChartAxis::logarithmic(0.9e-5, 1.1e-2)),
            (Labels{"1e-05", "0.0001", "0.001", "0.01"}));
  EXPECT_EQ(labels(ChartAxis::counts(1, 20)), (Labels{"5", "10", "15", "20"}));
  EXPECT_EQ(labels(ChartAxis::counts(0, 50000)), (Labels{"0", "10k", "20k", "30k", "40k", "50k"}));
  EXPECT_EQ(labels(ChartAxis::counts(3, 3)), (Labels{"3", "4"}));
  EXPECT_EQ(labels(ChartAxis::counts(1'000'010, 1'000'013)),
            (Labels{"1.00001M", "1.000011M", "1.000012M", "1.000013M"}));
}

TEST(SvgChartTest, AveragesSkipNonFiniteValues) {
  std::vector<double> values(200);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = i % 2 == 0 ? 1.0 : 3.0;
  values[50] = kNaN;

  const std::vector<double> average = moving_average(values);

  ASSERT_EQ(average.size(), values.size());
  for (const double value : average) EXPECT_NEAR(value, 2.0, 0.35);
  EXPECT_TRUE(is_noisy(values));
  EXPECT_FALSE(is_noisy(std::vector<double>(200, 1.0)));
}

}  // namespace
}  // namespace linkboy::svg_chart_test

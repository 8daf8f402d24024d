#include "linkboy/metrics/metric_factory.hpp"

#include <gtest/gtest.h>

#include "support/expect_error.hpp"
#include "support/file_contents.hpp"

namespace linkboy::testing::metric_factory_test {
namespace {

TEST(MetricFactoryTest, EveryNameMakesAMetric) {
  EXPECT_GE(metric_names().size(), 15U);
  for (const std::string& name : metric_names()) {
    TextSettings settings;
    for (const auto& [key, value] : metric_options(name)) {
      if (value == "required") settings.emplace_back(key, "3");
    }
    EXPECT_NE(make_metric(name, settings), nullptr) << name;
  }
}

TEST(MetricFactoryTest, ErrorsListTheAllowedValues) {
  EXPECT_THROW((void)make_metric("acuracy"), OptionError);
  EXPECT_ERROR(make_metric("acuracy"), "there is no metric \"acuracy\"; there are accuracy, auroc");
  EXPECT_ERROR(make_metric("accuracy"), "the metric accuracy's num_classes is missing");
  EXPECT_ERROR(make_metric("accuracy", {{"classes", "3"}}), "num_classes, top_k, average");
  EXPECT_ERROR(make_metric("r2-score", {{"average", "macro"}}),
               "it must be one of uniform, variance_weighted, none");
}

TEST(MetricFactoryTest, DocumentationListsEveryMetricAndItsOptions) {
  const std::string page = documentation_page("metrics.md");
  for (const std::string& name : metric_names()) {
    EXPECT_NE(page.find("| `" + name + "` |"), std::string::npos) << name;
    const std::string rows = option_rows("Metrics", name);
    for (const auto& [key, value] : metric_options(name)) {
      EXPECT_NE(rows.find("`" + key + "` |"), std::string::npos) << name << ": " << key;
    }
  }
}

}  // namespace
}  // namespace linkboy::testing::metric_factory_test

#include "linkboy/tracking/tracker_factory.hpp"

#include <gtest/gtest.h>

#include "linkboy/tracking/track_run.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::tracker_factory_test {
namespace {

TEST(TrackerFactoryTest, EveryNameMakesATrackerThatWritesToTheGivenPath) {
  EXPECT_EQ(tracker_names().size(), 4U);
  for (const std::string& name : tracker_names()) {
    const TemporaryFolder folder;
    const std::string key = tracker_options(name).front().first;  // path or directory
    const auto tracker = make_tracker(name, {{key, (folder / "record").string()}});
    Toy toy({make<TrackRun>({tracker}, {.every_n_updates = 1})});
    toy.trainer.train({.train_dataset = toy_data(4), .num_epochs = 1});
    EXPECT_TRUE(std::filesystem::exists(folder / "record")) << name;
  }
}

TEST(TrackerFactoryTest, DocumentationListsEveryTrackerAndItsOptions) {
  for (const std::string& name : tracker_names()) {
    const std::string rows = option_rows("Trackers", name);
    for (const auto& [key, value] : tracker_options(name)) {
      EXPECT_NE(rows.find("`" + key + "` |"), std::string::npos) << name << ": " << key;
    }
  }
}

TEST(TrackerFactoryTest, ErrorsListTheAllowedNames) {
  EXPECT_THROW((void)make_tracker("cvs"), OptionError);
  EXPECT_ERROR(make_tracker("cvs"), "there is no tracker \"cvs\"; there are csv, html-report");
  EXPECT_ERROR(make_tracker("csv"), "the tracker csv's path is missing");
  EXPECT_ERROR(make_tracker("csv", {{"path", "a.csv"}, {"apend", "true"}}), "path, append");
}

}  // namespace
}  // namespace linkboy::testing::tracker_factory_test

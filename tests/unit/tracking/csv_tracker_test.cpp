// Tests of CsvTracker's table. line_trackers_test.cpp tests the rows that a run keeps.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "linkboy/tracking/csv_tracker.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/file_size_limit.hpp"
#include "support/python_peer.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::csv_tracker_test {
namespace {

constexpr char kHeader[] = "time,epoch,update,name,value\n";

void log(CsvTracker& tracker, int64_t update, int64_t epoch, std::vector<TrackedScalar> scalars) {
  tracker.log_scalars(scalars, {.update = update, .epoch = epoch, .seconds = 1000.5});
}

class CsvTrackerTest : public ::testing::Test {
 protected:
  /// Returns the rows, without the header, of a run that logs these scalars at the first update.
  std::string rows_of(const std::vector<TrackedScalar>& scalars) const {
    CsvTracker tracker(path_);
    tracker.start({});
    log(tracker, 1, 1, scalars);
    return read_bytes(path_).substr(sizeof kHeader - 1);
  }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "run.csv";
  CsvTracker tracker_{path_};
};

TEST_F(CsvTrackerTest, WritesARowForEachScalarImmediately) {
  tracker_.start({});
  log(tracker_, 1, 1, {{"loss", 0.1}, {"lr", 1e-20}});
  log(tracker_, 2, 1, {{"new metric", 3.0}});

  EXPECT_EQ(read_bytes(path_), std::string(kHeader) +
                                   "1000.5,1,1,loss,0.1\n"
                                   "1000.5,1,1,lr,1e-20\n"
                                   "1000.5,1,2,new metric,3\n");
}

TEST_F(CsvTrackerTest, QuotesNamesMarksFormulasAndWritesNonFiniteValues) {
  EXPECT_EQ(rows_of({{"a,b", std::nan("")},
                     {"say \"hi\"", -std::nan("")},
                     {"two\nlines", HUGE_VAL},
                     {"=1+1", -HUGE_VAL},
                     {"+a", 1.0},
                     {"-a", 1.0},
                     {"@a", 1.0},
                     {"a=b", 1.0}}),
            "1000.5,1,1,\"a,b\",nan\n"
            "1000.5,1,1,\"say \"\"hi\"\"\",nan\n"
            "1000.5,1,1,\"two\nlines\",inf\n"
            "1000.5,1,1,'=1+1,-inf\n"
            "1000.5,1,1,'+a,1\n"
            "1000.5,1,1,'-a,1\n"
            "1000.5,1,1,'@a,1\n"
            "1000.5,1,1,a=b,1\n");
}

TEST_F(CsvTrackerTest, ACompleteFileIsNotRewritten) {
  rows_of({{"loss", 1.0}});
  const std::string before = read_bytes(path_);
  const std::filesystem::path link = folder_ / "link";
  std::filesystem::create_hard_link(path_, link);
  {
    const FileSizeLimit no_room_for_another(1);
    tracker_.start({.first_update = 1});
  }
  EXPECT_EQ(read_bytes(path_), before);
  log(tracker_, 2, 1, {{"loss", 0.0}});
  EXPECT_TRUE(std::filesystem::equivalent(path_, link));
  EXPECT_EQ(read_bytes(link), before + "1000.5,1,2,loss,0\n");
  // The file is locked although it was not rewritten.
  EXPECT_ERROR(CsvTracker(path_).start({}), "is being written by another run");
}

TEST_F(CsvTrackerTest, LoggingBeforeStartIsAnError) {
  EXPECT_ERROR(log(tracker_, 1, 1, {{"loss", 1.0}}), "start");
}

TEST_F(CsvTrackerTest, PythonReadsTheSameNumbers) {
  SKIP_WITHOUT_PYTHON();
  const std::vector<double> values = {0.1, 1.0 / 3.0, 1e300, -5e-324, 123456789.123, 0.0, -0.0};
  tracker_.start({});
  for (const double value : values) log(tracker_, 1, 1, {{"a, \"b\"", value}});
  tracker_.finish("finished", {});

  std::istringstream rows(run_python("report_peer.py", {"csv", path_.string()}));
  for (const double value : values) {
    std::string row;
    ASSERT_TRUE(std::getline(rows, row));
    EXPECT_EQ(row.substr(0, row.rfind(' ')), "1 1 a, \"b\"");
    const double read = std::strtod(row.substr(row.rfind(' ')).c_str(), nullptr);
    EXPECT_EQ(read, value);
    EXPECT_EQ(std::signbit(read), std::signbit(value));
  }
  EXPECT_EQ(rows.peek(), EOF);
}

}  // namespace
}  // namespace linkboy::csv_tracker_test

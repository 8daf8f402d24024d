// Tests of CsvTracker: the table, the rows that a resumed run keeps, and files that cannot be
// written.

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

/// Records a run of ten updates, in epochs of four, that is killed: `finish` is not called.
void killed_run(const std::filesystem::path& path, CsvTrackerOptions options = {}) {
  CsvTracker tracker(path, options);
  tracker.start({});
  for (int64_t update = 1; update <= 10; ++update) {
    log(tracker, update, (update - 1) / 4 + 1, {{"loss", 1.0 / static_cast<double>(update)}});
  }
}

using Updates = std::vector<std::string>;

/// Returns the updates of all rows.
Updates updates(const std::filesystem::path& path) {
  Updates result;
  const std::string text = read_bytes(path);
  EXPECT_EQ(text.substr(0, sizeof kHeader - 1), kHeader);
  for (std::size_t begin = sizeof kHeader - 1, end; begin < text.size(); begin = end + 1) {
    end = text.find('\n', begin);
    if (end == text.npos) return {"cut off"};
    const std::size_t epoch = text.find(',', begin) + 1;
    const std::size_t update = text.find(',', epoch) + 1;
    result.push_back(text.substr(update, text.find(',', update) - update));
  }
  return result;
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

TEST_F(CsvTrackerTest, QuotesNames) {
  EXPECT_EQ(rows_of({{"a,b", 1.0}, {"say \"hi\"", 2.0}, {"two\nlines", 3.0}}),
            "1000.5,1,1,\"a,b\",1\n"
            "1000.5,1,1,\"say \"\"hi\"\"\",2\n"
            "1000.5,1,1,\"two\nlines\",3\n");
}

TEST_F(CsvTrackerTest, WritesNonFiniteValues) {
  EXPECT_EQ(rows_of({{"a", std::nan("")}, {"b", -std::nan("")}, {"c", HUGE_VAL}, {"d", -HUGE_VAL}}),
            "1000.5,1,1,a,nan\n"
            "1000.5,1,1,b,nan\n"
            "1000.5,1,1,c,inf\n"
            "1000.5,1,1,d,-inf\n");
}

TEST_F(CsvTrackerTest, NamesAreNotReadAsFormulas) {
  EXPECT_EQ(rows_of({{"=1+1", 1.0}, {"+a", 1.0}, {"-a", 1.0}, {"@a", 1.0}, {"a=b", 1.0}}),
            "1000.5,1,1,'=1+1,1\n"
            "1000.5,1,1,'+a,1\n"
            "1000.5,1,1,'-a,1\n"
            "1000.5,1,1,'@a,1\n"
            "1000.5,1,1,a=b,1\n");
}

TEST_F(CsvTrackerTest, ReplacesTheFileWhenTheNextRunStarts) {
  killed_run(path_);
  EXPECT_EQ(updates(path_).size(), 10U);

  tracker_.start({});

  EXPECT_EQ(read_bytes(path_), kHeader);
}

TEST_F(CsvTrackerTest, RecordsTheNextRunAfterFinish) {
  CsvTracker tracker(path_, {.append = true});
  tracker.start({});
  log(tracker, 1, 1, {{"loss", 1.0}});
  tracker.finish("finished", {});

  tracker.start({});
  log(tracker, 7, 1, {{"loss", 1.0}});
  tracker.finish("finished", {});

  EXPECT_EQ(updates(path_), (Updates{"1", "7"}));
}

TEST_F(CsvTrackerTest, KeepsTheRowsBeforeTheTrainingState) {
  killed_run(path_);

  tracker_.start({.first_update = 4, .first_epoch = 1});
  log(tracker_, 5, 2, {{"loss", 0.0}});

  EXPECT_EQ(updates(path_), (Updates{"1", "2", "3", "4", "5"}));
}

TEST_F(CsvTrackerTest, ACompleteFileIsNotRewritten) {
  killed_run(path_);
  const std::string before = read_bytes(path_);
  const std::filesystem::path link = folder_ / "link";
  std::filesystem::create_hard_link(path_, link);
  {
    const FileSizeLimit no_room_for_another(1);
    tracker_.start({.first_update = 10, .first_epoch = 2});
  }
  EXPECT_EQ(read_bytes(path_), before);
  log(tracker_, 11, 3, {{"loss", 0.0}});
  EXPECT_TRUE(std::filesystem::equivalent(path_, link));
  EXPECT_EQ(updates(link).size(), 11U);
  // The file is locked although it was not rewritten.
  EXPECT_ERROR(CsvTracker(path_).start({}), "is being written by another run");
}

TEST_F(CsvTrackerTest, DropsRowsThatAPowerCutDamaged) {
  killed_run(path_);
  const std::string before = read_bytes(path_);
  const std::size_t middle = before.find('\n', before.size() / 2) + 1;
  for (const std::string& damage : {std::string(100, '\0') + "\n", std::string("lo\n")}) {
    write_bytes(path_, before.substr(0, middle) + damage + before.substr(middle));
    CsvTracker tracker(path_);
    tracker.start({.first_update = 10, .first_epoch = 2});
    EXPECT_EQ(read_bytes(path_), before);
  }
}

TEST_F(CsvTrackerTest, DropsATruncatedRow) {
  for (const std::string torn : {"1000.5,3,11,los", "1000.5,3,11,\"a\nb", "1"}) {
    killed_run(path_);
    write_bytes(path_, read_bytes(path_) + torn);
    CsvTracker tracker(path_);

    tracker.start({.first_update = 10, .first_epoch = 2});
    log(tracker, 11, 3, {{"loss", 0.0}});

    EXPECT_EQ(updates(path_).size(), 11U) << torn;
    EXPECT_EQ(updates(path_).back(), "11") << torn;
  }
}

TEST_F(CsvTrackerTest, ATruncatedRowIsDroppedBeforeAnotherRunIsAppended) {
  write_bytes(path_, std::string(kHeader) + "1000.5,1,1,loss,1\n1000.5,1,2,lo");
  CsvTracker tracker(path_, {.append = true});

  tracker.start({});
  log(tracker, 1, 1, {{"loss", 1.0}});

  EXPECT_EQ(updates(path_), (Updates{"1", "1"}));
}

TEST_F(CsvTrackerTest, KeepsRunsBeforeTheResumedOne) {
  killed_run(path_);
  write_bytes(path_, read_bytes(path_) + "2000,1,3,loss,1\n2000,2,6,loss,1\n");
  CsvTracker tracker(path_, {.append = true});

  tracker.start({.first_update = 2});

  EXPECT_EQ(updates(path_).size(), 10U);
}

TEST_F(CsvTrackerTest, AResumedRunWithoutAFileStartsOne) {
  CsvTracker tracker(folder_ / "new" / "run.csv");

  tracker.start({.first_update = 4});

  EXPECT_EQ(read_bytes(folder_ / "new" / "run.csv"), kHeader);
}

TEST_F(CsvTrackerTest, RefusesAForeignFileWithoutChangingIt) {
  for (const std::string text : {"a,b\n1,2\n", "time,epoch,update,name,value\n1,x,2,loss,3\n",
                                 "time,epoch,update,name,value\nno comma\n", "notes"}) {
    write_bytes(path_, text);
    CsvTracker tracker(path_);

    EXPECT_ERROR(tracker.start({}), "run.csv\" is not a table that CsvTracker wrote");

    EXPECT_EQ(read_bytes(path_), text);
  }
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

#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

#include "linkboy/export.hpp"
#include "linkboy/tracking/tracker.hpp"
#include "linkboy/util/make.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

class LineFile;

struct CsvTrackerOptions {
  /// If true, a run that is not resumed appends to the file. If false, it replaces the file.
  bool append = false;

  LINKBOY_FIELDS(append);
};

/// Records scalars as a table of comma-separated values, with one row per scalar and the columns
/// `time` (seconds since 1970, UTC), `epoch`, `update`, `name` and `value`.
///
/// The table is in long format: a new metric adds rows, never columns. In pandas,
/// `pivot_table(index="update", columns="name", values="value")` converts it to wide format. Names
/// are quoted according to RFC 4180, and lines end with "\n". A name that a spreadsheet would read
/// as a formula, such as "=x", is preceded by an apostrophe. Numbers have the fewest digits that
/// restore the same double. Values that are not finite are written as `nan`, `inf` and `-inf`.
///
/// A row is in the file when `log_scalars` returns. Configuration, texts and histograms are not
/// recorded.
///
/// The file of an earlier run is replaced when the next run starts, not before. A run that resumes
/// from a training state keeps the rows up to that state. It drops later rows and any row that is
/// incomplete because the program was killed.
class LINKBOY_API CsvTracker : public Tracker {
 public:
  /// The argument types for `make<CsvTracker>(subject, {...})`.
  /// @{
  using Subject = std::filesystem::path;
  using Options = CsvTrackerOptions;
  /// @}

  /// Does not access the file before `start`.
  explicit CsvTracker(std::filesystem::path path, CsvTrackerOptions options = {});
  ~CsvTracker() override;

  /// Opens the file. Creates missing parent folders.
  /// @throws Error if the file cannot be written, if another run is writing it, or if a CsvTracker
  ///         did not write it; the file is unchanged in these cases.
  void start(const TrackedRun& run) override;
  /// @throws Error with the system's reason (a full disk, for example). Earlier rows are unchanged.
  void log_scalars(std::span<const TrackedScalar> scalars, const TrackedTime& time) override;
  void finish(std::string_view outcome, std::span<const TrackedScalar> last) override;

 private:
  CsvTrackerOptions options_;
  std::unique_ptr<LineFile> file_;
};
/// Makes a CsvTracker.
inline constexpr Maker<CsvTracker> csv_tracker{};

}  // namespace linkboy

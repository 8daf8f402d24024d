#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

#include "linkboy/export.hpp"
#include "linkboy/tracking/tracker.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

class LineFile;

struct CsvTrackerOptions {
  /// Whether a run that starts from update 0 is added to what the file holds, instead of replacing
  /// it.
  bool append = false;

  LINKBOY_FIELDS(append);
};

/// Records scalars as a table of comma-separated values: one row for each, with the columns
/// `time` (seconds since 1970, UTC), `epoch`, `update`, `name` and `value`.
///
/// The table is "long": a new metric is a new name, and never changes the columns. pandas makes it
/// "wide" by `pivot_table(index="update", columns="name", values="value")`. Names are quoted as RFC
/// 4180 has it; lines end with "\n". Numbers have the fewest digits that give the same double
/// again; `nan`, `inf` and `-inf` are not finite.
///
/// A row is in the file when `log_scalars` returns. Configuration, texts and histograms are not
/// recorded.
///
/// The file of an earlier run is replaced when the next one starts, not before. A run that resumes
/// from a training state keeps the rows up to there and drops later ones, as well as one that was
/// cut off when the program was killed.
class LINKBOY_API CsvTracker : public Tracker {
 public:
  /// What `make<CsvTracker>(subject, {...})` takes.
  /// @{
  using Subject = std::filesystem::path;
  using Options = CsvTrackerOptions;
  /// @}

  /// Touches nothing yet.
  explicit CsvTracker(std::filesystem::path path, CsvTrackerOptions options = {});
  ~CsvTracker() override;

  /// Makes parent folders. @throws Error if the file cannot be written, or holds anything but the
  /// table of a CsvTracker; it stays as it is then.
  void start(const TrackedRun& run) override;
  /// @throws Error with the system's reason (a full disk, say); the rows before stay as they are.
  void log_scalars(std::span<const TrackedScalar> scalars, const TrackedTime& time) override;
  void finish(std::string_view outcome, std::span<const TrackedScalar> last) override;

 private:
  CsvTrackerOptions options_;
  std::unique_ptr<LineFile> file_;
};

}  // namespace linkboy

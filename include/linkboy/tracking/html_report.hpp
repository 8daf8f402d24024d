#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/tracking/tracker.hpp"
#include "linkboy/util/make.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

struct HtmlReportOptions {
  /// The shortest time between two writes of the file by `flush`, in seconds. After a slow write,
  /// the time is longer: 20 times the duration of that write. If 0, every `flush` writes the file.
  /// Must not be negative.
  double seconds_between_writes = 10.0;

  LINKBOY_FIELDS(seconds_between_writes);
};

/// Writes a report on the run as a single HTML file. Any browser with JavaScript displays it,
/// without a network. It shows line charts of all metrics, the last, lowest and highest value of
/// each, the newest histogram of each name, texts, configuration and environment.
///
/// Metrics share a chart if their names differ only in words such as "train" and "eval". Values
/// that are not finite appear as marked gaps. Noisy lines have a moving average.
///
/// The file always contains a complete page. It is replaced at `start`, at `finish`, and at each
/// `flush` that is long enough after the last write (see HtmlReportOptions). Later records are lost
/// if the program is killed. The size of the file, the memory use of the report and the duration of
/// a write grow with the number of records (40 to 110 bytes for each value in the file). In a run
/// of millions of updates, do not log every update.
///
/// The page contains the lines that a JsonLinesTracker would write, with "\u003c" instead of "<". A
/// run that resumes from a training state reads them and drops those after that state. Any other
/// run replaces the old page when it starts. The file is locked from `start` to `finish`.
class LINKBOY_API HtmlReport : public Tracker {
 public:
  /// The argument types for `make<HtmlReport>(subject, {...})`.
  /// @{
  using Subject = std::filesystem::path;
  using Options = HtmlReportOptions;
  /// @}

  /// Does not access the file before `start`.
  /// @throws OptionError if `seconds_between_writes` is negative or NaN.
  explicit HtmlReport(std::filesystem::path path, HtmlReportOptions options = {});

  /// Writes the first page. Creates missing parent folders.
  /// @throws Error if the file cannot be written, if another run is writing it, or if an HtmlReport
  ///         did not write it; the file is unchanged in these cases.
  void start(const TrackedRun& run) override;
  void log_scalars(std::span<const TrackedScalar> scalars, const TrackedTime& time) override;
  void log_histogram(std::string_view name, const at::Tensor& values,
                     const TrackedTime& time) override;
  void log_text(std::string_view name, std::string_view text, const TrackedTime& time) override;
  /// @throws Error with the system's reason (a full disk, for example). The previous page remains.
  void flush() override;
  /// @throws The same errors as `flush`.
  void finish(std::string_view outcome, std::span<const TrackedScalar> last) override;

 protected:
  /// The clock for `seconds_between_writes`.
  virtual std::chrono::steady_clock::time_point now() const;

 private:
  bool read_page(std::string_view page, const TrackedRun& run);
  void write();

  std::filesystem::path path_;
  HtmlReportOptions options_;
  std::string run_;                                              // the line
  std::string lines_;                                            // scalars and texts
  std::vector<std::pair<std::string, std::string>> histograms_;  // newest line of each name
  std::string end_;                                              // empty while the run is active
  std::shared_ptr<void> lock_;                                   // on the file
  std::optional<std::chrono::steady_clock::time_point> last_write_;
  std::chrono::duration<double> pause_{};
};
/// Makes a HtmlReport.
inline constexpr Maker<HtmlReport> html_report{};

}  // namespace linkboy

#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "linkboy/export.hpp"
#include "linkboy/tracking/tracker.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

struct HtmlRecords;

struct HtmlReportOptions {
  /// The least time between two writes of the file by `flush`. A page that takes long to write is
  /// written more rarely: after 20 times as long as the write before took. 0 writes at each
  /// `flush`.
  double seconds_between_writes = 10.0;

  LINKBOY_FIELDS(seconds_between_writes);
};

/// A page about the run, in one HTML file that needs neither scripts nor a network: line charts of
/// all metrics, the last, lowest and highest value of each, the newest histogram of each name,
/// texts, configuration and environment.
///
/// Metrics whose names differ in "train", "eval" and the like alone share a chart. Values that are
/// not finite are gaps, and marked. Noisy lines get a moving average.
///
/// The file always holds a whole page: it is replaced at `start`, at a `flush` if the last write is
/// long enough ago, and at `finish`. Its size, the memory that the report takes and the time of a
/// write grow with the number of records (about 50 bytes each in the file): in a run of millions of
/// updates do not log every one.
///
/// The records are in the page, as JSON. A run that resumes from a training state reads them back
/// and drops those after it; any other run begins a new page when it starts, over the old one. The
/// file is locked from `start` to `finish`.
class LINKBOY_API HtmlReport : public Tracker {
 public:
  /// What `make<HtmlReport>(subject, {...})` takes.
  /// @{
  using Subject = std::filesystem::path;
  using Options = HtmlReportOptions;
  /// @}

  /// Touches nothing yet. @throws Error if `seconds_between_writes` is negative or NaN.
  explicit HtmlReport(std::filesystem::path path, HtmlReportOptions options = {});
  ~HtmlReport() override;

  /// Makes parent folders. @throws Error if the file cannot be written, is being written by another
  /// run, or holds anything but a report; it stays as it is then.
  void start(const TrackedRun& run) override;
  void log_scalars(std::span<const TrackedScalar> scalars, const TrackedTime& time) override;
  void log_histogram(std::string_view name, const at::Tensor& values,
                     const TrackedTime& time) override;
  void log_text(std::string_view name, std::string_view text, const TrackedTime& time) override;
  /// @throws Error with the system's reason (a full disk, say); the page before stays.
  void flush() override;
  /// @throws Error as `flush`.
  void finish(std::string_view outcome, std::span<const TrackedScalar> last) override;

 protected:
  /// The clock that `seconds_between_writes` is measured by.
  virtual std::chrono::steady_clock::time_point now() const;

 private:
  void write();

  std::filesystem::path path_;
  HtmlReportOptions options_;
  std::unique_ptr<HtmlRecords> records_;
  std::shared_ptr<void> lock_;  // on the file
  std::optional<std::chrono::steady_clock::time_point> last_write_;
  std::chrono::duration<double> pause_{};
};

}  // namespace linkboy

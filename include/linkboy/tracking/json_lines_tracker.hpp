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

struct JsonLinesTrackerOptions {
  /// If true, a run that is not resumed appends to the file. If false, it replaces the file.
  bool append = false;

  LINKBOY_FIELDS(append);
};

/// Records everything, one JSON object per line:
///
///     {"type":"run","name":..,"first_update":0,"first_epoch":0,"config":{..},"environment":{..}}
///     {"type":"scalars","time":..,"epoch":1,"update":10,"values":{"train_loss":0.5,..}}
///     {"type":"text","time":..,"epoch":1,"update":10,"name":..,"text":..}
///     {"type":"histogram","time":..,"epoch":1,"update":10,"name":..,"count":..,"non_finite":0,
///      "min":..,"max":..,"mean":..,"standard_deviation":..,"edges":[31 numbers],"counts":[30]}
///     {"type":"end","outcome":"finished","last":{"train_loss":0.5,..}}
///
/// Times are seconds since 1970, UTC. Numbers have enough digits to restore the same double. Values
/// that are not finite are written as the strings "NaN", "Infinity" and "-Infinity". Bytes that are
/// not UTF-8 become U+FFFD. A histogram has bins of equal width over the finite elements. Only the
/// last bin includes its upper edge. The standard deviation is that of the population. If there are
/// no finite elements, `edges` and `counts` are empty and the statistics are "NaN".
///
/// A line is in the file when the call that logs it returns.
///
/// The file of an earlier run is replaced when the next run starts, not before. A run that resumes
/// from a training state keeps the lines up to that state. It drops later lines, the "end" line,
/// and any line that is incomplete because the program was killed. It then adds a new "run" line.
class LINKBOY_API JsonLinesTracker : public Tracker {
 public:
  /// The argument types for `make<JsonLinesTracker>(subject, {...})`.
  /// @{
  using Subject = std::filesystem::path;
  using Options = JsonLinesTrackerOptions;
  /// @}

  /// Does not access the file before `start`.
  explicit JsonLinesTracker(std::filesystem::path path, JsonLinesTrackerOptions options = {});
  ~JsonLinesTracker() override;

  /// Opens the file and writes the "run" line. Creates missing parent folders.
  /// @throws Error if the file cannot be written, if another run is writing it, or if a
  ///         JsonLinesTracker did not write it; the file is unchanged in these cases.
  void start(const TrackedRun& run) override;
  /// This function and the following ones each write one line.
  /// @throws Error with the system's reason (a full disk, for example). Earlier lines are
  ///         unchanged.
  void log_scalars(std::span<const TrackedScalar> scalars, const TrackedTime& time) override;
  void log_histogram(std::string_view name, const at::Tensor& values,
                     const TrackedTime& time) override;
  void log_text(std::string_view name, std::string_view text, const TrackedTime& time) override;
  void finish(std::string_view outcome, std::span<const TrackedScalar> last) override;

 private:
  JsonLinesTrackerOptions options_;
  std::unique_ptr<LineFile> file_;
};
/// Makes a JsonLinesTracker.
inline constexpr Maker<JsonLinesTracker> json_lines_tracker{};

}  // namespace linkboy

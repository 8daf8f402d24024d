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

struct JsonLinesTrackerOptions {
  /// Whether a run that starts from update 0 is added to what the file holds, instead of replacing
  /// it.
  bool append = false;

  LINKBOY_FIELDS(append);
};

/// Records everything, as one JSON object a line:
///
///     {"type":"run","name":..,"first_update":0,"first_epoch":0,"config":{..},"environment":{..}}
///     {"type":"scalars","time":..,"epoch":1,"update":10,"values":{"train_loss":0.5,..}}
///     {"type":"text","time":..,"epoch":1,"update":10,"name":..,"text":..}
///     {"type":"histogram","time":..,"epoch":1,"update":10,"name":..,"count":..,"non_finite":0,
///      "min":..,"max":..,"mean":..,"standard_deviation":..,"edges":[31 numbers],"counts":[30]}
///     {"type":"end","outcome":"finished","last":{"train_loss":0.5,..}}
///
/// Times are seconds since 1970, UTC. Numbers give the same double again; what JSON has no number
/// for is the string "NaN", "Infinity" or "-Infinity". Bytes that are not UTF-8 become U+FFFD. A
/// histogram has equal bins over the finite elements, each without its upper edge but for the last;
/// the standard deviation is the population's. Without finite elements `edges` and `counts` are
/// empty and the statistics "NaN".
///
/// A line is in the file when the call that logs it returns.
///
/// The file of an earlier run is replaced when the next one starts, not before. A run that resumes
/// from a training state keeps the lines up to there and drops later ones and the "end", as well as
/// a line that was cut off when the program was killed; then it adds a "run" line of its own.
class LINKBOY_API JsonLinesTracker : public Tracker {
 public:
  /// What `make<JsonLinesTracker>(subject, {...})` takes.
  /// @{
  using Subject = std::filesystem::path;
  using Options = JsonLinesTrackerOptions;
  /// @}

  /// Touches nothing yet.
  explicit JsonLinesTracker(std::filesystem::path path, JsonLinesTrackerOptions options = {});
  ~JsonLinesTracker() override;

  /// Makes parent folders. @throws Error if the file cannot be written, or holds anything but what
  /// a JsonLinesTracker writes; it stays as it is then.
  void start(const TrackedRun& run) override;
  /// All that log @throws Error with the system's reason (a full disk, say); the lines before stay
  /// as they are.
  void log_scalars(std::span<const TrackedScalar> scalars, const TrackedTime& time) override;
  void log_histogram(std::string_view name, const at::Tensor& values,
                     const TrackedTime& time) override;
  void log_text(std::string_view name, std::string_view text, const TrackedTime& time) override;
  void finish(std::string_view outcome, std::span<const TrackedScalar> last) override;

 private:
  JsonLinesTrackerOptions options_;
  std::unique_ptr<LineFile> file_;
};

}  // namespace linkboy

#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/extend/async_scalar.hpp"
#include "linkboy/extend/status_line.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

class LossAverage;

struct ProgressBarOptions {
  /// How the progress is shown.
  enum class Mode { automatic, bar, plain, none };
  friend LINKBOY_ENUM_NAMES(Mode, automatic, bar, plain, none);
  /// How the progress is shown. `automatic` draws a bar if the stream is a terminal that supports
  /// it (TERM is not "dumb"), and otherwise writes plain lines.
  Mode mode = Mode::automatic;

  /// The stream to write to. Not owned; must outlive the callback.
  std::FILE* stream = stderr;

  /// Minimum time between two redraws of the bar.
  std::chrono::milliseconds bar_interval{100};
  /// Minimum time between two plain lines.
  std::chrono::milliseconds plain_interval{10'000};

  /// If true, also shows the values that the run's MetricCallbacks have measured so far in the
  /// epoch, from this process's samples only; in training, only those with `measure_training`. Each
  /// redraw then computes the metrics and waits for the device. At the end of the epoch, shows the
  /// values of all processes.
  bool show_metrics = false;

  LINKBOY_FIELDS(mode, bar_interval, plain_interval, show_metrics);
};

/// Shows the progress of an epoch: percentage, batches, elapsed and remaining time, samples per
/// second, mean loss so far and learning rate. A narrow terminal shows only some of these. Reads
/// the loss only when it draws. Writes only on the main process. Uses colours on a terminal,
/// unless NO_COLOR is set.
///
/// An evaluation within an epoch has its own bar, and its time is not included in the epoch's bar.
/// Lines from Trainer::print appear above the bar.
class LINKBOY_API ProgressBar : public Callback {
 public:
  /// The options type for `make<ProgressBar>({...})`.
  using Options = ProgressBarOptions;

  /// Writes to `options.stream`, which must outlive the callback.
  explicit ProgressBar(ProgressBarOptions options = {});

  void on_train_epoch_start(Trainer& trainer) override;
  void on_train_step_end(Trainer& trainer, const Batch&, const StepOutput&) override {
    advance(trainer);
  }
  void on_train_epoch_end(Trainer& trainer) override { close(trainer); }
  void on_eval_epoch_start(Trainer& trainer) override;
  void on_eval_step_end(Trainer& trainer, const Batch&, const StepOutput&) override {
    advance(trainer);
  }
  void on_eval_epoch_end(Trainer& trainer) override { close(trainer); }
  void on_eval_epoch_interrupted(Trainer&) override { leave(); }
  void on_stop_training_error(Trainer&, const StopTraining&) override { end_all(); }
  void on_exception(Trainer&, std::exception_ptr) override { end_all(); }

 private:
  using Clock = std::chrono::steady_clock;

  /// The state of one bar: the training part or an evaluation of an epoch.
  struct Phase {
    std::string title;
    bool is_training = false;
    int64_t num_batches = 0;
    int64_t first_batch = 0;
    int64_t first_sample = 0;
    Clock::time_point start{};
    Clock::time_point next_drawing{};
    int64_t batches_done = first_batch;
    /// The sum of losses that is being copied from the device, and its number of samples.
    std::optional<AsyncScalar> total{};
    int64_t total_count = 0;
  };

  /// A piece of the text. If there is not enough room, pieces with the highest rank are removed
  /// first.
  struct Part {
    std::string text;
    int rank;
  };
  struct Parts {
    std::string head;
    std::string counts;
    std::vector<Part> details;

    std::string tail() const;
  };

  void open(Trainer& trainer, Phase phase);
  void advance(Trainer& trainer);
  void draw(Trainer& trainer, double loss);
  void close(Trainer& trainer);
  void leave();
  void end_all();
  const LossAverage& tracker_of(Trainer& trainer) const;
  Parts describe(Trainer& trainer, double seconds, double loss) const;
  std::string fitted_bar(Parts parts) const;
  Clock::duration interval() const;

  ProgressBarOptions options_;
  std::vector<Phase> phases_;         // the innermost phase is the last one
  std::unique_ptr<StatusLine> line_;  // only for Mode::bar
  bool has_color_ = false;
};
/// Makes a ProgressBar.
inline constexpr Maker<ProgressBar> progress_bar{};

}  // namespace linkboy

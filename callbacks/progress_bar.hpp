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

namespace linkboy {

class LossAverage;

struct ProgressBarOptions {
  /// `automatic` draws a bar on a terminal that can (TERM is not "dumb") and writes plain lines
  /// elsewhere.
  enum class Mode { automatic, bar, plain, none };
  friend LINKBOY_ENUM_NAMES(Mode, automatic, bar, plain, none);
  /// How progress is shown.
  Mode mode = Mode::automatic;

  /// Not owned; must outlive the callback.
  std::FILE* stream = stderr;

  /// Shortest time between two drawings of the bar.
  std::chrono::milliseconds bar_interval{100};
  /// Shortest time between two plain lines.
  std::chrono::milliseconds plain_interval{10'000};

  /// Shows what the run's MetricCallbacks have measured so far in the epoch, of this process's
  /// samples alone; in training if they `measure_training`. Each drawing then computes the metrics,
  /// and waits for the device.
  bool show_metrics = false;

  LINKBOY_FIELDS(mode, bar_interval, plain_interval, show_metrics);
};

/// Shows how far an epoch is: share, batches, time and time left, samples per second, mean loss so
/// far and learning rate; on a narrow terminal less of it. Reads the loss only when it draws.
/// Silent on all processes but the first of a node. Coloured on a terminal, unless NO_COLOR is set.
///
/// An evaluation in the middle of an epoch has its own bar, and its time is not the epoch's. What
/// Trainer::print writes goes above the bar.
class LINKBOY_API ProgressBar : public Callback {
 public:
  /// What `make<ProgressBar>({...})` takes.
  using Options = ProgressBarOptions;

  /// Writes to `options.stream`, which must outlive it.
  explicit ProgressBar(ProgressBarOptions options = {});

  void on_train_epoch_start(Trainer& trainer) override;
  void on_train_step_end(Trainer& trainer, const Batch& batch, const StepOutput& output) override;
  void on_train_epoch_end(Trainer& trainer) override;
  void on_eval_epoch_start(Trainer& trainer) override;
  void on_eval_step_end(Trainer& trainer, const Batch& batch, const StepOutput& output) override;
  void on_eval_epoch_end(Trainer& trainer) override;
  void on_stop_training_error(Trainer& trainer, const StopTraining& stop) override;
  void on_exception(Trainer& trainer, std::exception_ptr exception) override;

 private:
  using Clock = std::chrono::steady_clock;

  /// One bar: an epoch's training or evaluation.
  struct Phase {
    std::string title;
    int64_t num_batches = 0;
    int64_t first_batch = 0;
    int64_t batches_done = 0;
    int64_t first_sample = 0;
    Clock::time_point start;
    Clock::time_point next_drawing;
    /// The sum of losses on its way from the device, and of how many samples.
    std::optional<AsyncScalar> total{};
    int64_t total_count = 0;
    bool is_training = false;
  };

  /// A piece of the text. Where there is no room, those with the highest rank go first.
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

  void open(Trainer& trainer, std::string title, int64_t num_batches, bool is_training);
  void advance(Trainer& trainer);
  void draw(Trainer& trainer, double loss);
  void close(Trainer& trainer);
  void end_all();
  const LossAverage& tracker_of(Trainer& trainer) const;
  Parts describe(Trainer& trainer, double seconds, double loss) const;
  std::string fitted_bar(Parts parts) const;
  Clock::duration interval() const;

  ProgressBarOptions options_;
  std::vector<Phase> phases_;         // the innermost last
  std::unique_ptr<StatusLine> line_;  // of a bar
  bool has_color_ = false;
};

}  // namespace linkboy

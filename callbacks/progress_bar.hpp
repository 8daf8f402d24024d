#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "linkboy/callback.hpp"
#include "linkboy/deferred_value.hpp"

namespace linkboy {

class LossTracker;

struct ProgressBarOptions {
  /// `automatic` draws a bar on a terminal and writes plain lines elsewhere.
  enum class Mode { automatic, bar, plain, none };
  Mode mode = Mode::automatic;

  /// Not owned; must outlive the callback.
  std::FILE* stream = stderr;

  /// Shortest time between two drawings of the bar, two plain lines.
  std::chrono::milliseconds bar_interval{100};
  std::chrono::milliseconds plain_interval{10'000};
};

/// Shows how far an epoch is: share, batches, time and time left, samples per second, mean loss so
/// far and learning rate. Reads the loss only when it draws. Silent on all processes but the first
/// of a node.
class ProgressBar : public Callback {
 public:
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
    std::optional<DeferredValue> total{};
    int64_t total_count = 0;
    bool is_open = false;
    bool is_training = false;
  };

  void open(Trainer& trainer, std::string title, int64_t num_batches, bool is_training);
  void advance(Trainer& trainer);
  void draw(Trainer& trainer, double loss);
  void close(Trainer& trainer);
  void end_line();
  const LossTracker& tracker_of(Trainer& trainer) const;
  std::string describe(Trainer& trainer, double seconds, double loss) const;
  std::string fitted_bar(const std::string& text) const;

  ProgressBarOptions options_;
  Phase phase_;
  bool is_bar_ = false;
};

}  // namespace linkboy

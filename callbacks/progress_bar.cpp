// Draws the progress of an epoch whenever a loss has arrived from the device. An evaluation within
// an epoch has a separate bar.

#include "linkboy/callbacks/progress_bar.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "linkboy/callbacks/metric_callback.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {
namespace {

using Mode = ProgressBarOptions::Mode;

constexpr int kRankOfCounts = 3;
constexpr const char* kGreen = "\x1b[32m";
constexpr const char* kNoColor = "\x1b[0m";

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(std::max(seconds, 0.0)));
  if (whole < 3600) return fmt::format("{:02}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool can_draw_bar(std::FILE* stream) {
  return ::isatty(::fileno(stream)) != 0 && environment("TERM") != "dumb";
}

/// Returns the current values of this process. If `is_whole` and the epoch's values are in the
/// history, returns those, which are computed over all processes.
std::vector<std::pair<std::string, double>> metrics_of(Trainer& trainer, bool is_whole) {
  std::vector<std::pair<std::string, double>> values;
  const RunHistory& history = trainer.run_history();
  for (const auto& callback : trainer.callback_handler().callbacks()) {
    const auto* measuring = dynamic_cast<const MetricCallback*>(callback.get());
    if (measuring == nullptr) continue;
    auto so_far = measuring->values_so_far();
    if (so_far.empty() && is_whole) {
      for (const auto& [name, metric] : measuring->metrics().metrics()) {
        const std::string recorded = trainer.run().metric_name(name);
        if (history.num_metric_values(recorded) == 0) continue;
        so_far.emplace_back(name, history.get_latest_metric(recorded));
      }
    }
    values.insert(values.end(), so_far.begin(), so_far.end());
  }
  return values;
}

}  // namespace

ProgressBar::ProgressBar(ProgressBarOptions options) : options_(options) {
  if (options_.mode == Mode::automatic) {
    options_.mode = can_draw_bar(options_.stream) ? Mode::bar : Mode::plain;
  }
  if (options_.mode == Mode::bar) line_ = std::make_unique<StatusLine>(options_.stream);
  has_color_ = can_draw_bar(options_.stream) && environment("NO_COLOR").empty();
}

void ProgressBar::on_train_epoch_start(Trainer& trainer) {
  // `max_num_updates` may end the run within the epoch. If an update is skipped, more batches are
  // needed; `advance` then raises the number.
  const Run& run = trainer.run();
  const RunConfig& config = run.config();
  const int64_t num_updates = std::max<int64_t>(config.max_num_updates - trainer.num_updates(), 0);
  int64_t num_batches = run.train_dataloader()->size();
  if (num_updates < num_batches) {
    num_batches =
        std::min(num_batches, run.micro_step() + num_updates * config.gradient_accumulation_steps);
  }
  // A resumed epoch starts in the middle; its speed is measured from there.
  open(trainer, {.title = fmt::format("epoch {}", trainer.run_history().current_epoch()),
                 .is_training = true,
                 .num_batches = num_batches,
                 .first_batch = run.micro_step(),
                 .first_sample = run.train_loss_average().count()});
}

void ProgressBar::on_eval_epoch_start(Trainer& trainer) {
  // The prefix of the metrics, such as "fold3_ema_model_eval_", without its last underscore.
  std::string title = trainer.run().metric_name("");
  title.pop_back();
  open(trainer, {.title = title, .num_batches = trainer.run().eval_dataloader()->size()});
}

ProgressBar::Clock::duration ProgressBar::interval() const {
  return line_ ? options_.bar_interval : options_.plain_interval;
}

void ProgressBar::open(Trainer& trainer, Phase phase) {
  if (options_.mode == Mode::none || !trainer.accelerator().is_main_process()) return;
  phase.start = Clock::now();
  phase.next_drawing = phase.start + interval();
  phases_.push_back(std::move(phase));
}

void ProgressBar::advance(Trainer& trainer) {
  if (phases_.empty()) return;
  Phase& phase = phases_.back();
  phase.num_batches = std::max(phase.num_batches, ++phase.batches_done);
  if (Clock::now() < phase.next_drawing) return;
  // Requests the loss when a redraw is due, and draws when the loss has arrived, so that nothing
  // waits for it.
  if (!phase.total) {
    const LossAverage& tracker = tracker_of(trainer);
    phase.total = tracker.total_async();
    phase.total_count = tracker.count();
  }
  if (!phase.total->is_ready()) return;
  draw(trainer, phase.total->value() / static_cast<double>(phase.total_count));
  phase.total.reset();
}

const LossAverage& ProgressBar::tracker_of(Trainer& trainer) const {
  return phases_.back().is_training ? trainer.run().train_loss_average()
                                    : trainer.run().eval_loss_average();
}

void ProgressBar::draw(Trainer& trainer, double loss) {
  Phase& phase = phases_.back();
  const auto now = Clock::now();
  const auto parts =
      describe(trainer, std::chrono::duration<double>(now - phase.start).count(), loss);
  if (line_) {
    line_->show(fitted_bar(parts));
  } else {
    // Unlike fmt::print, fputs does not throw if the stream is closed or its disk is full.
    std::fputs(fmt::format("{}{}\n", parts.head, parts.tail()).c_str(), options_.stream);
    std::fflush(options_.stream);
  }
  phase.next_drawing = now + interval();
}

void ProgressBar::close(Trainer& trainer) {
  if (phases_.empty()) return;
  draw(trainer, tracker_of(trainer).average());
  if (line_) line_->keep();
  leave();
}

void ProgressBar::leave() {
  if (phases_.empty()) return;
  const auto end = Clock::now();
  const auto duration = end - phases_.back().start;
  phases_.pop_back();
  // The outer bars did not advance during this time.
  for (Phase& outer : phases_) {
    outer.start += duration;
    outer.next_drawing = end + interval();
  }
}

void ProgressBar::end_all() {
  if (line_) line_->keep();
  phases_.clear();
}

ProgressBar::Parts ProgressBar::describe(Trainer& trainer, double seconds, double loss) const {
  const Phase& phase = phases_.back();
  const LossAverage& tracker = tracker_of(trainer);
  const auto batches = static_cast<double>(phase.batches_done - phase.first_batch);
  const auto left = static_cast<double>(phase.num_batches - phase.batches_done);
  // Estimates the samples of all processes, like the rate that TrackRun records.
  const auto num_samples = static_cast<double>((tracker.count() - phase.first_sample) *
                                               trainer.accelerator().num_processes());
  const double rate = seconds > 0.0 ? num_samples / seconds : 0.0;
  const int64_t percent =
      phase.num_batches > 0 ? 100 * phase.batches_done / phase.num_batches : 100;
  Parts parts;
  parts.head = fmt::format("{} {:3}%", phase.title, percent);
  parts.counts = fmt::format(" {}/{}", phase.batches_done, phase.num_batches);
  parts.details = {{fmt::format("{}<{}", clock_text(seconds),
                                batches > 0 ? clock_text(seconds / batches * left) : "?"),
                    2},
                   {fmt::format("{:.0f} samples/s", rate), 4},
                   {fmt::format("loss {:.4f}", loss), 1}};
  if (options_.show_metrics) {
    for (const auto& [name, value] : metrics_of(trainer, phase.batches_done == phase.num_batches)) {
      parts.details.push_back({fmt::format("{} {:.4f}", name, value), 1});
    }
  }
  if (phase.is_training && trainer.optimizer()) {
    const double lr = get_param_group_field(*trainer.optimizer(), ParamGroupField::lr).front();
    parts.details.push_back({fmt::format("lr {:.3g}", lr), 5});
  }
  return parts;
}

std::string ProgressBar::Parts::tail() const {
  std::string text;
  for (const Part& part : details) text += (text.empty() ? " [" : ", ") + part.text;
  return counts + (text.empty() ? text : text + "]");
}

std::string ProgressBar::fitted_bar(Parts parts) const {
  // Leaves the last column free, because some terminals wrap to the next line when it is used.
  const std::size_t width = line_->width() - 1;
  for (int rank = 5; rank > 0 && parts.head.size() + parts.tail().size() > width; --rank) {
    if (rank == kRankOfCounts) parts.counts.clear();
    std::erase_if(parts.details, [rank](const Part& part) { return part.rank == rank; });
  }
  const std::string tail = parts.tail();
  constexpr std::size_t kLeastCells = 5;
  constexpr std::size_t kMostCells = 40;
  constexpr std::size_t kFrame = 3;  // a space and two bars
  const std::size_t used = parts.head.size() + tail.size() + kFrame;
  if (used + kLeastCells > width) return (parts.head + tail).substr(0, width);
  const std::size_t cells = std::min(width - used, kMostCells);
  const Phase& phase = phases_.back();
  const std::size_t filled =
      phase.num_batches > 0 ? cells * phase.batches_done / phase.num_batches : cells;
  return fmt::format("{} |{}{}{}{}|{}", parts.head, has_color_ ? kGreen : "",
                     std::string(filled, '#'), has_color_ ? kNoColor : "",
                     std::string(cells - filled, ' '), tail);
}

}  // namespace linkboy

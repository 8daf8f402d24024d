#include "linkboy/callbacks/progress_bar.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "linkboy/trainer.hpp"

namespace linkboy {
namespace {

using Mode = ProgressBarOptions::Mode;

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(std::max(seconds, 0.0)));
  if (whole < 3600) return fmt::format("{:02}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::size_t terminal_width(std::FILE* stream) {
  winsize size{};
  const bool is_known = ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? size.ws_col : 80;
}

}  // namespace

ProgressBar::ProgressBar(ProgressBarOptions options) : options_(options) {
  if (options_.mode == Mode::automatic) {
    options_.mode = isatty(fileno(options_.stream)) != 0 ? Mode::bar : Mode::plain;
  }
  is_bar_ = options_.mode == Mode::bar;
}

void ProgressBar::on_train_epoch_start(Trainer& trainer) {
  open(trainer, fmt::format("epoch {}", trainer.run_history().current_epoch()),
       trainer.train_dataloader()->size(), /*is_training=*/true);
}

void ProgressBar::on_train_step_end(Trainer& trainer, const Batch&, const StepOutput&) {
  advance(trainer);
}

void ProgressBar::on_train_epoch_end(Trainer& trainer) { close(trainer); }

void ProgressBar::on_eval_epoch_start(Trainer& trainer) {
  open(trainer, "eval", trainer.eval_dataloader()->size(), /*is_training=*/false);
}

void ProgressBar::on_eval_step_end(Trainer& trainer, const Batch&, const StepOutput&) {
  advance(trainer);
}

void ProgressBar::on_eval_epoch_end(Trainer& trainer) { close(trainer); }

void ProgressBar::on_stop_training_error(Trainer&, const StopTraining&) { end_line(); }

void ProgressBar::on_exception(Trainer&, std::exception_ptr) { end_line(); }

void ProgressBar::open(Trainer& trainer, std::string title, int64_t num_batches, bool is_training) {
  phase_ = {};
  if (options_.mode == Mode::none || !trainer.accelerator().is_local_main_process()) return;
  phase_.title = std::move(title);
  phase_.num_batches = num_batches;
  phase_.is_training = is_training;
  if (is_training) {
    // A resumed epoch starts in its middle; its speed counts from there.
    phase_.first_batch = phase_.batches_done = trainer.micro_step();
    phase_.first_sample = trainer.train_loss_tracker().count();
  }
  phase_.start = Clock::now();
  phase_.next_drawing = phase_.start + (is_bar_ ? options_.bar_interval : options_.plain_interval);
  phase_.is_open = true;
}

void ProgressBar::advance(Trainer& trainer) {
  if (!phase_.is_open) return;
  ++phase_.batches_done;
  if (Clock::now() < phase_.next_drawing) return;
  // The loss is asked for when a drawing is due, and drawn when it is there: nobody waits for it.
  if (!phase_.total) {
    const LossTracker& tracker = tracker_of(trainer);
    phase_.total = tracker.total_later();
    phase_.total_count = tracker.count();
  }
  if (!phase_.total->is_ready()) return;
  draw(trainer, phase_.total->value() / static_cast<double>(phase_.total_count));
  phase_.total.reset();
}

const LossTracker& ProgressBar::tracker_of(Trainer& trainer) const {
  return phase_.is_training ? trainer.train_loss_tracker() : trainer.eval_loss_tracker();
}

void ProgressBar::draw(Trainer& trainer, double loss) {
  const auto now = Clock::now();
  const std::string text =
      describe(trainer, std::chrono::duration<double>(now - phase_.start).count(), loss);
  if (is_bar_) {
    fmt::print(options_.stream, "\r{}", fitted_bar(text));
  } else {
    fmt::print(options_.stream, "{}\n", text);
  }
  std::fflush(options_.stream);
  phase_.next_drawing = now + (is_bar_ ? options_.bar_interval : options_.plain_interval);
}

void ProgressBar::close(Trainer& trainer) {
  if (!phase_.is_open) return;
  draw(trainer, tracker_of(trainer).average());
  end_line();
}

void ProgressBar::end_line() {
  if (phase_.is_open && is_bar_) fmt::print(options_.stream, "\n");
  std::fflush(options_.stream);
  phase_.is_open = false;
}

std::string ProgressBar::describe(Trainer& trainer, double seconds, double loss) const {
  const LossTracker& tracker = tracker_of(trainer);
  const double batches = static_cast<double>(phase_.batches_done - phase_.first_batch);
  const double left = static_cast<double>(phase_.num_batches - phase_.batches_done);
  const double rate =
      seconds > 0.0 ? static_cast<double>(tracker.count() - phase_.first_sample) / seconds : 0.0;
  std::string text =
      fmt::format("{} {:3}% {}/{} [{}<{}, {:.0f} samples/s, loss {:.4f}", phase_.title,
                  phase_.num_batches > 0 ? 100 * phase_.batches_done / phase_.num_batches : 100,
                  phase_.batches_done, phase_.num_batches, clock_text(seconds),
                  batches > 0 ? clock_text(seconds / batches * left) : "?", rate, loss);
  if (phase_.is_training && trainer.optimizer()) {
    text += fmt::format(", lr {:.3g}",
                        get_param_group_field(*trainer.optimizer(), ParamGroupField::lr).front());
  }
  return text + "]";
}

std::string ProgressBar::fitted_bar(const std::string& text) const {
  // The bar goes between the percentage and the counts; a narrow terminal gets the text alone.
  const std::size_t width = terminal_width(options_.stream) - 1;
  const std::size_t place = text.find('%') + 1;
  if (text.size() + 8 > width) return fmt::format("{:<{}}", text.substr(0, width), width);
  const std::size_t cells = std::min<std::size_t>(width - text.size() - 3, 40);
  const std::size_t filled =
      phase_.num_batches > 0 ? cells * phase_.batches_done / phase_.num_batches : cells;
  const std::string bar =
      fmt::format(" |{}{}|", std::string(filled, '#'), std::string(cells - filled, ' '));
  return fmt::format("{:<{}}", text.substr(0, place) + bar + text.substr(place), width);
}

}  // namespace linkboy

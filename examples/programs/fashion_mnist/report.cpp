#include "report.hpp"

#include <ATen/ATen.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include <linkboy/accelerator/main_process.hpp>
#include <linkboy/checkpoint/checkpoint.hpp>
#include <linkboy/error.hpp>
#include <linkboy/trainer.hpp>

namespace fashion_mnist {

using Json = nlohmann::ordered_json;

Report::Report(const ReportOptions& options, bool append)
    : path_(options.path.value()), with_updates_(options.with_updates), append_(append) {}

namespace {

/// Returns the size of the file without an incomplete last line, which a killed run may have left.
int64_t size_of_whole_lines(const std::filesystem::path& path) {
  int64_t size = 0;
  std::ifstream file(path, std::ios::binary);
  for (std::string line; std::getline(file, line) && !file.eof();) {
    size += static_cast<int64_t>(line.size()) + 1;
  }
  return size;
}

double mean_over_ranks(linkboy::Trainer& trainer, const linkboy::LossAverage& tracker) {
  const auto count = static_cast<double>(tracker.count());
  const at::Tensor sums = trainer.accelerator().reduce(
      at::tensor({tracker.total(), count}, at::kDouble), linkboy::ReduceOp::sum);
  return sums[0].item<double>() / sums[1].item<double>();
}

}  // namespace

void Report::on_training_run_claim(linkboy::Trainer& trainer) {
  const std::string failure = linkboy::failure_on_main_process(trainer.accelerator(), [&] {
    // A terminal or a pipe can have several writers and needs no lock.
    if (!trainer.accelerator().is_main_process() || std::filesystem::is_other(path_)) return;
    if (!lock_) lock_ = linkboy::lock_output_file(path_);
  });
  LINKBOY_CHECK(failure.empty(), failure);
}

/// Opens the file only now, so that a run that cannot start does not change the file of the run in
/// progress.
void Report::on_training_run_start(linkboy::Trainer& trainer) {
  const std::string failure = linkboy::failure_on_main_process(trainer.accelerator(), [&] {
    if (trainer.accelerator().is_main_process()) open();
  });
  LINKBOY_CHECK(failure.empty(), failure);
}

void Report::open() {
  const auto saved_size = std::exchange(saved_size_, std::nullopt);
  file_.open(path_, std::ios::app);
  LINKBOY_CHECK(file_, "cannot write the report ", path_, ": ", std::strerror(errno),
                ". Name another file with --report.");
  if (!std::filesystem::is_regular_file(path_)) return;
  size_ = append_ ? size_of_whole_lines(path_) : 0;
  // The resumed run repeats the updates after the training state, so their lines are removed.
  if (saved_size && *saved_size <= size_) size_ = *saved_size;
  std::filesystem::resize_file(path_, static_cast<std::uintmax_t>(size_));
}

linkboy::StateDict Report::state_dict() const { return {{"size", size_}}; }

void Report::load_state_dict(const linkboy::StateDict& state) {
  saved_size_ = state.get_int("size");
}

void Report::on_train_epoch_start(linkboy::Trainer&) {
  update_loss_.reset();
  num_epoch_samples_ = 0;
  epoch_start_ = std::chrono::steady_clock::now();
}

void Report::on_train_step_end(linkboy::Trainer& trainer, const linkboy::Batch&,
                               const linkboy::StepOutput& output) {
  num_epoch_samples_ += output.batch_size;
  // Reads the value here, because the scheduler sets the next one before `on_train_update_end`.
  lr_ = linkboy::get_param_group_field(*trainer.optimizer(), linkboy::ParamGroupField::lr);
  if (with_updates_) update_loss_.update(output.loss, output.batch_size);
}

void Report::on_train_update_end(linkboy::Trainer& trainer) {
  if (!with_updates_) return;
  const at::Tensor& norm = trainer.run().gradient_norm();
  write_line({{"event", "update"},
              {"update", trainer.num_updates()},
              {"loss", mean_over_ranks(trainer, update_loss_)},
              {"lr", lr_},
              {"grad_norm", norm.defined() ? Json(norm.item<double>()) : Json()}},
             &trainer);
  update_loss_.reset();
}

void Report::on_train_epoch_end(linkboy::Trainer& trainer) {
  // The epoch's mean loss has been read already, so the device has finished its work.
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - epoch_start_;
  const int64_t num_samples = num_epoch_samples_ * trainer.accelerator().num_processes();
  samples_per_second_ = static_cast<double>(num_samples) / time.count();
}

void Report::on_training_run_epoch_end(linkboy::Trainer& trainer) {
  const linkboy::RunHistory& history = trainer.run_history();
  write_line({{"event", "epoch"},
              {"epoch", history.current_epoch()},
              {"updates", trainer.num_updates()},
              {"train_loss_epoch", history.get_latest_metric("train_loss_epoch")},
              {"eval_loss_epoch", history.get_latest_metric("eval_loss_epoch")},
              {"eval_accuracy", history.get_latest_metric("eval_accuracy")},
              {"lr", lr_},
              {"samples_per_second", samples_per_second_}},
             &trainer);
}

void Report::end(const linkboy::cli::RunResult& result) {
  const auto accuracy = result.test_metrics.find("eval_accuracy");
  const bool is_tested = accuracy != result.test_metrics.end();
  // A signal may have stopped the test.
  const bool is_stopped = result.training.reason != linkboy::StopReason::nan && !is_tested;
  const auto reason = is_stopped ? linkboy::StopReason::stop_request : result.training.reason;
  write_line({{"event", "end"},
              {"reason", std::string(linkboy::to_string(reason))},
              {"test_accuracy", is_tested ? Json(accuracy->second) : Json()}});
  LINKBOY_CHECK(is_complete_, "the report is not complete: a line could not be written to ", path_,
                ". Free some disk space, or name another file with --report.");
}

void Report::write_line(const Json& event, linkboy::Trainer* trainer) {
  if (!is_complete_ || !file_.is_open()) return;  // open on the main process only
  const std::string line = event.dump() + '\n';
  file_ << line << std::flush;
  is_complete_ = file_.good();
  if (is_complete_) {
    size_ += static_cast<int64_t>(line.size());
  } else if (trainer != nullptr) {
    trainer->print(c10::str("ERROR: cannot write to the report ", path_, ": ", std::strerror(errno),
                            ". The run continues without it."));
  }
}

}  // namespace fashion_mnist

#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include <linkboy/callback.hpp>
#include <linkboy/cli/run.hpp>
#include <linkboy/extend/loss_average.hpp>

namespace fashion_mnist {

struct ReportOptions {
  std::optional<std::filesystem::path> path;
  bool with_updates = false;
};

/// Writes the events of a training run to a file, one JSON object per line:
///
///     {"event":"update","update":1,"loss":2.31,"lr":[0.001],"grad_norm":1.7}
///     {"event":"epoch","epoch":1,"updates":469,"train_loss_epoch":...,"eval_loss_epoch":...,
///      "eval_accuracy":...,"lr":[...],"samples_per_second":...}
///     {"event":"end","reason":"finished","test_accuracy":0.92}
///
/// Only the main process writes the file; the values cover all processes. `loss` is the mean over
/// the samples of the update. `lr` contains one value per param group, which the update (or the
/// epoch's last update) used. `grad_norm` is the 2-norm of the gradients before they were clipped;
/// it is null unless the run clips by norm. Numbers read back as exactly the same doubles. Unknown
/// and non-finite values are null. Each line is passed to the operating system before the run
/// continues. If a line cannot be written, prints an error and writes no more lines.
///
/// @note If updates are reported, waits for a CUDA device after each of them. Place it after the
///       callbacks that record metrics.
class Report : public linkboy::Callback {
 public:
  /// @param append  If true, keeps the file's content, for a resumed run: the lines that were
  ///        written before the training state or, without a training state, all complete lines. If
  ///        false, empties the file.
  explicit Report(const ReportOptions& options, bool append = false);

  /// @throws linkboy::Error if another run is writing the file.
  void on_training_run_claim(linkboy::Trainer& trainer) override;
  /// @throws linkboy::Error if the file cannot be opened.
  void on_training_run_start(linkboy::Trainer& trainer) override;
  void on_train_epoch_start(linkboy::Trainer& trainer) override;
  void on_train_step_end(linkboy::Trainer& trainer, const linkboy::Batch& batch,
                         const linkboy::StepOutput& output) override;
  void on_train_update_end(linkboy::Trainer& trainer) override;
  void on_train_epoch_end(linkboy::Trainer& trainer) override;
  void on_training_run_epoch_end(linkboy::Trainer& trainer) override;

  linkboy::StateDict state_dict() const override;
  void load_state_dict(const linkboy::StateDict& state) override;

  /// Writes the last line.
  /// @throws linkboy::Error if this or an earlier line could not be written. Earlier failures did
  ///         not stop the run.
  void end(const linkboy::cli::RunResult& result);

 private:
  void open();
  void write_line(const nlohmann::ordered_json& event, linkboy::Trainer* trainer = nullptr);

  std::filesystem::path path_;
  std::shared_ptr<void> lock_;  // held until destruction: `end` writes after the run
  std::ofstream file_;
  bool with_updates_;
  bool append_;
  bool is_complete_ = true;
  int64_t size_ = 0;  // bytes of complete lines
  std::optional<int64_t> saved_size_;
  std::vector<double> lr_;
  linkboy::LossAverage update_loss_;
  std::chrono::steady_clock::time_point epoch_start_;
  int64_t num_epoch_samples_ = 0;
  double samples_per_second_ = 0.0;
};

}  // namespace fashion_mnist

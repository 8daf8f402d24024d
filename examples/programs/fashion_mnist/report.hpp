#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <linkboy/callback.hpp>
#include <linkboy/cli/run.hpp>
#include <linkboy/extend/loss_average.hpp>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

namespace fashion_mnist {

struct ReportOptions {
  std::optional<std::filesystem::path> path;
  bool with_updates = false;
};

/// Writes what happens in a training run to a file, one JSON object a line:
///
///     {"event":"update","update":1,"loss":2.31,"lr":[0.001],"grad_norm":1.7}
///     {"event":"epoch","epoch":1,"updates":469,"train_loss_epoch":...,"eval_loss_epoch":...,
///      "eval_accuracy":...,"lr":[...],"samples_per_second":...}
///     {"event":"end","reason":"finished","test_accuracy":0.92}
///
/// One of several processes has the file; its contents are of all of them. `loss` is the mean over
/// the samples of the update; `lr` has the value of each param group that
/// the (epoch's last) update used; `grad_norm` is the 2-norm before it was clipped to a norm, null
/// if the run does not clip.
/// Numbers read back as the very same doubles; what is unknown or no finite number is null. Each
/// line is handed to the system before the run continues. If a line cannot be written, an error is
/// printed, and no later line is written.
///
/// @note With updates, waits for a CUDA device after each of them. Belongs after the callbacks that
///       record metrics.
class Report : public linkboy::Callback {
 public:
  /// @param append  Keeps what the file has, for a run that is resumed: up to the lines that its
  ///                training state knows of, or, without one, up to its last whole line. Otherwise
  ///                empties it.
  explicit Report(const ReportOptions& options, bool append = false);

  /// @throws linkboy::Error if another run writes the file.
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
  /// @throws linkboy::Error if a line could not be written; the run did not end because of it.
  void end(const linkboy::cli::RunResult& result);

 private:
  void open();
  void write_line(const nlohmann::ordered_json& event, linkboy::Trainer* trainer = nullptr);

  std::filesystem::path path_;
  std::shared_ptr<void> lock_;  // until this object is gone: the last line comes after the run
  std::ofstream file_;
  bool with_updates_;
  bool append_;
  bool is_complete_ = true;
  int64_t size_ = 0;  // bytes of whole lines
  std::optional<int64_t> saved_size_;
  std::vector<double> lr_;
  linkboy::LossAverage update_loss_;
  std::chrono::steady_clock::time_point epoch_start_;
  int64_t num_epoch_samples_ = 0;
  double samples_per_second_ = 0.0;
};

}  // namespace fashion_mnist

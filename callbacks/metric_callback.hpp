#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/metric.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

struct MetricCallbackOptions {
  /// Selects a tensor of a step. Dimension 0 must contain the samples.
  using Extract = std::function<at::Tensor(const Batch&, const StepOutput&)>;

  /// If true, also measures the training part of each epoch. Each batch is measured with the
  /// weights before its update.
  bool measure_training = false;
  /// Selects the outputs that the metrics receive. If empty, they receive the model's output, which
  /// must be a tensor.
  Extract output{};
  /// Selects the targets that the metrics receive. If empty, they receive `Batch::target`.
  Extract target{};
};

/// Computes metrics over all processes in each evaluation and, with `measure_training`, in
/// training. Records the values under `Trainer::metric_name`: "auroc" becomes `eval_auroc` or
/// `train_auroc`. If a value is not a scalar, its elements are numbered: `eval_auroc_0`,
/// `eval_auroc_1`.
///
///     auto metrics = std::make_shared<linkboy::MetricCallback>(linkboy::MetricCollection{
///         {"auroc", std::make_shared<linkboy::AUROC>()}});
///
/// Evaluations within an epoch, or within another evaluation, are measured separately. The callback
/// is called before most others, so that they find the values in the run history. If a training
/// epoch is resumed in the middle with a different number of processes, only the rest of the epoch
/// is measured.
class LINKBOY_API MetricCallback : public Callback {
 public:
  /// The argument types for `make<MetricCallback>(subject, {...})`.
  /// @{
  using Subject = MetricCollection;
  using Options = MetricCallbackOptions;
  /// @}

  /// Shares the metrics with the caller.
  explicit MetricCallback(MetricCollection metrics, MetricCallbackOptions options = {});
  /// @throws Error under the same conditions as `MetricCollection::add`.
  MetricCallback(std::initializer_list<MetricCollection::NamedMetric> metrics,
                 MetricCallbackOptions options = {});

  /// The metrics. They contain the data of the last measured epoch until the next one starts.
  const MetricCollection& metrics() const { return metrics_; }

  /// Returns the current values of the scalar metrics in the epoch in progress, computed from this
  /// process's samples only; empty between epochs. Leaves out metrics that cannot be computed from
  /// the samples so far. Waits for the device.
  std::vector<std::pair<std::string, double>> values_so_far() const;

  void on_training_run_start(Trainer&) override { outer_.clear(); }
  void on_evaluation_run_start(Trainer&) override {
    outer_.clear();
    is_in_training_ = false;
  }

  void on_train_epoch_start(Trainer& trainer) override;
  /// @throws Error if the model's output is not a tensor and `output` is not set; any error of a
  ///         metric.
  void on_train_step_end(Trainer&, const Batch& batch, const StepOutput& output) override;
  /// @note Collective.
  void on_train_epoch_end(Trainer& trainer) override;

  void on_eval_epoch_start(Trainer&) override { begin(); }
  void on_eval_step_end(Trainer&, const Batch& batch, const StepOutput& output) override {
    update(batch, output);
  }
  /// @note Collective.
  void on_eval_epoch_end(Trainer& trainer) override { end(trainer); }
  void on_eval_epoch_interrupted(Trainer& trainer) override;

  StateDict rank_state_dict() const override;
  void load_rank_state_dict(const StateDict& state) override { loaded_ = state; }

 protected:
  Phase default_phase() const override { return Phase::measure; }

 private:
  void begin() { outer_.push_back(metrics_.take()); }
  void update(const Batch& batch, const StepOutput& output);
  void end(Trainer& trainer);
  void leave();

  MetricCollection metrics_;
  MetricCallbackOptions options_;
  /// The data that the metrics contained when each of the epochs in progress began.
  std::vector<MetricCollection::Seen> outer_;
  bool is_in_training_ = false;
  StateDict loaded_;
};
/// Makes a MetricCallback.
inline constexpr Maker<MetricCallback> metric_callback{};

}  // namespace linkboy

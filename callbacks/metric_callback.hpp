#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/metrics/metric_collection.hpp"

namespace linkboy {

struct MetricCallbackOptions {
  /// Picks a tensor of a step, with the samples along dimension 0.
  using Extract = std::function<at::Tensor(const Batch&, const StepOutput&)>;

  /// Measures the training part of the epochs too: each batch by the weights before its update.
  bool measure_training = false;
  /// What the metrics take as outputs. Default: the model's output, which must be a tensor.
  Extract output{};
  /// What the metrics take as targets. Default: `Batch::target`.
  Extract target{};
};

/// Measures each evaluation, and training if asked to, over all processes, and records the values
/// by `Trainer::metric_name`: "auroc" as `eval_auroc`, or `train_auroc`. The elements of a value
/// that is no scalar get numbers: `eval_auroc_0`, `eval_auroc_1`.
///
///     auto metrics = std::make_shared<linkboy::MetricCallback>(linkboy::MetricCollection{
///         {"auroc", std::make_shared<linkboy::AUROC>()}});
///
/// Evaluations within an epoch, or within one another, have values of their own. Called before
/// other callbacks, so that they find the values in the run history. Of a training epoch that is
/// resumed in its middle on another number of processes, only the rest is measured.
class LINKBOY_API MetricCallback : public Callback {
 public:
  /// What `make<MetricCallback>(subject, {...})` takes.
  /// @{
  using Subject = MetricCollection;
  using Options = MetricCallbackOptions;
  /// @}

  /// Shares the metrics with the caller.
  explicit MetricCallback(MetricCollection metrics, MetricCallbackOptions options = {});
  /// @throws Error as MetricCollection.
  MetricCallback(std::initializer_list<MetricCollection::NamedMetric> metrics,
                 MetricCallbackOptions options = {});

  /// The values of the last epoch that was measured, until the next one starts.
  const MetricCollection& metrics() const { return metrics_; }

  /// What the scalar metrics are by now in the epoch in progress, of this process's samples alone;
  /// empty between epochs. Those that cannot be computed from so few samples are left out. Waits
  /// for the device.
  std::vector<std::pair<std::string, double>> values_so_far() const;

  void on_training_run_start(Trainer&) override { outer_.clear(); }
  void on_evaluation_run_start(Trainer&) override {
    outer_.clear();
    is_in_training_ = false;
  }

  void on_train_epoch_start(Trainer& trainer) override;
  /// @throws Error if the model's output is no tensor and there is no `output`; what a metric
  ///         throws.
  void on_train_step_end(Trainer&, const Batch& batch, const StepOutput& output) override;
  /// @note Collective.
  void on_train_epoch_end(Trainer& trainer) override;

  void on_eval_epoch_start(Trainer& trainer) override;
  void on_eval_step_end(Trainer&, const Batch& batch, const StepOutput& output) override;
  void on_eval_epoch_end(Trainer& trainer) override;

  StateDict rank_state_dict() const override;
  void load_rank_state_dict(const StateDict& state) override { loaded_ = state; }

 protected:
  Phase default_phase() const override { return Phase::measure; }

 private:
  void begin();
  void update(const Batch& batch, const StepOutput& output);
  void end(Trainer& trainer);

  MetricCollection metrics_;
  MetricCallbackOptions options_;
  /// What the metrics had seen when each of the epochs in progress began.
  std::vector<MetricCollection::Seen> outer_;
  bool is_in_training_ = false;
  StateDict loaded_;
};

}  // namespace linkboy

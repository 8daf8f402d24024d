// Updates metrics with the batches of training and evaluation. During an evaluation within an
// epoch, a stack keeps the data of that epoch.

#include "linkboy/callbacks/metric_callback.hpp"

#include <ATen/ATen.h>

#include <utility>

#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {
namespace {

at::Tensor model_output(const Batch&, const StepOutput& output) {
  const auto& value = output.model_outputs;
  LINKBOY_CHECK(value.isTensor(), "MetricCallback: the model's output is a ", value.tagKind(),
                ", not a tensor; set MetricCallbackOptions::output to select a tensor.");
  return value.toTensor();
}

}  // namespace

MetricCallback::MetricCallback(MetricCollection metrics, MetricCallbackOptions options)
    : metrics_(std::move(metrics)), options_(std::move(options)) {
  if (!options_.output) options_.output = model_output;
  if (!options_.target) options_.target = [](const auto& batch, auto&) { return batch.target(); };
}

MetricCallback::MetricCallback(std::initializer_list<MetricCollection::NamedMetric> metrics,
                               MetricCallbackOptions options)
    : MetricCallback(MetricCollection(metrics), std::move(options)) {}

// A callback that was added in the middle of an epoch skips the rest of that epoch.
void MetricCallback::update(const Batch& batch, const StepOutput& output) {
  if (outer_.empty()) return;
  metrics_.update(options_.output(batch, output).detach(), options_.target(batch, output).detach());
}

std::vector<std::pair<std::string, double>> MetricCallback::values_so_far() const {
  std::vector<std::pair<std::string, double>> values;
  if (outer_.empty()) return values;
  const ProcessGroup alone;
  for (const auto& [name, metric] : metrics_.metrics()) {
    try {
      const at::Tensor value = metric->compute(alone);
      if (value.dim() == 0) values.emplace_back(name, value.item<double>());
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): left out
    }
  }
  return values;
}

void MetricCallback::end(Trainer& trainer) {
  if (outer_.empty()) return;
  for (const auto& [name, value] : metrics_.compute(trainer.accelerator().process_group())) {
    const std::string recorded = trainer.run().metric_name(name);
    const at::Tensor elements = value.flatten();
    for (int64_t i = 0; i < elements.numel(); ++i) {
      trainer.run_history().update_metric(value.dim() == 0 ? recorded : c10::str(recorded, "_", i),
                                          elements[i].item<double>());
    }
  }
  leave();
}

/// Continues with the epoch in which the present one began. After the outermost one, the metrics
/// keep their data.
void MetricCallback::leave() {
  if (outer_.empty()) return;
  MetricCollection::Seen outer = std::move(outer_.back());
  outer_.pop_back();
  if (!outer_.empty()) metrics_.put_back(std::move(outer));
}

void MetricCallback::on_train_epoch_start(Trainer& trainer) {
  const StateDict loaded = std::exchange(loaded_, {});
  if (!options_.measure_training) return;
  begin();
  is_in_training_ = true;
  if (!loaded.empty() && trainer.run().micro_step() > 0) metrics_.load_state_dict(loaded);
}

void MetricCallback::on_train_step_end(Trainer&, const Batch& batch, const StepOutput& output) {
  if (options_.measure_training) update(batch, output);
}

void MetricCallback::on_train_epoch_end(Trainer& trainer) {
  if (options_.measure_training) end(trainer);
  is_in_training_ = false;
}

void MetricCallback::on_eval_epoch_interrupted(Trainer&) { leave(); }

// Returns the data of the training epoch, even while an evaluation within it is measured.
StateDict MetricCallback::rank_state_dict() const {
  if (!is_in_training_ || outer_.empty()) return {};
  return outer_.size() > 1 ? metrics_.state_dict(outer_[1]) : metrics_.state_dict();
}

}  // namespace linkboy

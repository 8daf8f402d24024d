// Records the losses of a run whose learning rate grows, and finds their steepest fall.

#include "linkboy/fine_tuning/lr_finder.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "fine_tuning/run_snapshot.hpp"
#include "linkboy/error.hpp"
#include "linkboy/extend/peeking_loader.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {
namespace {

void check(const LrFinderOptions& finder) {
  LINKBOY_CHECK_OPTION(finder.start_lr > 0.0 && std::isfinite(finder.start_lr), "start_lr is ",
                       finder.start_lr, "; it must be positive and finite.");
  LINKBOY_CHECK_OPTION(finder.end_lr > finder.start_lr && std::isfinite(finder.end_lr),
                       "end_lr is ", finder.end_lr,
                       "; it must be finite and above start_lr, which is ", finder.start_lr, ".");
  LINKBOY_CHECK_OPTION(finder.num_updates >= 2, "num_updates is ", finder.num_updates,
                       "; it must be at least 2.");
  LINKBOY_CHECK_OPTION(finder.smoothing >= 0.0 && finder.smoothing < 1.0, "smoothing is ",
                       finder.smoothing, "; it must be in [0, 1).");
  LINKBOY_CHECK_OPTION(finder.divergence_factor > 1.0, "divergence_factor is ",
                       finder.divergence_factor, "; it must be above 1.");
}

/// Increases the largest rate from start_lr to end_lr. The other rates keep their ratios to it.
class GrowingRate final : public Scheduler {
 public:
  GrowingRate(torch::optim::Optimizer& optimizer, const LrFinderOptions& finder)
      : Scheduler(optimizer), finder_(finder) {
    largest_ = *std::max_element(base_values().begin(), base_values().end());
    LINKBOY_CHECK(
        largest_ > 0.0,
        "the optimizer's learning rates are all 0; set at least one of them to a positive "
        "value. Only the ratios of the rates matter.");
  }

  std::vector<double> values_at(int64_t update) const override {
    const double share = static_cast<double>(update) / static_cast<double>(finder_.num_updates - 1);
    const double rate = finder_.start_lr * std::pow(finder_.end_lr / finder_.start_lr, share);
    std::vector<double> values = base_values();
    for (double& value : values) value *= rate / largest_;
    return values;
  }

 private:
  LrFinderOptions finder_;
  double largest_;
};

class RecordLosses final : public Callback {
 public:
  RecordLosses(const LrFinderOptions& finder, LrFinderResult& result)
      : finder_(finder), result_(result) {}

  void on_dataloaders_ready(Trainer& trainer) override {
    trainer.set_train_dataloader(std::make_shared<PeekingLoader>(trainer.run().train_dataloader()));
  }
  void on_train_step_end(Trainer&, const Batch&, const StepOutput& output) override {
    window_.update(output.loss, output.batch_size);
  }

  void on_gradients_ready(Trainer& trainer) override {
    const auto rates = get_param_group_field(*trainer.optimizer(), ParamGroupField::lr);
    const at::Tensor loss = at::scalar_tensor(window_.average(), at::kDouble);
    window_.reset();
    add(*std::max_element(rates.begin(), rates.end()),
        trainer.accelerator().reduce(loss, ReduceOp::mean).item<double>());
    if (has_diverged()) {
      const double loss_now = result_.losses.back();
      const std::string what =
          std::isfinite(loss_now) ? "diverges" : fmt::format("is {}", loss_now);
      throw StopTraining(fmt::format("The loss {} at a learning rate of {:.3g}", what,
                                     result_.learning_rates.back()));
    }
  }

 private:
  void add(double rate, double loss) {
    const double weight = finder_.smoothing;
    mean_ = weight * mean_ + (1.0 - weight) * loss;
    result_.learning_rates.push_back(rate);
    result_.losses.push_back(loss);
    // Corrects the bias of the first values. Without the division, the missing losses before them
    // would count as zero.
    const auto count = static_cast<double>(result_.losses.size());
    result_.smoothed_losses.push_back(mean_ / (1.0 - std::pow(weight, count)));
    if (result_.losses.size() == 1) lowest_ = result_.smoothed_losses.back();
    lowest_ = std::min(lowest_, result_.smoothed_losses.back());
  }

  bool has_diverged() const {
    if (!std::isfinite(result_.losses.back())) return true;
    // A loss that can be negative (a density, a similarity) may have a lowest value of 0 or less,
    // and then a ratio to it is not meaningful.
    const double fall = result_.smoothed_losses.front() - lowest_;
    const double unit = lowest_ > 0.0 ? lowest_ : std::max(-lowest_, fall);
    return result_.smoothed_losses.back() - lowest_ > (finder_.divergence_factor - 1.0) * unit;
  }

  const LrFinderOptions& finder_;
  LrFinderResult& result_;
  LossAverage window_;
  double mean_ = 0.0;
  double lowest_ = 0.0;
};

/// Returns the mean of each value and its neighbours on both sides, with weights that decay by
/// `smoothing` per step. Unlike the smoothed losses, which lag by 20 updates at a smoothing of
/// 0.95, it does not lag.
std::vector<double> smoothed_both_ways(const std::vector<double>& values, double smoothing) {
  std::vector<double> sums(values.size());
  std::vector<double> weights(values.size());
  double sum = 0.0;
  double weight = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    sums[i] += sum = smoothing * sum + values[i];
    weights[i] += weight = smoothing * weight + 1.0;
  }
  sum = weight = 0.0;
  for (std::size_t i = values.size(); i-- > 0;) {  // the value itself is already included
    sums[i] += sum;
    weights[i] += weight;
    sum = smoothing * (sum + values[i]);
    weight = smoothing * (weight + 1.0);
  }
  for (std::size_t i = 0; i < values.size(); ++i) sums[i] /= weights[i];
  return sums;
}

std::optional<double> steepest_fall(const LrFinderResult& result, double smoothing) {
  std::vector<double> losses = result.losses;
  while (!losses.empty() && !std::isfinite(losses.back())) losses.pop_back();
  const std::size_t num_first = std::min(losses.size(), 1 + losses.size() / 10);
  if (num_first == 0) return std::nullopt;
  // Without the limit, the rise at the end would hide the fall before it.
  const auto first_end = losses.begin() + static_cast<std::ptrdiff_t>(num_first);
  const double ceiling = *std::max_element(losses.begin(), first_end);
  for (double& loss : losses) loss = std::min(loss, ceiling);
  losses = smoothed_both_ways(losses, smoothing);
  std::optional<double> rate;
  double steepest = 0.0;
  // The first few values are means over too few losses.
  for (std::size_t i = num_first; i + 1 < losses.size(); ++i) {
    const double growth = result.learning_rates[i + 1] / result.learning_rates[i - 1];
    if (growth <= 1.0) continue;  // in fp16, skipped updates repeat a rate
    const double slope = (losses[i + 1] - losses[i - 1]) / std::log(growth);
    if (slope < steepest) {
      steepest = slope;
      rate = result.learning_rates[i];
    }
  }
  return rate;
}

}  // namespace

LrFinderResult find_learning_rate(Trainer& trainer, TrainOptions options,
                                  const LrFinderOptions& finder) {
  check(finder);
  options = trial_options(std::move(options), finder.num_updates);
  options.create_scheduler_fn = [&](torch::optim::Optimizer& optimizer, const RunConfig&) {
    return std::make_unique<GrowingRate>(optimizer, finder);
  };
  LrFinderResult result;
  RunSnapshot(trainer, std::make_shared<RecordLosses>(finder, result)).trial(options);
  result.suggestion = steepest_fall(result, finder.smoothing);
  return result;
}

}  // namespace linkboy

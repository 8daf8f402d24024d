// The means of a phase's losses.

#include "trainer/loss_means.hpp"

#include <ATen/ATen.h>

#include <limits>
#include <optional>

#include "linkboy/error.hpp"

namespace linkboy {
namespace {

/// Returns "eval_box_epoch" for "eval_loss_epoch" and "box".
std::string name_beside(std::string_view loss_name, const std::string& other) {
  constexpr std::string_view kLoss = "loss";
  std::string name(loss_name);
  const std::size_t place = name.rfind(kLoss);
  return place == std::string::npos ? name + "_" + other : name.replace(place, kLoss.size(), other);
}

/// A step is user code. Without these checks, a missing value would appear as NaN or as a LibTorch
/// error that does not show the cause.
void check_step_output(const StepOutput& output, const char* step) {
  LINKBOY_CHECK(
      output.loss.defined(), step,
      " returned no loss; StepOutput::loss must be a scalar tensor. Set it to the mean loss "
      "of the batch.");
  LINKBOY_CHECK(output.loss.numel() == 1, step, " returned a loss of shape ", output.loss.sizes(),
                "; it must be a scalar. Reduce it over the batch, with mean() for example.");
  LINKBOY_CHECK(
      output.batch_size >= 1, step, " returned a batch_size of ", output.batch_size,
      "; it must be at least 1. Set StepOutput::batch_size to batch.size(), or to the number "
      "of items over which the loss is averaged.");
}

std::optional<double> mean_over_ranks(const LossAverage& loss, const Accelerator& accelerator) {
  double total = loss.total();
  auto count = static_cast<double>(loss.count());
  if (accelerator.num_processes() > 1) {
    at::Tensor sums = at::tensor({total, count}, at::kDouble);
    accelerator.process_group().all_reduce(sums);
    total = sums[0].item<double>();
    count = sums[1].item<double>();
  }
  if (count == 0.0) return std::nullopt;
  return total / count;
}

}  // namespace

void LossMeans::track_train(const StepOutput& output) {
  track(output, "calculate_train_batch_loss", /*are_all_needed=*/true);
}

void LossMeans::track_eval(const StepOutput& output) {
  track(output, "calculate_eval_batch_loss", /*are_all_needed=*/false);
}

void LossMeans::track(const StepOutput& output, const char* step, bool are_all_needed) {
  check_step_output(output, step);
  main_.update(output.loss, output.batch_size);
  for (auto& [name, loss] : others_) {
    const bool is_there = output.extras.contains(name);
    LINKBOY_CHECK(is_there || !are_all_needed, step, " returned no extra \"", name,
                  "\", which track_loss(\"", name, "\") requires. Set StepOutput::extras[\"", name,
                  "\"] to a scalar tensor.");
    if (is_there) loss.update(output.extras.get_tensor(name), output.batch_size);
  }
}

void LossMeans::record(RunHistory& history, const Accelerator& accelerator,
                       const std::string& prefix, std::string_view name) const {
  history.update_metric(
      prefix + std::string(name),
      mean_over_ranks(main_, accelerator).value_or(std::numeric_limits<double>::quiet_NaN()));
  for (const auto& [other, loss] : others_) {
    const auto mean = mean_over_ranks(loss, accelerator);
    if (mean) history.update_metric(prefix + name_beside(name, other), *mean);
  }
}

StateDict LossMeans::state_dict() const {
  StateDict others;
  for (const auto& [name, loss] : others_) {
    others.set(name, StateDict{{"total", loss.total()}, {"count", loss.count()}});
  }
  StateDict state{{"loss_total", main_.total()}, {"loss_count", main_.count()}};
  state.set("other_losses", others);
  return state;
}

void LossMeans::add(const StateDict& state) {
  const auto add_to = [](LossAverage& loss, double total, int64_t count) {
    loss.restore(loss.total() + total, loss.count() + count);
  };
  add_to(main_, state.get_double("loss_total"), state.get_int("loss_count"));
  const StateDict others = state.get_dict("other_losses");
  for (auto& [name, loss] : others_) {
    if (!others.contains(name)) continue;
    const StateDict sums = others.get_dict(name);
    add_to(loss, sums.get_double("total"), sums.get_int("count"));
  }
}

}  // namespace linkboy

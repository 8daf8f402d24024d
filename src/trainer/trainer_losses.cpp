// The weights and means of losses, and the names of metrics.

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "accelerator/gradients.hpp"
#include "accelerator/resolve_run_config.hpp"
#include "linkboy/error.hpp"
#include "trainer/trainer_implementation.hpp"

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

/// Returns "Float [8, 4] with values from -1 to 1".
std::string describe_tensor(const at::Tensor& tensor) {
  std::string text = c10::str(tensor.scalar_type(), " ", tensor.sizes());
  try {
    const at::NoGradGuard no_grad;
    text += c10::str(" with values from ", tensor.min().item(), " to ", tensor.max().item());
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): without elements or an order,
  }                                  // or on a device that has failed
  return text;
}

}  // namespace

/// Called only after an error, so that a good step does not read its values.
void Trainer::Implementation::add_batch(c10::Error& error, const Batch& batch) const {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return;
  std::vector<std::string> parts;
  parts.reserve(batch.tensors().size());
  for (const auto& [name, tensor] : batch.tensors()) {
    parts.push_back(c10::str('"', name, "\" is ", describe_tensor(tensor)));
  }
  std::string text = c10::str("In this batch, ", c10::Join(", ", parts), ".");
  const auto parameters = model_.parameters();
  if (!parameters.empty()) {
    text += c10::str(" The first of the model's parameters is ", parameters[0].scalar_type(), ".");
  }
  error.add_context(text + " Compare them with what the model and the loss function accept.");
}

void Trainer::track_loss(std::string name) {
  LINKBOY_CHECK(!impl_->is_running_, "the loss \"", name,
                "\" cannot be added during a run; call track_loss before train.");
  const bool is_taken =
      name == "loss" || std::find(impl_->tracked_losses_.begin(), impl_->tracked_losses_.end(),
                                  name) != impl_->tracked_losses_.end();
  LINKBOY_CHECK(!name.empty() && !is_taken, "the loss \"", name,
                "\" cannot be tracked: the name must not be empty, \"loss\" or already tracked.");
  impl_->tracked_losses_.push_back(std::move(name));
}

void Trainer::Implementation::reset(Losses& losses) const {
  losses = {};
  for (const std::string& name : tracked_losses_) losses.others.emplace_back(name, LossAverage());
}

void Trainer::Implementation::track(Losses& losses, const StepOutput& output, bool are_all_needed) {
  check_step_output(output,
                    are_all_needed ? "calculate_train_batch_loss" : "calculate_eval_batch_loss");
  losses.main.update(output.loss, output.batch_size);
  for (auto& [name, tracker] : losses.others) {
    const bool is_there = output.extras.contains(name);
    LINKBOY_CHECK(is_there || !are_all_needed, "calculate_train_batch_loss returned no extra \"",
                  name, "\", which track_loss(\"", name, "\") requires. Set StepOutput::extras[\"",
                  name, "\"] to a scalar tensor.");
    if (is_there) tracker.update(output.extras.get_tensor(name), output.batch_size);
  }
}

/// Turns the mean over micro-steps and processes of loss * batch_size / weight_unit into the mean
/// over their samples.
void Trainer::Implementation::weight_gradients() {
  const auto& weights = run_.window_weights;
  const int64_t own = std::accumulate(weights.begin(), weights.end(), int64_t{0});
  at::Tensor weight = at::full({1}, own, at::kLong);
  accelerator_->process_group().all_reduce(weight);
  LINKBOY_CHECK(run_.weight_unit > 0.0 && weight.item<int64_t>() > 0,
                "weight_by_batch_size needs Trainer's forward and backward, but train_step did not "
                "call them. Call them in train_step, or do not set weight_by_batch_size.");
  const auto num_parts =
      static_cast<double>(accelerator_->window().length * accelerator_->num_processes());
  const auto gradients = gradients_of(parameters_of(*own_));
  const at::NoGradGuard no_grad;
  if (!gradients.empty())
    at::_foreach_mul_(gradients, run_.weight_unit * num_parts / weight.item<double>());
}

void Trainer::Implementation::record(std::string_view loss_name, const Losses& losses) {
  run_history_->update_metric(
      prefixed(loss_name),
      mean_over_ranks(losses.main).value_or(std::numeric_limits<double>::quiet_NaN()));
  for (const auto& [name, tracker] : losses.others) {
    const auto mean = mean_over_ranks(tracker);
    if (mean) run_history_->update_metric(prefixed(name_beside(loss_name, name)), *mean);
  }
}

StateDict Trainer::Implementation::state_of(const Losses& losses) const {
  StateDict others;
  for (const auto& [name, tracker] : losses.others) {
    others.set(name, StateDict{{"total", tracker.total()}, {"count", tracker.count()}});
  }
  StateDict state{{"loss_total", losses.main.total()}, {"loss_count", losses.main.count()}};
  state.set("other_losses", others);
  return state;
}

void Trainer::Implementation::add(Losses& losses, const StateDict& state) const {
  const auto add_to = [](LossAverage& tracker, double total, int64_t count) {
    tracker.restore(tracker.total() + total, tracker.count() + count);
  };
  add_to(losses.main, state.get_double("loss_total"), state.get_int("loss_count"));
  const StateDict others = state.get_dict("other_losses");
  for (auto& [name, tracker] : losses.others) {
    if (!others.contains(name)) continue;
    const StateDict sums = others.get_dict(name);
    add_to(tracker, sums.get_double("total"), sums.get_int("count"));
  }
}

std::string Trainer::Implementation::prefixed(std::string_view metric_name) const {
  std::string name = run_history_->metric_name_prefix();
  if (run_.evaluation.is_in_progress) {
    name += run_.evaluation.prefix;
    if (!run_.evaluation.set_name.empty()) name += run_.evaluation.set_name + "_";
  }
  return name.append(metric_name);
}

std::string Trainer::metric_name(std::string_view name) const {
  return impl_->prefixed((impl_->run_.evaluation.is_in_progress ? "eval_" : "train_") +
                         std::string(name));
}

std::optional<double> Trainer::Implementation::mean_over_ranks(const LossAverage& tracker) {
  double total = tracker.total();
  auto count = static_cast<double>(tracker.count());
  if (trainer_.accelerator().num_processes() > 1) {
    at::Tensor sums = at::tensor({total, count}, at::kDouble);
    accelerator_->process_group().all_reduce(sums);
    total = sums[0].item<double>();
    count = sums[1].item<double>();
  }
  if (count == 0.0) return std::nullopt;
  return total / count;
}

}  // namespace linkboy

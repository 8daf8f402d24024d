// Gradient norms of each update, summed on the device and read only at the end of the epoch.

#include "linkboy/callbacks/gradient_norm.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

#include <limits>
#include <unordered_set>

#include "linkboy/trainer.hpp"

namespace linkboy {
namespace {

constexpr const char* kGradientNormName = "train_gradient_norm";
constexpr const char* kNumUpdates = "num_updates";
constexpr const char* kTotals = "totals";

/// Returns the sum, maximum and number of norms with `norm` added. If `leaves_out_infinite` is
/// true, a norm that is not finite is not added.
at::Tensor with_norm(const at::Tensor& totals, const at::Tensor& norm, bool leaves_out_infinite) {
  const at::Tensor value = norm.to(at::kDouble);
  const at::Tensor more =
      at::stack({totals[0] + value, at::maximum(totals[1], value), totals[2] + 1.0});
  return leaves_out_infinite ? at::where(value.isfinite(), more, totals) : more;
}

}  // namespace

void GradientNorm::on_train_epoch_start(Trainer& trainer) {
  parts_.clear();
  num_updates_ = 0;
  if (trainer.run().micro_step() == 0) {
    loaded_ = {};
  } else if (!loaded_.empty()) {
    num_updates_ = loaded_.get_int(kNumUpdates);
  }
}

std::vector<GradientNorm::Part> GradientNorm::find_parts(Trainer& trainer) const {
  std::vector<Part> parts{{.name = kGradientNormName}};
  const auto& groups = trainer.optimizer()->param_groups();
  std::unordered_set<const at::TensorImpl*> trained;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto& parameters = groups[i].params();
    parts[0].parameters.insert(parts[0].parameters.end(), parameters.begin(), parameters.end());
    for (const auto& parameter : parameters) trained.insert(parameter.unsafeGetTensorImpl());
    if (options_.parts == GradientNormParts::param_groups) {
      parts.push_back({kGradientNormName + ("_group_" + std::to_string(i)), parameters});
    }
  }
  if (options_.parts != GradientNormParts::modules) return parts;
  for (const auto& [name, tensor] : trainer.model().named_tensors()) {
    const std::size_t dot = name.find('.');
    if (dot == std::string::npos || !trained.contains(tensor.unsafeGetTensorImpl())) continue;
    const std::string module = name.substr(0, dot);
    const std::string part_name =
        c10::str(kGradientNormName, module == "max" ? "_module_" : "_", module);
    if (parts.back().name != part_name) parts.push_back({.name = part_name});
    parts.back().parameters.push_back(tensor);
  }
  return parts;
}

/// Determines the parts and continues with the totals of a loaded state.
void GradientNorm::start(Trainer& trainer) {
  parts_ = find_parts(trainer);
  const StateDict totals = loaded_.empty() ? StateDict() : loaded_.get_dict(kTotals);
  const auto options = at::TensorOptions(trainer.accelerator().device()).dtype(at::kDouble);
  for (Part& part : parts_) {
    part.totals = at::zeros({3}, options);
    if (totals.contains(part.name)) part.totals.copy_(totals.get_tensor(part.name));
  }
  loaded_ = {};
}

void GradientNorm::on_gradients_ready(Trainer& trainer) {
  const at::NoGradGuard no_grad;
  auto& accelerator = trainer.accelerator();
  if (parts_.empty()) start(trainer);
  accelerator.unscale_gradients(*trainer.optimizer());
  const bool is_fp16 = accelerator.grad_scaler() != nullptr;
  for (auto& part : parts_) {
    // With an infinite limit, the norm is measured and nothing is clipped.
    const at::Tensor norm =
        accelerator.clip_grad_norm(part.parameters, std::numeric_limits<double>::infinity());
    part.totals = with_norm(part.totals, norm.to(accelerator.device()), is_fp16);
  }
  ++num_updates_;
}

void GradientNorm::on_train_epoch_end(Trainer& trainer) {
  if (parts_.empty() && !loaded_.empty()) start(trainer);  // resumed at the end of the epoch
  auto& history = trainer.run_history();
  for (const auto& part : parts_) {
    const at::Tensor totals = part.totals.cpu();
    const auto* values = totals.const_data_ptr<double>();
    const bool is_whole = part.name == kGradientNormName;
    if (values[2] > 0.0) {
      history.update_metric(part.name, values[0] / values[2]);
      if (is_whole) history.update_metric(kGradientNormName + std::string("_max"), values[1]);
    }
    if (is_whole && trainer.accelerator().grad_scaler() != nullptr) {
      history.update_metric("train_skipped_updates", static_cast<double>(num_updates_) - values[2]);
    }
  }
}

StateDict GradientNorm::state_dict() const {
  if (parts_.empty() && !loaded_.empty()) return loaded_;
  StateDict totals;
  for (const auto& part : parts_) totals.set(part.name, part.totals.cpu());
  StateDict state{{kNumUpdates, num_updates_}};
  state.set(kTotals, totals);
  return state;
}

void GradientNorm::load_state_dict(const StateDict& state) { loaded_ = state; }

}  // namespace linkboy

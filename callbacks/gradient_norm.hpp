#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// The parts of the gradients whose norms are recorded in addition to that of all.
enum class GradientNormParts { none, param_groups, modules };
LINKBOY_ENUM_NAMES(GradientNormParts, none, param_groups, modules)

struct GradientNormOptions {
  /// `param_groups` records `train_gradient_norm_group_0` and so on; `modules`, for each direct
  /// child of the model that has parameters, `train_gradient_norm_NAME` (of one called "max",
  /// `train_gradient_norm_module_max`).
  GradientNormParts parts = GradientNormParts::none;
  LINKBOY_FIELDS(parts);
};

/// Records, for each training epoch, the 2-norm of all gradients together that the optimizer's
/// parameters have, before clipping: the mean over the epoch's updates as `train_gradient_norm`,
/// the largest as `train_gradient_norm_max`; of the parts that the options name, the mean.
///
/// In fp16 an update whose gradients overflow is skipped: it is left out, and how many there were
/// is recorded as `train_skipped_updates`. Otherwise a norm that is not finite makes the mean and
/// the maximum so.
///
/// The sums stay on the device, in double precision, until the epoch's end. With
/// `DistributedOptions::zero_stage` 2 each update costs one more message for each norm. The parts
/// are found at the first update of an epoch. On every process or on none.
class LINKBOY_API GradientNorm : public Callback {
 public:
  /// What `make<GradientNorm>({...})` takes.
  using Options = GradientNormOptions;

  /// Records the norm of all gradients and those of `options.parts`.
  explicit GradientNorm(GradientNormOptions options = {}) : options_(options) {}

  void on_train_epoch_start(Trainer& trainer) override;
  void on_gradients_ready(Trainer& trainer) override;
  void on_train_epoch_end(Trainer& trainer) override;

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  struct Part {
    std::string name{};  // of the mean
    std::vector<at::Tensor> parameters{};
    /// Double, on the device: sum, maximum and number of the norms; undefined before the first.
    at::Tensor totals{};
  };

  std::vector<Part> find_parts(Trainer& trainer) const;
  void restore(Part& part, c10::Device device) const;

  GradientNormOptions options_;
  std::vector<Part> parts_;  // that of all gradients is the first
  int64_t num_updates_ = 0;
  StateDict loaded_;  // totals by name, until the parts are found
};

}  // namespace linkboy

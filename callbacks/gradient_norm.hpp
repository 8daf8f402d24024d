#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

/// The parts of the gradients whose norms are recorded in addition to the norm of all gradients.
enum class GradientNormParts { none, param_groups, modules };
LINKBOY_ENUM_NAMES(GradientNormParts, none, param_groups, modules)

struct GradientNormOptions {
  /// `param_groups` records `train_gradient_norm_group_0` and so on. `modules` records
  /// `train_gradient_norm_NAME` for each direct child of the model with parameters that the
  /// optimizer trains; for a child called "max" it is `train_gradient_norm_module_max`.
  GradientNormParts parts = GradientNormParts::none;
  LINKBOY_FIELDS(parts);
};

/// Records, for each training epoch, the 2-norm of the gradients of all parameters of the
/// optimizer, before clipping: the mean over the epoch's updates as `train_gradient_norm`, and the
/// maximum as `train_gradient_norm_max`. For the parts that the options select, records only the
/// mean.
///
/// In fp16, an update whose gradients overflow is skipped. Norms that are not finite are then left
/// out, and the number of updates without a finite norm is recorded as `train_skipped_updates`. In
/// other precisions, a norm that is not finite makes the mean and the maximum not finite, too.
///
/// The sums stay on the device, in double precision, until the end of the epoch. With
/// `DistributedOptions::zero_stage` 2 or 3, each norm costs one additional message per update. The
/// parts are determined at the first update of each epoch. Either all processes or none must have
/// the callback.
class LINKBOY_API GradientNorm : public Callback {
 public:
  /// The options type for `make<GradientNorm>({...})`.
  using Options = GradientNormOptions;

  /// Creates a callback that records the norm of all gradients and the norms of `options.parts`.
  explicit GradientNorm(GradientNormOptions options = {}) : options_(options) {}

  void on_train_epoch_start(Trainer& trainer) override;
  void on_gradients_ready(Trainer& trainer) override;
  void on_train_epoch_end(Trainer& trainer) override;

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  struct Part {
    std::string name{};  // metric name of the mean
    std::vector<at::Tensor> parameters{};
    /// Sum, maximum and number of the norms; double [3] on the device. Undefined before the first.
    at::Tensor totals{};
  };

  std::vector<Part> find_parts(Trainer& trainer) const;
  void start(Trainer& trainer);

  GradientNormOptions options_;
  std::vector<Part> parts_;  // all gradients first, then the selected parts
  int64_t num_updates_ = 0;
  StateDict loaded_;  // the loaded state, until the parts are determined
};
/// Makes a GradientNorm.
inline constexpr Maker<GradientNorm> gradient_norm{};

}  // namespace linkboy

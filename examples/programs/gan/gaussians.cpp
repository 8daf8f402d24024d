#include "gaussians.hpp"

#include <fmt/format.h>
#include <torch/torch.h>

#include <numbers>

namespace gan {
namespace {

constexpr int64_t kNumModes = 8;
constexpr double kRadius = 2.0;
constexpr double kDeviation = 0.2;
constexpr int64_t kNumPoints = 1 << 16;

/// Returns the means of the Gaussians, [kNumModes, 2].
at::Tensor mode_centres() {
  const at::Tensor angle = at::arange(kNumModes) * (2.0 * std::numbers::pi / kNumModes);
  return kRadius * at::stack({angle.cos(), angle.sin()}, 1);
}

}  // namespace

linkboy::TensorDataset make_points() {
  const at::Tensor mode = at::randint(kNumModes, {kNumPoints}, at::kLong);
  const at::Tensor points = mode_centres().index_select(0, mode);
  return linkboy::TensorDataset({{"points", points + kDeviation * at::randn({kNumPoints, 2})}});
}

std::string measure(const at::Tensor& points) {
  const auto [distance, mode] = at::cdist(points, mode_centres()).min(1);
  const at::Tensor is_near = distance < 3.0 * kDeviation;
  const at::Tensor counts = at::bincount(mode.masked_select(is_near), {}, kNumModes);
  // A mode counts as covered if it has at least a fifth of its share of the points.
  const at::Tensor is_covered = counts * (5 * kNumModes) >= points.size(0);
  return fmt::format("modes covered: {} of {}, samples near a mode: {:.1f} %",
                     is_covered.sum().item<int64_t>(), kNumModes,
                     100.0 * is_near.to(at::kDouble).mean().item<double>());
}

}  // namespace gan

#include "curve.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace lr_curve {

std::vector<Curve> sample(const linkboy::Scheduler& scheduler, int64_t num_updates) {
  std::vector<Curve> curves{{to_string(scheduler.field()), {}}};
  for (int64_t update = 0; update < num_updates; ++update) {
    scheduler.check_values_at(update);
    curves[0].values.push_back(scheduler.values_at(update)[0]);
    const auto others = scheduler.other_values_at(update);
    for (std::size_t i = 0; i < others.size(); ++i) {
      if (update == 0) curves.push_back({to_string(others[i].field), {}});
      curves[i + 1].values.push_back(others[i].values[0]);
    }
  }
  return curves;
}

std::string summary(const Curve& curve) {
  const auto [lowest, highest] = std::minmax_element(curve.values.begin(), curve.values.end());
  return fmt::format(
      "{}: first {:.4g}, highest {:.4g} at update {}, lowest {:.4g} at update {}, "
      "last {:.4g}",
      curve.field, curve.values.front(), *highest, highest - curve.values.begin() + 1, *lowest,
      lowest - curve.values.begin() + 1, curve.values.back());
}

}  // namespace lr_curve

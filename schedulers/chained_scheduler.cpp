// Multiplies the factors of several schedules: the ratios of their values to the base values.

#include "linkboy/schedulers/chained_scheduler.hpp"

#include "linkboy/run/run_config.hpp"

namespace linkboy {

ChainedScheduler::ChainedScheduler(torch::optim::Optimizer& optimizer,
                                   const ChainedSchedulerOptions& options, const RunConfig& config)
    : CompositeScheduler(optimizer,
                         make_parts(optimizer, options.schedulers,
                                    std::vector<RunConfig>(options.schedulers->size(), config))) {}

std::vector<double> ChainedScheduler::values_at(int64_t update) const {
  return product_at(update, field());
}

std::vector<FieldValues> ChainedScheduler::other_values_at(int64_t update) const {
  std::vector<FieldValues> values;
  for (ParamGroupField other : other_fields()) values.push_back({other, product_at(update, other)});
  return values;
}

std::vector<double> ChainedScheduler::product_at(int64_t update, ParamGroupField field) const {
  const std::vector<double>& base = base_values(field);
  std::vector<double> product = base;
  auto multiply = [&](const std::vector<double>& values) {
    for (std::size_t group = 0; group < base.size(); ++group) {
      if (base[group] != 0.0) {
        product[group] *= values[group] / base[group];
      } else if (product[group] == 0.0) {
        product[group] = values[group];  // a factor would not change it
      }
    }
  };
  for (const auto& part : parts()) {
    if (part->field() == field) multiply(part->values_at(update));
    for (const FieldValues& other : part->other_values_at(update)) {
      if (other.field == field) multiply(other.values);
    }
  }
  return product;
}

}  // namespace linkboy

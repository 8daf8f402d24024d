// Multiplies base values by the factors of custom functions. The product of multiplicative factors
// is kept, so that an update needs only one call.

#include "linkboy/schedulers/lambda_scheduler.hpp"

#include "linkboy/error.hpp"

namespace linkboy {

LambdaScheduler::LambdaScheduler(torch::optim::Optimizer& optimizer,
                                 const LambdaSchedulerOptions& options, const RunConfig&)
    : Scheduler(optimizer, options.field), options_(options), products_(options.lr_lambda.size()) {
  const std::size_t num = options.lr_lambda.size();
  LINKBOY_CHECK_OPTION(num == 1 || num == base_values().size(), "the lambda schedule has ", num,
                       " functions for ", base_values().size(),
                       " param groups; pass one for all groups, or one per group.");
  for (const auto& function : options.lr_lambda) {
    LINKBOY_CHECK_OPTION(function, "a function of the lambda schedule is empty; pass a function.");
  }
}

double LambdaScheduler::factor_at(std::size_t index, int64_t update) const {
  const auto& function = options_.lr_lambda[index];
  if (!options_.is_multiplicative) return function(update);
  Product& product = products_[index];
  if (product.update > update) product = {};
  while (product.update < update) product.value *= function(++product.update);
  return product.value;
}

std::vector<double> LambdaScheduler::values_at(int64_t update) const {
  const std::size_t num = options_.lr_lambda.size();
  LINKBOY_CHECK(num == 1 || num == base_values().size(), "the lambda schedule has ", num,
                " functions, but a param group was added, and there are now ", base_values().size(),
                " groups; pass one function for all groups, or create a new scheduler.");
  std::vector<double> values;
  values.reserve(base_values().size());
  for (std::size_t group = 0; group < base_values().size(); ++group) {
    values.push_back(base_values()[group] * factor_at(num == 1 ? 0 : group, update));
  }
  return values;
}

}  // namespace linkboy

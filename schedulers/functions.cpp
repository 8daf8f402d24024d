// Schedules that consist of custom functions, or of a LibTorch scheduler that a custom function
// creates. The latter runs on a stand-in optimizer, because only its steps show its values.

#include "linkboy/schedulers/functions.hpp"

#include <ATen/ops/zeros.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/sgd.h>

#include <limits>

#include "linkboy/error.hpp"

namespace linkboy {
namespace {

torch::optim::SGD make_stand_in(const std::vector<double>& lrs) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.reserve(lrs.size());
  for (double lr : lrs) {
    groups.emplace_back(std::vector<at::Tensor>{at::zeros({1})},
                        std::make_unique<torch::optim::SGDOptions>(lr));
  }
  return torch::optim::SGD(groups, torch::optim::SGDOptions(0.0));
}

}  // namespace

// The product of multiplicative factors is kept, so that an update needs only one call.

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
  std::vector<double> values = base_values();
  for (std::size_t group = 0; group < values.size(); ++group) {
    values[group] *= factor_at(num == 1 ? 0 : group, update);
  }
  return values;
}

/// The LibTorch scheduler with its optimizer, after some number of updates.
struct TorchScheduler::Simulation {
  explicit Simulation(const std::vector<double>& lrs) : optimizer(make_stand_in(lrs)) {}

  torch::optim::SGD optimizer;
  std::unique_ptr<torch::optim::LRScheduler> scheduler{};
  int64_t update = -1;
};

TorchScheduler::TorchScheduler(torch::optim::Optimizer& optimizer,
                               const TorchSchedulerOptions& options, const RunConfig& config)
    : Scheduler(optimizer), options_(options), config_(config) {
  LINKBOY_CHECK_OPTION(*options.scheduler,
                       "the torch schedule's scheduler is empty; pass a function.");
  start_simulation();
}

TorchScheduler::~TorchScheduler() = default;

void TorchScheduler::start_simulation() const {
  auto simulation = std::make_unique<Simulation>(base_values());
  simulation->scheduler = (*options_.scheduler)(simulation->optimizer, config_);
  LINKBOY_CHECK(
      simulation->scheduler,
      "the function that makes the torch scheduler returned null; it must return a scheduler.");
  simulation_ = std::move(simulation);
}

std::vector<double> TorchScheduler::values_at(int64_t update) const {
  LINKBOY_CHECK(update >= 0, "a schedule has no value after ", update,
                " updates; the number must not be negative.");
  if (update < simulation_->update) start_simulation();
  while (simulation_->update < update) {
    simulation_->scheduler->step();
    ++simulation_->update;
  }
  return get_param_group_field(simulation_->optimizer, ParamGroupField::lr);
}

bool TorchScheduler::include_new_groups() {
  if (!Scheduler::include_new_groups()) return false;
  start_simulation();
  return true;
}

void TorchScheduler::load_state_dict(const StateDict& state) {
  // The simulation so far started from other base values.
  simulation_->update = std::numeric_limits<int64_t>::max();
  Scheduler::load_state_dict(state);
}

}  // namespace linkboy

// Converts options to those of torch::optim, after checks that LibTorch does not make.

#include "linkboy/run/optimizers.hpp"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <utility>

#include "linkboy/error.hpp"
#include "util/option_checks.hpp"

namespace linkboy {
namespace {

double not_negative(const char* name, double value) {
  LINKBOY_CHECK_OPTION(value >= 0.0 && std::isfinite(value), "the optimizer's ", name, " is ",
                       value, "; it must be a finite number of at least 0.");
  return value;
}

/// Returns a function that creates an optimizer with LibTorch's options, which result from `own`.
template <class Optimizer, class Options, class OwnOptions>
CreateOptimizerFn creating(Options options, const OwnOptions& own) {
  const auto create = [options = std::move(options)](std::vector<at::Tensor> parameters) {
    return std::make_shared<Optimizer>(std::move(parameters), options);
  };
  return {create, recipe_of<OwnOptions>(own)};
}

template <class Options>
Options adam_options(const auto& own) {
  LINKBOY_CHECK_OPTION(own.betas.size() == 2, "the optimizer's betas are ", own.betas.size(),
                       " numbers; there must be two, as in betas=0.9,0.999.");
  for (const double beta : own.betas) {
    LINKBOY_CHECK_OPTION(beta >= 0.0 && beta < 1.0, "one of the optimizer's betas is ", beta,
                         "; each must be in [0, 1).");
  }
  return Options(not_negative("lr", own.lr))
      .betas({own.betas[0], own.betas[1]})
      .eps(not_negative("eps", own.eps))
      .weight_decay(not_negative("weight_decay", own.weight_decay))
      .amsgrad(own.amsgrad);
}

}  // namespace

CreateOptimizerFn sgd(const SgdOptimizerOptions& options) {
  return creating<torch::optim::SGD>(
      torch::optim::SGDOptions(not_negative("lr", options.lr))
          .momentum(not_negative("momentum", options.momentum))
          .dampening(options.dampening)
          .weight_decay(not_negative("weight_decay", options.weight_decay))
          .nesterov(options.nesterov),
      options);
}

CreateOptimizerFn adam(const AdamOptimizerOptions& options) {
  return creating<torch::optim::Adam>(adam_options<torch::optim::AdamOptions>(options), options);
}

CreateOptimizerFn adamw(const AdamWOptimizerOptions& options) {
  return creating<torch::optim::AdamW>(adam_options<torch::optim::AdamWOptions>(options), options);
}

CreateOptimizerFn adagrad(const AdagradOptimizerOptions& options) {
  return creating<torch::optim::Adagrad>(
      torch::optim::AdagradOptions(not_negative("lr", options.lr))
          .lr_decay(not_negative("lr_decay", options.lr_decay))
          .weight_decay(not_negative("weight_decay", options.weight_decay))
          .initial_accumulator_value(
              not_negative("initial_accumulator_value", options.initial_accumulator_value))
          .eps(not_negative("eps", options.eps)),
      options);
}

CreateOptimizerFn rmsprop(const RmsPropOptimizerOptions& options) {
  return creating<torch::optim::RMSprop>(
      torch::optim::RMSpropOptions(not_negative("lr", options.lr))
          .alpha(not_negative("alpha", options.alpha))
          .eps(not_negative("eps", options.eps))
          .weight_decay(not_negative("weight_decay", options.weight_decay))
          .momentum(not_negative("momentum", options.momentum))
          .centered(options.centered),
      options);
}

CreateOptimizerFn lbfgs(const LbfgsOptimizerOptions& options) {
  check_at_least_one("the optimizer's max_iter", options.max_iter);
  check_at_least_one("the optimizer's max_eval", options.max_eval.value_or(1));
  check_at_least_one("the optimizer's history_size", options.history_size);
  std::optional<std::string> line_search_fn;
  if (options.line_search_fn) line_search_fn = enum_name(*options.line_search_fn);
  return creating<torch::optim::LBFGS>(
      torch::optim::LBFGSOptions(not_negative("lr", options.lr))
          .max_iter(options.max_iter)
          .max_eval(options.max_eval)
          .tolerance_grad(not_negative("tolerance_grad", options.tolerance_grad))
          .tolerance_change(not_negative("tolerance_change", options.tolerance_change))
          .history_size(options.history_size)
          .line_search_fn(line_search_fn),
      options);
}

const NamedFactory<CreateOptimizerFn>& optimizer_factory() {
  using Optimizers = NamedFactory<CreateOptimizerFn>;
  static const Optimizers all("optimizer",
                              {
                                  Optimizers::entry<SgdOptimizerOptions>("sgd", sgd),
                                  Optimizers::entry<AdamOptimizerOptions>("adam", adam),
                                  Optimizers::entry<AdamWOptimizerOptions>("adamw", adamw),
                                  Optimizers::entry<AdagradOptimizerOptions>("adagrad", adagrad),
                                  Optimizers::entry<RmsPropOptimizerOptions>("rmsprop", rmsprop),
                                  Optimizers::entry<LbfgsOptimizerOptions>("lbfgs", lbfgs),
                              });
  return all;
}

}  // namespace linkboy

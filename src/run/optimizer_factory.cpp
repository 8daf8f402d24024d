// The table of optimizers that can be created by name, with the keys and defaults of torch.optim.

#include "linkboy/run/optimizer_factory.hpp"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <utility>

namespace linkboy {
namespace {

double not_negative(const char* name, double value) {
  LINKBOY_CHECK_OPTION(value >= 0.0 && std::isfinite(value), "the optimizer's ", name, " is ",
                       value, "; it must be a finite number of at least 0.");
  return value;
}

struct Sgd {
  double lr = 1e-3;
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;
  LINKBOY_FIELDS(lr, momentum, dampening, weight_decay, nesterov);

  torch::optim::SGDOptions get() const {
    return torch::optim::SGDOptions(not_negative("lr", lr))
        .momentum(not_negative("momentum", momentum))
        .dampening(dampening)
        .weight_decay(not_negative("weight_decay", weight_decay))
        .nesterov(nesterov);
  }
};

/// The options of Adam and AdamW. Only their defaults of weight_decay differ.
struct Adam {
  double lr = 1e-3;
  std::vector<double> betas{0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0.0;
  bool amsgrad = false;
  LINKBOY_FIELDS(lr, betas, eps, weight_decay, amsgrad);

  template <class Options>
  Options get() const {
    LINKBOY_CHECK_OPTION(betas.size() == 2, "the optimizer's betas are ", betas.size(),
                         " numbers; there must be two, as in betas=0.9,0.999.");
    for (const double beta : betas) {
      LINKBOY_CHECK_OPTION(beta >= 0.0 && beta < 1.0, "one of the optimizer's betas is ", beta,
                           "; each must be in [0, 1).");
    }
    return Options(not_negative("lr", lr))
        .betas({betas[0], betas[1]})
        .eps(not_negative("eps", eps))
        .weight_decay(not_negative("weight_decay", weight_decay))
        .amsgrad(amsgrad);
  }
};

struct Adagrad {
  double lr = 1e-2;
  double lr_decay = 0.0;
  double weight_decay = 0.0;
  double initial_accumulator_value = 0.0;
  double eps = 1e-10;
  LINKBOY_FIELDS(lr, lr_decay, weight_decay, initial_accumulator_value, eps);

  torch::optim::AdagradOptions get() const {
    return torch::optim::AdagradOptions(not_negative("lr", lr))
        .lr_decay(not_negative("lr_decay", lr_decay))
        .weight_decay(not_negative("weight_decay", weight_decay))
        .initial_accumulator_value(
            not_negative("initial_accumulator_value", initial_accumulator_value))
        .eps(not_negative("eps", eps));
  }
};

struct RmsProp {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0.0;
  double momentum = 0.0;
  bool centered = false;
  LINKBOY_FIELDS(lr, alpha, eps, weight_decay, momentum, centered);

  torch::optim::RMSpropOptions get() const {
    return torch::optim::RMSpropOptions(not_negative("lr", lr))
        .alpha(not_negative("alpha", alpha))
        .eps(not_negative("eps", eps))
        .weight_decay(not_negative("weight_decay", weight_decay))
        .momentum(not_negative("momentum", momentum))
        .centered(centered);
  }
};

template <class Optimizer, class Options>
CreateOptimizerFn creating(Options options) {
  return [options = std::move(options)](std::vector<at::Tensor> parameters) {
    return std::make_shared<Optimizer>(std::move(parameters), options);
  };
}

using Optimizers = NamedFactory<CreateOptimizerFn>;

const Optimizers& optimizers() {
  namespace optim = torch::optim;
  static const Optimizers all(
      "optimizer",
      {
          Optimizers::entry<Sgd>("sgd",
                                 [](const Sgd& sgd) { return creating<optim::SGD>(sgd.get()); }),
          Optimizers::entry<Adam>("adam",
                                  [](const Adam& adam) {
                                    return creating<optim::Adam>(adam.get<optim::AdamOptions>());
                                  }),
          Optimizers::entry<Adam>("adamw",
                                  [](const Adam& adam) {
                                    return creating<optim::AdamW>(adam.get<optim::AdamWOptions>());
                                  },
                                  {.weight_decay = 1e-2}),
          Optimizers::entry<Adagrad>(
              "adagrad",
              [](const Adagrad& adagrad) { return creating<optim::Adagrad>(adagrad.get()); }),
          Optimizers::entry<RmsProp>(
              "rmsprop",
              [](const RmsProp& rmsprop) { return creating<optim::RMSprop>(rmsprop.get()); }),
      });
  return all;
}

}  // namespace

CreateOptimizerFn make_optimizer_fn(const std::string& name, const TextSettings& settings) {
  return optimizers().make(name, settings);
}

std::vector<std::string> optimizer_names() { return optimizers().names(); }

TextSettings optimizer_options(const std::string& name) { return optimizers().find(name).options; }

}  // namespace linkboy

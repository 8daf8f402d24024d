#include "linkboy/run/optimizer_factory.hpp"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <utility>

namespace linkboy {
namespace {

struct Sgd {
  double lr = 1e-3;
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;
  LINKBOY_FIELDS(lr, momentum, dampening, weight_decay, nesterov);

  torch::optim::SGDOptions get() const {
    return torch::optim::SGDOptions(lr)
        .momentum(momentum)
        .dampening(dampening)
        .weight_decay(weight_decay)
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
    return Options(lr)
        .betas({betas[0], betas[1]})
        .eps(eps)
        .weight_decay(weight_decay)
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
    return torch::optim::AdagradOptions(lr)
        .lr_decay(lr_decay)
        .weight_decay(weight_decay)
        .initial_accumulator_value(initial_accumulator_value)
        .eps(eps);
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
    return torch::optim::RMSpropOptions(lr)
        .alpha(alpha)
        .eps(eps)
        .weight_decay(weight_decay)
        .momentum(momentum)
        .centered(centered);
  }
};

template <class Optimizer, class Options>
CreateOptimizerFn creating(Options options) {
  return [options = std::move(options)](std::vector<at::Tensor> parameters) {
    return std::make_shared<Optimizer>(std::move(parameters), options);
  };
}

using Optimizers = MadeByName<CreateOptimizerFn>;

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

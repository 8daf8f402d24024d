// Functions that create LibTorch's optimizers from options or from text.

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/util/make.hpp"
#include "linkboy/util/text_options.hpp"

namespace torch::optim {
class Optimizer;
}

namespace linkboy {

/// A function that creates the optimizer of a model from the model's parameters:
/// `adamw({.lr = 1e-3})(net->parameters())`. The options and their defaults are those of Python's
/// `torch.optim`.
using CreateOptimizerFn = Made<
    std::function<std::shared_ptr<torch::optim::Optimizer>(std::vector<at::Tensor> parameters)>>;

struct SgdOptimizerOptions {
  /// Learning rate. Must not be negative.
  double lr = 1e-3;
  /// Factor of the previous update's direction. Must not be negative.
  double momentum = 0.0;
  /// Share of the gradient that is not added to the momentum.
  double dampening = 0.0;
  /// Factor of the weights that are added to the gradient. Must not be negative.
  double weight_decay = 0.0;
  /// Whether to use Nesterov's momentum, which needs a momentum and no dampening.
  bool nesterov = false;
  LINKBOY_FIELDS(lr, momentum, dampening, weight_decay, nesterov);
};
/// Creates a torch::optim::SGD.
/// @throws OptionError if an option is out of range.
LINKBOY_API CreateOptimizerFn sgd(const SgdOptimizerOptions& options = {});

struct AdamOptimizerOptions {
  /// Learning rate. Must not be negative.
  double lr = 1e-3;
  /// Decay of the averages of the gradient and of its square: two numbers in [0, 1).
  std::vector<double> betas{0.9, 0.999};
  /// Added to the denominator. Must not be negative.
  double eps = 1e-8;
  /// Factor of the weights that are added to the gradient. Must not be negative.
  double weight_decay = 0.0;
  /// Whether to divide by the largest average so far.
  bool amsgrad = false;
  LINKBOY_FIELDS(lr, betas, eps, weight_decay, amsgrad);
};
/// Creates a torch::optim::Adam.
/// @throws OptionError if an option is out of range.
LINKBOY_API CreateOptimizerFn adam(const AdamOptimizerOptions& options = {});

struct AdamWOptimizerOptions {
  /// Learning rate. Must not be negative.
  double lr = 1e-3;
  /// Decay of the averages of the gradient and of its square: two numbers in [0, 1).
  std::vector<double> betas{0.9, 0.999};
  /// Added to the denominator. Must not be negative.
  double eps = 1e-8;
  /// Each update subtracts this times the learning rate from the weights, as a share. Must not be
  /// negative.
  double weight_decay = 1e-2;
  /// Whether to divide by the largest average so far.
  bool amsgrad = false;
  LINKBOY_FIELDS(lr, betas, eps, weight_decay, amsgrad);
};
/// Creates a torch::optim::AdamW.
/// @throws OptionError if an option is out of range.
LINKBOY_API CreateOptimizerFn adamw(const AdamWOptimizerOptions& options = {});

struct AdagradOptimizerOptions {
  /// Learning rate. Must not be negative.
  double lr = 1e-2;
  /// Decay of the learning rate: lr / (1 + lr_decay * updates). Must not be negative.
  double lr_decay = 0.0;
  /// Factor of the weights that are added to the gradient. Must not be negative.
  double weight_decay = 0.0;
  /// First value of the sums of squares. Must not be negative.
  double initial_accumulator_value = 0.0;
  /// Added to the denominator. Must not be negative.
  double eps = 1e-10;
  LINKBOY_FIELDS(lr, lr_decay, weight_decay, initial_accumulator_value, eps);
};
/// Creates a torch::optim::Adagrad.
/// @throws OptionError if an option is out of range.
LINKBOY_API CreateOptimizerFn adagrad(const AdagradOptimizerOptions& options = {});

struct RmsPropOptimizerOptions {
  /// Learning rate. Must not be negative.
  double lr = 1e-2;
  /// Decay of the average of the squared gradient. Must not be negative.
  double alpha = 0.99;
  /// Added to the denominator. Must not be negative.
  double eps = 1e-8;
  /// Factor of the weights that are added to the gradient. Must not be negative.
  double weight_decay = 0.0;
  /// Factor of the previous update's direction. Must not be negative.
  double momentum = 0.0;
  /// Whether to divide by the standard deviation of the gradient.
  bool centered = false;
  LINKBOY_FIELDS(lr, alpha, eps, weight_decay, momentum, centered);
};
/// Creates a torch::optim::RMSprop.
/// @throws OptionError if an option is out of range.
LINKBOY_API CreateOptimizerFn rmsprop(const RmsPropOptimizerOptions& options = {});

struct LbfgsOptimizerOptions {
  /// How the length of a step is found.
  enum class LineSearch { strong_wolfe };
  friend LINKBOY_ENUM_NAMES(LineSearch, strong_wolfe);

  /// Learning rate. Must not be negative.
  double lr = 1.0;
  /// Largest number of iterations in one update. Must be at least 1.
  int64_t max_iter = 20;
  /// Largest number of evaluations of the loss in one update. Must be at least 1. If not set, 1.25
  /// times `max_iter`.
  std::optional<int64_t> max_eval{};
  /// An update ends when no element of the gradient exceeds this. Must not be negative.
  double tolerance_grad = 1e-7;
  /// An update ends when the loss or the weights change by less than this. Must not be negative.
  double tolerance_change = 1e-9;
  /// Number of earlier iterations that are kept. Must be at least 1.
  int64_t history_size = 100;
  /// The line search. If not set, steps have the length `lr`.
  std::optional<LineSearch> line_search_fn{};
  LINKBOY_FIELDS(lr, max_iter, max_eval, tolerance_grad, tolerance_change, history_size,
                 line_search_fn);
};
/// Creates a torch::optim::LBFGS, which evaluates the loss several times in an update. Trainer
/// accepts it; Engine does not.
/// @throws OptionError if an option is out of range.
LINKBOY_API CreateOptimizerFn lbfgs(const LbfgsOptimizerOptions& options = {});

/// The optimizers that can be created by name, for command lines and config files: sgd, adam,
/// adamw, adagrad, rmsprop and lbfgs.
LINKBOY_API const NamedFactory<CreateOptimizerFn>& optimizer_factory();

/// Returns a function that creates the optimizer called `name`. `betas` are two numbers separated
/// by a comma.
/// @throws OptionError if there is no such optimizer or option (the message lists the accepted
///         names), if a value cannot be parsed, or if an option is out of range.
inline CreateOptimizerFn make_optimizer_fn(const std::string& name,
                                           const TextSettings& settings = {}) {
  return optimizer_factory().make(name, settings);
}

/// Returns the names that `make_optimizer_fn` accepts.
inline std::vector<std::string> optimizer_names() { return optimizer_factory().names(); }

/// Returns the options of an optimizer with their defaults.
/// @throws OptionError if there is no such optimizer.
inline TextSettings optimizer_options(const std::string& name) {
  return optimizer_factory().options(name);
}

}  // namespace linkboy

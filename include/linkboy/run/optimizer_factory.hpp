#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/util/text_options.hpp"

namespace torch::optim {
class Optimizer;
}

namespace linkboy {

/// A function that creates the optimizer of a model from the model's parameters.
using CreateOptimizerFn =
    std::function<std::shared_ptr<torch::optim::Optimizer>(std::vector<at::Tensor> parameters)>;

/// Returns a function that creates the LibTorch optimizer called `name`, for command lines and
/// config files. Keys and defaults are those of Python's `torch.optim`; `betas` are two numbers
/// separated by a comma.
/// @throws OptionError if there is no such optimizer or option, or if a value cannot be parsed; the
///         message lists the accepted names. An out-of-range value throws when the optimizer is
///         created.
[[nodiscard]] LINKBOY_API CreateOptimizerFn make_optimizer_fn(const std::string& name,
                                                              const TextSettings& settings = {});

/// Returns the names of the optimizers: sgd, adam, adamw, adagrad, rmsprop.
LINKBOY_API std::vector<std::string> optimizer_names();

/// Returns the options of an optimizer with their defaults.
/// @throws OptionError if there is no such optimizer.
LINKBOY_API TextSettings optimizer_options(const std::string& name);

}  // namespace linkboy

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

/// Makes the optimizer of a model from its parameters.
using CreateOptimizerFn =
    std::function<std::shared_ptr<torch::optim::Optimizer>(std::vector<at::Tensor> parameters)>;

/// Makes a LibTorch optimizer by its name, for command lines and config files. Keys and defaults
/// are those of Python's `torch.optim`; `betas` are two numbers with a comma between them.
/// @throws OptionError if there is no such optimizer or option, or a value cannot be read; the
///         message lists what there is. What is out of its range is thrown when the optimizer is
///         made.
LINKBOY_API CreateOptimizerFn make_optimizer_fn(const std::string& name,
                                                const TextSettings& settings = {});

/// sgd, adam, adamw, adagrad, rmsprop.
LINKBOY_API std::vector<std::string> optimizer_names();

/// The options that the optimizer takes, with their defaults.
/// @throws OptionError if there is no such optimizer.
LINKBOY_API TextSettings optimizer_options(const std::string& name);

}  // namespace linkboy

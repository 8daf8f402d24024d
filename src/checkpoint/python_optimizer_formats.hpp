#pragma once

#include <ATen/ATen.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/error.hpp"

/// The layouts in which Python's optimizer classes save their state: keys, order and types of torch
/// 2.11. One class per optimizer, with these members:
///
/// - `kOwnOption` is an option that the group of no other class has.
/// - `save_group` and `load_group` convert a group's options to and from an entry of `param_groups`
///   without `params`.
/// - `save_state` and `load_state` convert a parameter's state to and from an entry of `state`.
///   `load_state` returns null for an entry that does not contain a state.
/// - `initial_state` exists if LibTorch's optimizer needs a state for every parameter. It makes the
///   state of a parameter that does not have an entry.
///
/// Options that only Python has are saved with Python's defaults.
namespace linkboy::python_optimizer_formats {

// Returns a number. Python stores some numbers (a learning rate, the step) in tensors.
inline double number(const StateDict& saved, std::string_view key) {
  const auto& value = saved.at(key);
  if (!value.isTensor()) return saved.get_double(key);
  LINKBOY_CHECK(value.toTensor().defined() && value.toTensor().numel() == 1, "\"", key,
                "\" is a tensor without exactly one element; it must be a number.");
  return value.toTensor().to(at::kDouble).item<double>();
}

inline bool is_set(const StateDict& saved, std::string_view key) {
  return saved.contains(key) && !saved.at(key).isNone();
}

inline void refuse_if_true(const StateDict& saved, std::string_view key) {
  LINKBOY_CHECK(!is_set(saved, key) || !saved.get_bool(key), "it was saved with ", key,
                "=True, which LibTorch's optimizer does not have. Train without it.");
}

// Returns a copy of a saved tensor in the memory layout of the parameter, which the fused kernels
// need.
inline at::Tensor tensor_like(const at::Tensor& param, const StateDict& saved,
                              std::string_view key) {
  const at::Tensor value = saved.get_tensor(key);
  LINKBOY_CHECK(value.defined() && value.sizes() == param.sizes(), "\"", key, "\" is of shape ",
                value.sizes(), "; its parameter is of shape ", param.sizes(),
                ". Build the model and the optimizer as they were when it was saved.");
  return at::empty_like(param).copy_(value);
}

// LibTorch counts steps in an integer, Python in a float32 tensor.
inline at::Tensor saved_step(int64_t step) {
  return at::scalar_tensor(static_cast<double>(step), at::kFloat);
}

inline int64_t loaded_step(const StateDict& saved) {
  const double step = number(saved, "step");
  LINKBOY_CHECK(step >= 0 && step < 0x1p53, "\"step\" is ", step,
                "; it must be at least 0 and less than 2^53.");
  return static_cast<int64_t>(step);
}

// Returns a state with its step, which the layout completes; null for an empty entry.
template <typename ParamState>
std::unique_ptr<ParamState> load_counted(const StateDict& saved) {
  if (saved.empty()) return nullptr;
  auto state = std::make_unique<ParamState>();
  state->step(loaded_step(saved));
  return state;
}

struct SgdLayout {
  using Options = torch::optim::SGDOptions;
  using ParamState = torch::optim::SGDParamState;
  static constexpr const char* kOwnOption = "dampening";

  static StateDict save_group(const Options& options) {
    return {{"lr", options.lr()},
            {"momentum", options.momentum()},
            {"dampening", options.dampening()},
            {"weight_decay", options.weight_decay()},
            {"nesterov", options.nesterov()},
            {"maximize", false},
            {"foreach", c10::IValue()},
            {"differentiable", false},
            {"fused", c10::IValue()}};
  }

  static Options load_group(const StateDict& saved) {
    return Options(number(saved, "lr"))
        .momentum(number(saved, "momentum"))
        .dampening(number(saved, "dampening"))
        .weight_decay(number(saved, "weight_decay"))
        .nesterov(is_set(saved, "nesterov") && saved.get_bool("nesterov"));
  }

  static StateDict save_state(const ParamState& state) {
    if (!state.momentum_buffer().defined()) return {{"momentum_buffer", c10::IValue()}};
    return {{"momentum_buffer", state.momentum_buffer()}};
  }

  // LibTorch assumes that every state has a buffer, so there is no state without one.
  static std::unique_ptr<ParamState> load_state(const StateDict& saved, const at::Tensor& param,
                                                const Options&) {
    if (!is_set(saved, "momentum_buffer")) return nullptr;
    auto state = std::make_unique<ParamState>();
    state->momentum_buffer(tensor_like(param, saved, "momentum_buffer"));
    return state;
  }
};

template <typename OptionsType, typename ParamStateType, bool kDecoupled>
struct AdamLayout {
  using Options = OptionsType;
  using ParamState = ParamStateType;
  static constexpr const char* kOwnOption = "betas";

  static StateDict save_group(const Options& options) {
    return {{"lr", options.lr()},
            {"betas", options.betas()},
            {"eps", options.eps()},
            {"weight_decay", options.weight_decay()},
            {"amsgrad", options.amsgrad()},
            {"maximize", false},
            {"foreach", c10::IValue()},
            {"capturable", false},
            {"differentiable", false},
            {"fused", c10::IValue()},
            {"decoupled_weight_decay", kDecoupled}};
  }

  static Options load_group(const StateDict& saved) {
    LINKBOY_CHECK(!is_set(saved, "decoupled_weight_decay") ||
                      saved.get_bool("decoupled_weight_decay") == kDecoupled,
                  "it is the state of ", kDecoupled ? "Adam" : "AdamW",
                  ", whose weight decay works differently. Use that optimizer.");
    const auto& betas = saved.at("betas");
    LINKBOY_CHECK((betas.isTuple() || betas.isList()), "\"betas\" is a ", betas.tagKind(),
                  "; it must be a tuple of two numbers.");
    const auto items = betas.isTuple() ? c10::ArrayRef<c10::IValue>(betas.toTupleRef().elements())
                                       : betas.toListRef();
    LINKBOY_CHECK(items.size() == 2, "\"betas\" has ", items.size(), " numbers; it must have 2.");
    const StateDict both = {{"betas[0]", items[0]}, {"betas[1]", items[1]}};
    return Options(number(saved, "lr"))
        .betas({number(both, "betas[0]"), number(both, "betas[1]")})
        .eps(number(saved, "eps"))
        .weight_decay(number(saved, "weight_decay"))
        .amsgrad(saved.get_bool("amsgrad"));
  }

  static StateDict save_state(const ParamState& state) {
    StateDict saved = {{"step", saved_step(state.step())},
                       {"exp_avg", state.exp_avg()},
                       {"exp_avg_sq", state.exp_avg_sq()}};
    if (state.max_exp_avg_sq().defined()) saved.set("max_exp_avg_sq", state.max_exp_avg_sq());
    return saved;
  }

  static std::unique_ptr<ParamState> load_state(const StateDict& saved, const at::Tensor& param,
                                                const Options& options) {
    auto state = load_counted<ParamState>(saved);
    if (!state) return nullptr;
    state->exp_avg(tensor_like(param, saved, "exp_avg"));
    state->exp_avg_sq(tensor_like(param, saved, "exp_avg_sq"));
    if (options.amsgrad() || is_set(saved, "max_exp_avg_sq")) {
      state->max_exp_avg_sq(tensor_like(param, saved, "max_exp_avg_sq"));
    }
    return state;
  }
};

struct AdagradLayout {
  using Options = torch::optim::AdagradOptions;
  using ParamState = torch::optim::AdagradParamState;
  static constexpr const char* kOwnOption = "lr_decay";

  static StateDict save_group(const Options& options) {
    return {{"lr", options.lr()},
            {"lr_decay", options.lr_decay()},
            {"eps", options.eps()},
            {"weight_decay", options.weight_decay()},
            {"initial_accumulator_value", options.initial_accumulator_value()},
            {"foreach", c10::IValue()},
            {"maximize", false},
            {"differentiable", false},
            {"fused", c10::IValue()}};
  }

  static Options load_group(const StateDict& saved) {
    return Options(number(saved, "lr"))
        .lr_decay(number(saved, "lr_decay"))
        .eps(number(saved, "eps"))
        .weight_decay(number(saved, "weight_decay"))
        .initial_accumulator_value(number(saved, "initial_accumulator_value"));
  }

  static StateDict save_state(const ParamState& state) {
    return {{"step", saved_step(state.step())}, {"sum", state.sum()}};
  }

  // Makes the same state as the constructor. LibTorch's step() fails for a parameter without a
  // state.
  static std::unique_ptr<ParamState> initial_state(const at::Tensor& param,
                                                   const Options& options) {
    auto state = std::make_unique<ParamState>();
    state->sum(at::full_like(param, options.initial_accumulator_value()));
    return state;
  }

  static std::unique_ptr<ParamState> load_state(const StateDict& saved, const at::Tensor& param,
                                                const Options&) {
    auto state = load_counted<ParamState>(saved);
    if (!state) return nullptr;
    state->sum(tensor_like(param, saved, "sum"));
    return state;
  }
};

struct RmspropLayout {
  using Options = torch::optim::RMSpropOptions;
  using ParamState = torch::optim::RMSpropParamState;
  static constexpr const char* kOwnOption = "alpha";

  static StateDict save_group(const Options& options) {
    return {{"lr", options.lr()},
            {"momentum", options.momentum()},
            {"alpha", options.alpha()},
            {"eps", options.eps()},
            {"centered", options.centered()},
            {"weight_decay", options.weight_decay()},
            {"capturable", false},
            {"foreach", c10::IValue()},
            {"maximize", false},
            {"differentiable", false}};
  }

  static Options load_group(const StateDict& saved) {
    refuse_if_true(saved, "capturable");
    return Options(number(saved, "lr"))
        .momentum(number(saved, "momentum"))
        .alpha(number(saved, "alpha"))
        .eps(number(saved, "eps"))
        .centered(saved.get_bool("centered"))
        .weight_decay(number(saved, "weight_decay"));
  }

  static StateDict save_state(const ParamState& state) {
    StateDict saved = {{"step", saved_step(state.step())}, {"square_avg", state.square_avg()}};
    if (state.momentum_buffer().defined()) saved.set("momentum_buffer", state.momentum_buffer());
    if (state.grad_avg().defined()) saved.set("grad_avg", state.grad_avg());
    return saved;
  }

  static std::unique_ptr<ParamState> load_state(const StateDict& saved, const at::Tensor& param,
                                                const Options& options) {
    auto state = load_counted<ParamState>(saved);
    if (!state) return nullptr;
    state->square_avg(tensor_like(param, saved, "square_avg"));
    if (options.momentum() > 0 || is_set(saved, "momentum_buffer")) {
      state->momentum_buffer(tensor_like(param, saved, "momentum_buffer"));
    }
    if (options.centered() || is_set(saved, "grad_avg")) {
      state->grad_avg(tensor_like(param, saved, "grad_avg"));
    }
    return state;
  }
};

/// LBFGS treats all parameters as one vector. Its state is stored with the first parameter.
struct LbfgsLayout {
  using Options = torch::optim::LBFGSOptions;
  using ParamState = torch::optim::LBFGSParamState;
  static constexpr const char* kOwnOption = "history_size";

  static StateDict save_group(const Options& options) {
    const auto& search = options.line_search_fn();
    StateDict saved = {{"lr", options.lr()}, {"max_iter", options.max_iter()}};
    saved.set("max_eval", options.max_eval() ? c10::IValue(*options.max_eval()) : c10::IValue());
    saved.set("tolerance_grad", options.tolerance_grad());
    saved.set("tolerance_change", options.tolerance_change());
    saved.set("history_size", options.history_size());
    saved.set("line_search_fn", search ? c10::IValue(*search) : c10::IValue());
    return saved;
  }

  static Options load_group(const StateDict& saved) {
    Options options(number(saved, "lr"));
    options.max_iter(saved.get_int("max_iter"));
    if (is_set(saved, "max_eval")) options.max_eval(saved.get_int("max_eval"));
    options.tolerance_grad(number(saved, "tolerance_grad"))
        .tolerance_change(number(saved, "tolerance_change"))
        .history_size(saved.get_int("history_size"));
    if (is_set(saved, "line_search_fn")) options.line_search_fn(saved.get_string("line_search_fn"));
    return options;
  }

  // Python's "al" is omitted, because each step writes it before reading it.
  static StateDict save_state(const ParamState& state) {
    StateDict saved = {{"func_evals", state.func_evals()}, {"n_iter", state.n_iter()}};
    if (!state.d().defined()) return saved;  // no step has found anything to improve
    saved.set("d", state.d());
    saved.set("t", state.t());
    saved.set("old_dirs", list_of(state.old_dirs()));
    saved.set("old_stps", list_of(state.old_stps()));
    saved.set("ro", list_of(state.ro()));
    saved.set("H_diag", state.H_diag());
    saved.set("prev_flat_grad", state.prev_flat_grad());
    saved.set("prev_loss", state.prev_loss());
    return saved;
  }

  static std::unique_ptr<ParamState> load_state(const StateDict& saved, const at::Tensor& param,
                                                const Options&) {
    if (saved.empty()) return nullptr;
    auto state = std::make_unique<ParamState>();
    state->func_evals(saved.get_int("func_evals"));
    state->n_iter(saved.get_int("n_iter"));
    if (!is_set(saved, "d")) return state;
    const at::Tensor d = own_copy(saved.at("d"), param, "d");
    state->d(d);
    state->t(number(saved, "t"));
    state->old_dirs(vectors(saved, "old_dirs", param, d.numel()));
    state->old_stps(vectors(saved, "old_stps", param, d.numel()));
    state->ro(vectors(saved, "ro", param, 1));
    LINKBOY_CHECK(
        state->old_dirs().size() == state->old_stps().size() &&
            state->old_dirs().size() == state->ro().size(),
        "\"old_dirs\", \"old_stps\" and \"ro\" have different lengths; they must be parts of "
        "the same history. Use another copy.");
    // In Python, it is the number 1 at first.
    state->H_diag(saved.at("H_diag").isTensor()
                      ? own_copy(saved.at("H_diag"), param, "H_diag")
                      : at::scalar_tensor(number(saved, "H_diag"), param.options()));
    const at::Tensor gradient = own_copy(saved.at("prev_flat_grad"), param, "prev_flat_grad");
    check_length(gradient, d.numel(), "prev_flat_grad");
    state->prev_flat_grad(gradient);
    state->prev_loss(number(saved, "prev_loss"));
    return state;
  }

 private:
  static c10::IValue list_of(const std::deque<at::Tensor>& tensors) {
    c10::impl::GenericList list(c10::AnyType::get());
    for (const at::Tensor& tensor : tensors) list.push_back(tensor);
    return list;
  }

  static at::Tensor own_copy(const c10::IValue& value, const at::Tensor& param,
                             std::string_view key) {
    LINKBOY_CHECK(value.isTensor() && value.toTensor().defined(), "\"", key, "\" is a ",
                  value.tagKind(), "; it must be a tensor.");
    return value.toTensor().to(param.options(), /*non_blocking=*/false, /*copy=*/true);
  }

  static void check_length(const at::Tensor& tensor, int64_t length, std::string_view key) {
    LINKBOY_CHECK(tensor.numel() == length, "\"", key, "\" has ", tensor.numel(),
                  " numbers; it must have ", length,
                  ". Build the model and the optimizer as they were when it was saved.");
  }

  static std::deque<at::Tensor> vectors(const StateDict& saved, std::string_view key,
                                        const at::Tensor& param, int64_t length) {
    std::deque<at::Tensor> tensors;
    for (const c10::IValue& value : saved.get_list(key)) {
      tensors.push_back(own_copy(value, param, key));
      check_length(tensors.back(), length, key);
    }
    return tensors;
  }
};

}  // namespace linkboy::python_optimizer_formats

#pragma once

#include <ATen/ATen.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <typeinfo>
#include <vector>

#include "checkpoint/ivalue_tree.hpp"
#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/error.hpp"

/// The layouts in which Python's optimizer classes save their state: keys, order and types of torch
/// 2.11. One class per optimizer, with these members:
///
/// - `kOwnOption` is an option that the group of no other class has.
/// - `visit_options` visits a group's options, in the order of an entry of `param_groups`: with a
///   SaveOptions or a LoadOptions.
/// - `save_state` and `load_state` convert a parameter's state to and from an entry of `state`.
///   `load_state` returns null for an entry that does not contain a state.
/// - `visit_state` exists if the state consists of tensors of the parameter's shape and a step.
/// - `initial_state` exists if LibTorch's optimizer needs a state for every parameter. It makes the
///   state of a parameter that does not have an entry.
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

/// Saves the options of a group.
struct SaveOptions {
  template <class Value>
  void operator()(const char* key, const Value& value) {
    saved.set(key, c10::IValue(value));
  }
  /// Options that only Python has are saved with Python's defaults.
  void of_python(std::initializer_list<std::string_view> keys) {
    for (const std::string_view key : keys) {
      saved.set(key, key == "foreach" || key == "fused" ? c10::IValue() : c10::IValue(false));
    }
  }
  void added_later(const char* key, bool value) { saved.set(key, value); }
  void refused(const char* key) { saved.set(key, false); }
  void required(const char* key, bool value, const char*) { saved.set(key, value); }

  StateDict saved{};
};

/// Loads the options of a group.
struct LoadOptions {
  void operator()(const char* key, double& value) const { value = number(saved, key); }
  void operator()(const char* key, int64_t& value) const { value = saved.get_int(key); }
  void operator()(const char* key, bool& value) const { value = saved.get_bool(key); }
  void added_later(const char* key, bool& value) const {
    value = is_set(saved, key) && saved.get_bool(key);
  }
  void operator()(const char* key, std::optional<int64_t>& value) const {
    if (is_set(saved, key)) value = saved.get_int(key);
  }
  void operator()(const char* key, std::optional<std::string>& value) const {
    if (is_set(saved, key)) value = saved.get_string(key);
  }
  void operator()(const char*, std::tuple<double, double>& betas) const {
    const auto& pair = saved.at("betas");
    LINKBOY_CHECK(pair.isTuple() || pair.isList(), "\"betas\" is a ", pair.tagKind(),
                  "; it must be a tuple of two numbers.");
    const auto items = pair.isTuple() ? c10::ArrayRef<c10::IValue>(pair.toTupleRef().elements())
                                      : pair.toListRef();
    LINKBOY_CHECK(items.size() == 2, "\"betas\" has ", items.size(), " numbers; it must have 2.");
    const StateDict both = {{"betas[0]", items[0]}, {"betas[1]", items[1]}};
    betas = {number(both, "betas[0]"), number(both, "betas[1]")};
  }
  /// Refuses the two options that change the results; `refused` refuses another one.
  void of_python(std::initializer_list<std::string_view>) const {
    refused("maximize");
    refused("differentiable");
  }
  void refused(const char* key) const {
    LINKBOY_CHECK(!is_set(saved, key) || !saved.get_bool(key), "it was saved with ", key,
                  "=True, which LibTorch's optimizer does not have. Train without it.");
  }
  /// An option with the same value in all states of the class.
  void required(const char* key, bool value, const char* error) const {
    LINKBOY_CHECK(!is_set(saved, key) || saved.get_bool(key) == value, error);
  }

  const StateDict& saved;
};

/// Saves the state of a parameter.
struct SaveState {
  // LibTorch counts steps in an integer, Python in a float32 tensor.
  void step(int64_t step) {
    saved.set("step", at::scalar_tensor(static_cast<double>(step), at::kFloat));
  }
  void operator()(const char* key, const at::Tensor& tensor) {
    saved.set(key, tensor.defined() ? c10::IValue(tensor) : c10::IValue());
  }
  void optional(const char* key, const at::Tensor& tensor, bool) {
    if (tensor.defined()) saved.set(key, tensor);
  }

  StateDict saved{};
};

/// Loads the state of a parameter.
struct LoadState {
  void step(int64_t& step) const {
    const double value = number(saved, "step");
    LINKBOY_CHECK(value >= 0 && value < 0x1p53, "\"step\" is ", value,
                  "; it must be at least 0 and less than 2^53.");
    step = static_cast<int64_t>(value);
  }
  /// Copies a tensor in the memory layout of the parameter, which the fused kernels need.
  void operator()(const char* key, at::Tensor& tensor) const {
    const at::Tensor value = saved.get_tensor(key);
    LINKBOY_CHECK(value.defined() && value.sizes() == param.sizes(), "\"", key, "\" is of shape ",
                  value.sizes(), "; its parameter is of shape ", param.sizes(),
                  ". Build the model and the optimizer as they were when it was saved.");
    tensor = at::empty_like(param).copy_(value);
  }
  void optional(const char* key, at::Tensor& tensor, bool is_needed) const {
    if (is_needed || is_set(saved, key)) (*this)(key, tensor);
  }

  const StateDict& saved;
  const at::Tensor& param;
};

/// The base of a layout with `visit_state`.
template <class Layout, class OptionsType, class ParamStateType>
struct LayoutOfTensors {
  using Options = OptionsType;
  using ParamState = ParamStateType;

  static StateDict save_state(const ParamState& state, const Options& options) {
    SaveState save;
    Layout::visit_state(state, options, save);
    return std::move(save.saved);
  }

  static std::unique_ptr<ParamState> load_state(const StateDict& saved, const at::Tensor& param,
                                                const Options& options) {
    const auto is_none = [](const auto& entry) { return entry.second.isNone(); };
    if (std::ranges::all_of(saved.entries(), is_none)) return nullptr;
    auto state = std::make_unique<ParamState>();
    Layout::visit_state(*state, options, LoadState{saved, param});
    return state;
  }
};

// LibTorch assumes that every state has a buffer, so there is no state without one.
struct SgdLayout
    : LayoutOfTensors<SgdLayout, torch::optim::SGDOptions, torch::optim::SGDParamState> {
  static constexpr const char* kOwnOption = "dampening";

  static void visit_options(auto& options, auto&& visit) {
    visit("lr", options.lr());
    visit("momentum", options.momentum());
    visit("dampening", options.dampening());
    visit("weight_decay", options.weight_decay());
    visit.added_later("nesterov", options.nesterov());
    visit.of_python({"maximize", "foreach", "differentiable", "fused"});
  }

  static void visit_state(auto& state, const Options&, auto&& visit) {
    visit("momentum_buffer", state.momentum_buffer());
  }
};

template <class Options, class ParamState, bool kDecoupled>
struct AdamLayout
    : LayoutOfTensors<AdamLayout<Options, ParamState, kDecoupled>, Options, ParamState> {
  static constexpr const char* kOwnOption = "betas";

  static void visit_options(auto& options, auto&& visit) {
    visit("lr", options.lr());
    visit("betas", options.betas());
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit("amsgrad", options.amsgrad());
    visit.of_python({"maximize", "foreach", "capturable", "differentiable", "fused"});
    visit.required("decoupled_weight_decay", kDecoupled,
                   kDecoupled ? "it is the state of Adam, whose weight decay works differently. "
                                "Use that optimizer."
                              : "it is the state of AdamW, whose weight decay works differently. "
                                "Use that optimizer.");
  }

  static void visit_state(auto& state, const Options& options, auto&& visit) {
    visit.step(state.step());
    visit("exp_avg", state.exp_avg());
    visit("exp_avg_sq", state.exp_avg_sq());
    visit.optional("max_exp_avg_sq", state.max_exp_avg_sq(), options.amsgrad());
  }
};

struct AdagradLayout : LayoutOfTensors<AdagradLayout, torch::optim::AdagradOptions,
                                       torch::optim::AdagradParamState> {
  static constexpr const char* kOwnOption = "lr_decay";

  static void visit_options(auto& options, auto&& visit) {
    visit("lr", options.lr());
    visit("lr_decay", options.lr_decay());
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit("initial_accumulator_value", options.initial_accumulator_value());
    visit.of_python({"foreach", "maximize", "differentiable", "fused"});
  }

  static void visit_state(auto& state, const Options&, auto&& visit) {
    visit.step(state.step());
    visit("sum", state.sum());
  }

  // Makes the same state as the constructor. LibTorch's step() fails for a parameter without a
  // state.
  static std::unique_ptr<ParamState> initial_state(const at::Tensor& param,
                                                   const Options& options) {
    auto state = std::make_unique<ParamState>();
    state->sum(at::full_like(param, options.initial_accumulator_value()));
    return state;
  }
};

struct RmspropLayout : LayoutOfTensors<RmspropLayout, torch::optim::RMSpropOptions,
                                       torch::optim::RMSpropParamState> {
  static constexpr const char* kOwnOption = "alpha";

  static void visit_options(auto& options, auto&& visit) {
    visit("lr", options.lr());
    visit("momentum", options.momentum());
    visit("alpha", options.alpha());
    visit("eps", options.eps());
    visit("centered", options.centered());
    visit("weight_decay", options.weight_decay());
    visit.refused("capturable");
    visit.of_python({"foreach", "maximize", "differentiable"});
  }

  static void visit_state(auto& state, const Options& options, auto&& visit) {
    visit.step(state.step());
    visit("square_avg", state.square_avg());
    visit.optional("momentum_buffer", state.momentum_buffer(), options.momentum() > 0);
    visit.optional("grad_avg", state.grad_avg(), options.centered());
  }
};

/// LBFGS treats all parameters as one vector. Its state is stored with the first parameter.
struct LbfgsLayout {
  using Options = torch::optim::LBFGSOptions;
  using ParamState = torch::optim::LBFGSParamState;
  static constexpr const char* kOwnOption = "history_size";

  static void visit_options(auto& options, auto&& visit) {
    visit("lr", options.lr());
    visit("max_iter", options.max_iter());
    visit("max_eval", options.max_eval());
    visit("tolerance_grad", options.tolerance_grad());
    visit("tolerance_change", options.tolerance_change());
    visit("history_size", options.history_size());
    visit("line_search_fn", options.line_search_fn());
  }

  // Python's "al" is omitted, because each step writes it before reading it.
  static StateDict save_state(const ParamState& state, const Options&) {
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

/// Calls `work` with the layout of the optimizer's exact class, and returns whether there is one. A
/// derived class may have more state and another `step`, so the layout of its base is not used for
/// it.
template <class Work>
bool with_layout(const torch::optim::Optimizer& optimizer, Work work) {
  using namespace torch::optim;
  const auto& type = typeid(optimizer);
  if (type == typeid(SGD)) {
    work(SgdLayout());
  } else if (type == typeid(Adam)) {
    work(AdamLayout<AdamOptions, AdamParamState, false>());
  } else if (type == typeid(AdamW)) {
    work(AdamLayout<AdamWOptions, AdamWParamState, true>());
  } else if (type == typeid(Adagrad)) {
    work(AdagradLayout());
  } else if (type == typeid(RMSprop)) {
    work(RmspropLayout());
  } else if (type == typeid(LBFGS)) {
    work(LbfgsLayout());
  } else {
    return false;
  }
  return true;
}

}  // namespace linkboy::python_optimizer_formats

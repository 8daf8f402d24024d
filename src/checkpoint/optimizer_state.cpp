#include "optimizer_state.hpp"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Type.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <typeinfo>
#include <unordered_map>
#include <utility>
#include <vector>

#include "libtorch_archive.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

using torch::optim::Optimizer;
using States = std::remove_reference_t<decltype(std::declval<Optimizer&>().state())>;

// Python keeps some of its numbers (a learning rate, the step) in tensors.
double number(const StateDict& saved, std::string_view key) {
  const auto& value = saved.at(key);
  if (!value.isTensor()) return saved.get_double(key);
  LINKBOY_CHECK(value.toTensor().defined() && value.toTensor().numel() == 1, "\"", key,
                "\" is a tensor of another size than 1; it must be a number.");
  return value.toTensor().to(at::kDouble).item<double>();
}

bool is_set(const StateDict& saved, std::string_view key) {
  return saved.contains(key) && !saved.at(key).isNone();
}

void refuse_if_true(const StateDict& saved, std::string_view key) {
  LINKBOY_CHECK(!is_set(saved, key) || !saved.get_bool(key), "it was saved with ", key,
                "=True, which LibTorch's optimizer does not have. Train without it.");
}

// In the layout of the parameter, which the fused kernels want, and independent of `saved`.
at::Tensor tensor_like(const at::Tensor& param, const StateDict& saved, std::string_view key) {
  const at::Tensor value = saved.get_tensor(key);
  LINKBOY_CHECK(value.defined() && value.sizes() == param.sizes(), "\"", key, "\" is of shape ",
                value.sizes(), "; its parameter is of ", param.sizes(),
                ". Build the model and the optimizer as they were when it was saved.");
  return at::empty_like(param).copy_(value);
}

// The layouts of Python's classes: keys, order and types of torch 2.11.
struct SgdLayout {
  using Options = torch::optim::SGDOptions;
  using ParamState = torch::optim::SGDParamState;

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

  // LibTorch takes any entry to have its buffer, so without one there is none.
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
                  ", whose weight decay works otherwise. Use that optimizer.");
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
    StateDict saved = {{"step", at::scalar_tensor(static_cast<double>(state.step()), at::kFloat)},
                       {"exp_avg", state.exp_avg()},
                       {"exp_avg_sq", state.exp_avg_sq()}};
    if (state.max_exp_avg_sq().defined()) saved.set("max_exp_avg_sq", state.max_exp_avg_sq());
    return saved;
  }

  static std::unique_ptr<ParamState> load_state(const StateDict& saved, const at::Tensor& param,
                                                const Options& options) {
    if (saved.empty()) return nullptr;
    const double step = number(saved, "step");
    LINKBOY_CHECK(step >= 0 && step < 0x1p53, "\"step\" is ", step, "; it must be at least 0.");
    auto state = std::make_unique<ParamState>();
    state->step(static_cast<int64_t>(step));
    state->exp_avg(tensor_like(param, saved, "exp_avg"));
    state->exp_avg_sq(tensor_like(param, saved, "exp_avg_sq"));
    if (options.amsgrad() || is_set(saved, "max_exp_avg_sq")) {
      state->max_exp_avg_sq(tensor_like(param, saved, "max_exp_avg_sq"));
    }
    return state;
  }
};

// Calls `function` with the layout of the optimizer's exact class, and says whether it has one. A
// derived class may hold more, so it is not taken for its base.
template <typename Function>
bool visit_layout(const Optimizer& optimizer, Function function) {
  using namespace torch::optim;
  const auto& type = typeid(optimizer);
  if (type == typeid(SGD)) {
    function(SgdLayout{});
  } else if (type == typeid(Adam)) {
    function(AdamLayout<AdamOptions, AdamParamState, false>{});
  } else if (type == typeid(AdamW)) {
    function(AdamLayout<AdamWOptions, AdamWParamState, true>{});
  } else {
    return false;
  }
  return true;
}

template <typename Layout>
StateDict save(const Optimizer& optimizer) {
  c10::impl::GenericDict states(c10::AnyType::get(), c10::AnyType::get());
  c10::impl::GenericList groups(c10::AnyType::get());
  int64_t index = 0;
  for (const auto& group : optimizer.param_groups()) {
    c10::impl::GenericList indices(c10::AnyType::get());
    for (const auto& param : group.params()) {
      const auto found = optimizer.state().find(param.unsafeGetTensorImpl());
      if (found != optimizer.state().end()) {
        const auto& state = static_cast<const typename Layout::ParamState&>(*found->second);
        states.insert(index, Layout::save_state(state).to_ivalue());
      }
      indices.push_back(index++);
    }
    StateDict saved =
        Layout::save_group(static_cast<const typename Layout::Options&>(group.options()));
    saved.set("params", c10::IValue(indices));
    groups.push_back(saved.to_ivalue());
  }
  return {{"state", std::move(states)}, {"param_groups", std::move(groups)}};
}

// The numbers by which `state` refers to the parameters of a group.
std::vector<int64_t> param_indices(const StateDict& group, std::size_t expected,
                                   const std::string& what) {
  const auto& value = group.at("params");
  LINKBOY_CHECK(value.isList(), what, "[\"params\"] is a ", value.tagKind(),
                "; it must be a list of integers.");
  LINKBOY_CHECK(value.toListRef().size() == expected, what, " has ", value.toListRef().size(),
                " parameters; the optimizer's group has ", expected,
                ". Build the optimizer with the groups that it was saved with.");
  std::vector<int64_t> indices;
  for (const c10::IValue& index : value.toListRef()) {
    LINKBOY_CHECK(index.isInt(), what, "[\"params\"] holds a ", index.tagKind(),
                  "; it must be a list of integers.");
    indices.push_back(index.toInt());
  }
  return indices;
}

template <typename Layout>
void load(Optimizer& optimizer, const StateDict& saved) {
  LINKBOY_CHECK(saved.contains("param_groups") && saved.contains("state"),
                "it has no \"state\" and \"param_groups\", so it is another optimizer's. Use the "
                "optimizer that it was saved with.");
  const auto& groups = saved.at("param_groups");
  LINKBOY_CHECK(groups.isList(), "\"param_groups\" is a ", groups.tagKind(),
                "; it must be a list of dicts.");
  const auto& states = saved.at("state");
  LINKBOY_CHECK(states.isGenericDict(), "\"state\" is a ", states.tagKind(),
                "; it must be a dict.");
  LINKBOY_CHECK(groups.toListRef().size() == optimizer.param_groups().size(), "it has ",
                groups.toListRef().size(), " parameter groups; the optimizer has ",
                optimizer.param_groups().size(),
                ". Build the optimizer with the groups that it was saved with.");

  struct Target {
    at::Tensor param;
    std::size_t group;
  };
  std::vector<typename Layout::Options> all_options;
  std::unordered_map<int64_t, Target> targets;
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    const std::string what = c10::str("param_groups[", i, "]");
    const StateDict group = StateDict::from_ivalue(groups.toListRef()[i], what);
    refuse_if_true(group, "maximize");
    refuse_if_true(group, "differentiable");
    all_options.push_back(Layout::load_group(group));
    const auto& params = optimizer.param_groups()[i].params();
    const auto indices = param_indices(group, params.size(), what);
    for (std::size_t j = 0; j < params.size(); ++j) {
      LINKBOY_CHECK(targets.emplace(indices[j], Target{params[j], i}).second, what,
                    " names parameter ", indices[j], " a second time; each must occur once.");
    }
  }

  c10::NoGradGuard no_grad;
  States new_states;
  for (const auto& entry : states.toGenericDict()) {
    const auto found = entry.key().isInt() ? targets.find(entry.key().toInt()) : targets.end();
    LINKBOY_CHECK(found != targets.end(), "\"state\" has an entry ", entry.key(),
                  ", which no group names as a parameter.");
    const std::string what = c10::str("state[", entry.key(), "]");
    const auto& [param, group] = found->second;
    auto state =
        Layout::load_state(StateDict::from_ivalue(entry.value(), what), param, all_options[group]);
    if (state != nullptr) new_states[param.unsafeGetTensorImpl()] = std::move(state);
  }

  for (std::size_t i = 0; i < all_options.size(); ++i) {
    static_cast<typename Layout::Options&>(optimizer.param_groups()[i].options()) = all_options[i];
  }
  optimizer.state() = std::move(new_states);
}

}  // namespace

StateDict optimizer_state_dict(const Optimizer& optimizer) {
  StateDict result;
  const bool has_layout =
      visit_layout(optimizer, [&](auto layout) { result = save<decltype(layout)>(optimizer); });
  return has_layout ? result : save_libtorch_archive(optimizer);
}

void load_optimizer_state_dict(Optimizer& optimizer, const StateDict& state) {
  const std::string prefix =
      c10::str("cannot load this state into a ", c10::demangle(typeid(optimizer).name()), ": ");
  try {
    const bool has_layout =
        visit_layout(optimizer, [&](auto layout) { load<decltype(layout)>(optimizer, state); });
    if (!has_layout) load_libtorch_archive(optimizer, state);
  } catch (const Error& error) {
    throw Error(prefix + error.what());
  }
}

}  // namespace linkboy

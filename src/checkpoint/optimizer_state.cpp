// Saves and restores optimizers in Python's formats.

#include "optimizer_state.hpp"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Type.h>
#include <torch/types.h>

#include <fmt/format.h>

#include <map>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "libtorch_archive.hpp"
#include "linkboy/error.hpp"
#include "python_optimizer_formats.hpp"

namespace linkboy {
namespace {

using torch::optim::Optimizer;
using States = std::remove_reference_t<decltype(std::declval<Optimizer&>().state())>;

// Calls `function` with the layout of the optimizer's exact class, and returns whether there is
// one. A derived class may have more state, so the layout of its base is not used for it.
template <typename Function>
bool visit_layout(const Optimizer& optimizer, Function function) {
  using namespace torch::optim;
  using namespace python_optimizer_formats;
  const auto& type = typeid(optimizer);
  if (type == typeid(SGD)) {
    function(SgdLayout{});
  } else if (type == typeid(Adam)) {
    function(AdamLayout<AdamOptions, AdamParamState, false>{});
  } else if (type == typeid(AdamW)) {
    function(AdamLayout<AdamWOptions, AdamWParamState, true>{});
  } else if (type == typeid(Adagrad)) {
    function(AdagradLayout{});
  } else if (type == typeid(RMSprop)) {
    function(RmspropLayout{});
  } else if (type == typeid(LBFGS)) {
    function(LbfgsLayout{});
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

// Returns the indices by which `state` refers to the parameters of a group.
std::vector<int64_t> param_indices(const StateDict& group, std::size_t expected,
                                   const std::string& what) {
  const auto& value = group.at("params");
  LINKBOY_CHECK(value.isList(), what, "[\"params\"] is a ", value.tagKind(),
                "; it must be a list of integers. Use another state.");
  LINKBOY_CHECK(value.toListRef().size() == expected, what, " has ", value.toListRef().size(),
                " parameters; the optimizer's group has ", expected,
                ". Build the optimizer with the groups that it was saved with.");
  std::vector<int64_t> indices;
  for (const c10::IValue& index : value.toListRef()) {
    LINKBOY_CHECK(index.isInt(), what, "[\"params\"] contains a ", index.tagKind(),
                  "; it must be a list of integers. Use another state.");
    indices.push_back(index.toInt());
  }
  return indices;
}

template <typename Layout>
void load(Optimizer& optimizer, const StateDict& saved) {
  LINKBOY_CHECK(
      saved.contains("param_groups") && saved.contains("state"),
      "it does not have both \"state\" and \"param_groups\", so it is the state of another "
      "optimizer. Use the optimizer that it was saved with.");
  const auto& groups = saved.at("param_groups");
  LINKBOY_CHECK(groups.isList(), "\"param_groups\" is a ", groups.tagKind(),
                "; it must be a list of dicts. Use another state.");
  const auto& states = saved.at("state");
  LINKBOY_CHECK(states.isGenericDict(), "\"state\" is a ", states.tagKind(),
                "; it must be a dict. Use another state.");
  LINKBOY_CHECK(groups.toListRef().size() == optimizer.param_groups().size(), "it has ",
                groups.toListRef().size(), " parameter groups; the optimizer has ",
                optimizer.param_groups().size(),
                ". Build the optimizer with the groups that it was saved with.");

  struct Target {
    at::Tensor param;
    std::size_t group;
  };
  std::vector<typename Layout::Options> all_options;
  std::map<int64_t, Target> targets;  // Not hashed, because the file chooses the numbers.
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    const std::string what = c10::str("param_groups[", i, "]");
    const StateDict group = StateDict::from_ivalue(groups.toListRef()[i], what);
    LINKBOY_CHECK(group.contains(Layout::kOwnOption), what, " has no \"", Layout::kOwnOption,
                  "\", so it is the state of another optimizer. Use the optimizer that it was "
                  "saved with.");
    python_optimizer_formats::refuse_if_true(group, "maximize");
    python_optimizer_formats::refuse_if_true(group, "differentiable");
    all_options.push_back(Layout::load_group(group));
    const auto& params = optimizer.param_groups()[i].params();
    const auto indices = param_indices(group, params.size(), what);
    for (std::size_t j = 0; j < params.size(); ++j) {
      LINKBOY_CHECK(targets.emplace(indices[j], Target{params[j], i}).second, what,
                    " lists parameter ", indices[j],
                    " twice; each must occur once. Use another state.");
    }
  }

  c10::NoGradGuard no_grad;
  States new_states;
  if constexpr (requires { &Layout::initial_state; }) {
    for (const auto& [index, target] : targets) {
      new_states[target.param.unsafeGetTensorImpl()] =
          Layout::initial_state(target.param, all_options[target.group]);
    }
  }
  for (const auto& entry : states.toGenericDict()) {
    const auto found = entry.key().isInt() ? targets.find(entry.key().toInt()) : targets.end();
    LINKBOY_CHECK(found != targets.end(), "\"state\" has an entry ", entry.key(),
                  ", which is not a parameter of any group. Use another state.");
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

std::vector<std::string> describe_optimizer(const Optimizer& optimizer) {
  std::vector<std::string> lines{
      c10::str("the optimizer's class = ", c10::demangle(typeid(optimizer).name()))};
  visit_layout(optimizer, [&](auto layout) {
    using Layout = decltype(layout);
    for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
      const auto& options = optimizer.param_groups()[i].options();
      const StateDict saved =
          Layout::save_group(static_cast<const typename Layout::Options&>(options));
      for (const auto& [name, value] : saved.entries()) {
        if (value.isNone()) continue;
        // fmt prints the shortest text that identifies the number.
        const std::string text =
            value.isDouble() ? fmt::format("{}", value.toDouble()) : c10::str(value);
        lines.push_back(c10::str("the optimizer's param_groups[", i, "].", name, " = ", text));
      }
    }
  });
  return lines;
}

}  // namespace linkboy

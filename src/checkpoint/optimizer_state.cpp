// Saves and restores optimizers in Python's formats, and others as the bytes of LibTorch's archive.

#include "optimizer_state.hpp"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Type.h>
#include <fmt/format.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>
#include <torch/types.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "ivalue_tree.hpp"
#include "linkboy/error.hpp"
#include "python_optimizer_formats.hpp"

namespace linkboy {
namespace {

using torch::optim::Optimizer;
namespace formats = python_optimizer_formats;
using States = std::remove_reference_t<decltype(std::declval<Optimizer&>().state())>;

std::string class_name(const Optimizer& optimizer) {
  return c10::demangle(typeid(optimizer).name());
}

/// Returns the options of a group in the layout of Python.
template <class Layout>
StateDict save_group(const torch::optim::OptimizerParamGroup& group) {
  formats::SaveOptions save;
  Layout::visit_options(static_cast<const typename Layout::Options&>(group.options()), save);
  return std::move(save.saved);
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
        const auto& options = static_cast<const typename Layout::Options&>(group.options());
        states.insert(index, Layout::save_state(state, options).to_ivalue());
      }
      indices.push_back(index++);
    }
    StateDict saved = save_group<Layout>(group);
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
    Layout::visit_options(all_options.emplace_back(1.0), formats::LoadOptions{group});
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

// Optimizers without a layout.

// Returns one string per parameter, which is easy to compare and to print.
std::vector<std::string> param_shapes(const Optimizer& optimizer) {
  std::vector<std::string> shapes;
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    for (const auto& param : optimizer.param_groups()[i].params()) {
      shapes.push_back(c10::str("group ", i, ": ", param.sizes()));
    }
  }
  return shapes;
}

void check_shapes(const Optimizer& optimizer, c10::ArrayRef<c10::IValue> items) {
  const auto expected = param_shapes(optimizer);
  LINKBOY_CHECK(items.size() == expected.size(), "it has ", items.size(),
                " parameters; the optimizer has ", expected.size(),
                ". Build the optimizer with the parameters that it was saved with.");
  for (std::size_t i = 0; i < expected.size(); ++i) {
    LINKBOY_CHECK(items[i].isString() && items[i].toStringRef() == expected[i], "parameter ", i,
                  " was saved as ", items[i], "; the optimizer has ", expected[i],
                  ". Build the model and the optimizer as they were when it was saved.");
  }
}

/// Returns the state of an optimizer without a layout: the bytes of LibTorch's own archive, with
/// the class and the shapes of the parameters, which the archive itself does not check.
StateDict save_libtorch_archive(const Optimizer& optimizer) {
  std::string bytes;
  try {
    torch::serialize::OutputArchive archive;
    optimizer.save(archive);
    archive.save_to([&bytes](const void* data, std::size_t size) {
      bytes.append(static_cast<const char*>(data), size);
      return size;
    });
  } catch (const c10::Error& error) {
    throw Error(
        c10::str("LibTorch cannot save the state of a ", class_name(optimizer), " (",
                 error.what_without_backtrace(),
                 "). Save checkpoints with CheckpointParts{.optimizer = false}. For training "
                 "states, use another optimizer."));
  }
  at::Tensor tensor = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());

  return {{"optimizer_class", class_name(optimizer)},
          {"param_shapes", list_of(param_shapes(optimizer))},
          {"libtorch_archive", std::move(tensor)}};
}

/// Restores such a state, completely or not at all. The archive is in TorchScript's format: unlike
/// all other parts of a checkpoint, it can contain more than data.
void load_libtorch_archive(Optimizer& optimizer, const StateDict& saved) {
  LINKBOY_CHECK(
      saved.contains("libtorch_archive"),
      "it does not have a \"libtorch_archive\", the format for optimizers other than SGD, "
      "Adam, AdamW, Adagrad, RMSprop and LBFGS, so it is the state of another optimizer. "
      "Use the optimizer that it was saved with.");
  const std::string saved_class = saved.get_string("optimizer_class");
  LINKBOY_CHECK(saved_class == class_name(optimizer), "it is the state of a ", saved_class,
                ". Use that optimizer.");
  check_shapes(optimizer, saved.get_list("param_shapes"));
  const at::Tensor bytes = saved.get_tensor("libtorch_archive");
  LINKBOY_CHECK(bytes.defined() && bytes.scalar_type() == at::kByte && bytes.is_contiguous(),
                "\"libtorch_archive\" is not a tensor of bytes. Use another copy.");

  const auto& groups = optimizer.param_groups();
  const bool has_params = !groups.empty() && !groups.front().params().empty();
  OptimizerBackup backup(optimizer);
  try {
    torch::serialize::InputArchive archive;
    archive.load_from(static_cast<const char*>(bytes.const_data_ptr()),
                      static_cast<std::size_t>(bytes.numel()),
                      has_params ? groups.front().params().front().device() : at::Device(at::kCPU));
    optimizer.load(archive);
  } catch (const std::exception& error) {
    backup.restore(optimizer);
    const std::string_view detail = error.what();
    throw Error(c10::str("its \"libtorch_archive\" is damaged (",
                         detail.substr(0, detail.find('\n')), "). Use another copy."));
  }
}

}  // namespace

OptimizerBackup::OptimizerBackup(Optimizer& optimizer) {
  for (const auto& [param, state] : optimizer.state()) states_[param] = state->clone();
  for (auto& group : optimizer.param_groups()) options_.push_back(group.options().clone());
}

void OptimizerBackup::restore(Optimizer& optimizer) {
  optimizer.state() = std::move(states_);
  for (std::size_t i = 0; i < options_.size(); ++i) {
    optimizer.param_groups()[i].set_options(std::move(options_[i]));
  }
}

StateDict optimizer_state_dict(const Optimizer& optimizer) {
  StateDict result;
  const bool has_layout = formats::with_layout(
      optimizer, [&](auto layout) { result = save<decltype(layout)>(optimizer); });
  return has_layout ? result : save_libtorch_archive(optimizer);
}

void load_optimizer_state_dict(Optimizer& optimizer, const StateDict& state) {
  const std::string prefix =
      c10::str("cannot load this state into a ", class_name(optimizer), ": ");
  try {
    const bool has_layout = formats::with_layout(
        optimizer, [&](auto layout) { load<decltype(layout)>(optimizer, state); });
    if (!has_layout) load_libtorch_archive(optimizer, state);
  } catch (const Error& error) {
    throw Error(prefix + error.what());
  }
}

std::vector<std::string> describe_optimizer(const Optimizer& optimizer) {
  std::vector<std::string> lines{c10::str("the optimizer's class = ", class_name(optimizer))};
  formats::with_layout(optimizer, [&](auto layout) {
    using Layout = decltype(layout);
    for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
      for (const auto& [name, value] : save_group<Layout>(optimizer.param_groups()[i]).entries()) {
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

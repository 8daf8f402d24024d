// Lists a module's tensors in Python's order, and copies tensors by name after checks of them all.

#include "named_tensors.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <map>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "linkboy/error.hpp"
#include "linkboy/util/printable.hpp"

namespace linkboy {
namespace {

constexpr std::size_t kMaxListed = 10;

void collect(const torch::nn::Module& module, const std::string& prefix, NamedTensors& out) {
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    if (item.value().defined()) out.emplace_back(prefix + item.key(), item.value());
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    if (item.value().defined()) out.emplace_back(prefix + item.key(), item.value());
  }
  for (const auto& child : module.named_children()) {
    collect(*child.value(), prefix + child.key() + ".", out);
  }
}

void add_list(std::string& message, std::string_view title, const std::vector<std::string>& names) {
  if (names.empty()) return;
  message += (message.empty() ? "" : "; ") + std::string(title) + ": ";
  for (std::size_t i = 0; i < names.size() && i < kMaxListed; ++i) {
    message += (i == 0 ? "" : ", ") + printable(names[i], kMaxShownName);
  }
  if (names.size() > kMaxListed) {
    message += c10::str(" and ", names.size() - kMaxListed, " more");
  }
}

using Copies = std::vector<std::pair<at::Tensor, at::Tensor>>;

struct Match {
  Copies copies{};  // (to, from)
  LoadReport left_out{};
};

Match match(const NamedTensors& destination, const StateDict& source, std::string_view what,
            bool strict) {
  // Sorted rather than hashed, because a file may contain names that were chosen to have the same
  // hash.
  std::map<std::string_view, const c10::IValue*> found;
  for (const auto& [name, value] : source.entries()) found.emplace(name, &value);

  Match result;
  auto& [missing, unexpected] = result.left_out;
  std::vector<std::string> misshapen;
  std::unordered_set<std::string_view> wanted;
  for (const auto& [name, tensor] : destination) {
    wanted.insert(name);
    const auto entry = found.find(name);
    if (entry == found.end()) {
      missing.push_back(name);
    } else if (!entry->second->isTensor() || !entry->second->toTensor().defined()) {
      misshapen.push_back(c10::str(name, " (is a ", entry->second->tagKind(), ", not a tensor)"));
    } else if (entry->second->toTensor().sizes() != tensor.sizes()) {
      misshapen.push_back(c10::str(name, " (is ", entry->second->toTensor().sizes(), ", must be ",
                                   tensor.sizes(), ")"));
    } else {
      result.copies.emplace_back(tensor, entry->second->toTensor());
    }
  }
  for (const auto& [name, value] : source.entries()) {
    if (!wanted.contains(name)) unexpected.push_back(name);
  }

  std::string problems;
  if (strict) {
    add_list(problems, "missing", missing);
    add_list(problems, "unexpected", unexpected);
  }
  add_list(problems, "with a different shape", misshapen);
  LINKBOY_CHECK(problems.empty(), what, " does not fit: ", problems,
                ". Names and shapes must match; nothing was changed. Use the state of a model that "
                "is built in the same way. NameOptions can strip, rename and leave out names.");
  LINKBOY_CHECK(!result.copies.empty() || destination.empty(), what,
                " does not fit: none of its names occurs in the model. Strip a prefix or rename "
                "the names with NameOptions.");
  return result;
}

}  // namespace

NamedTensors named_tensors_of(const torch::nn::Module& module) {
  NamedTensors tensors;
  collect(module, "", tensors);
  return tensors;
}

void check_named_tensors(const NamedTensors& destination, const StateDict& source,
                         std::string_view what) {
  match(destination, source, what, /*strict=*/true);
}

LoadReport copy_named_tensors(const NamedTensors& destination, const StateDict& source,
                              std::string_view what, bool strict) {
  Match found = match(destination, source, what, strict);
  const c10::NoGradGuard no_grad;
  for (const auto& [to, from] : found.copies) to.copy_(from);
  return std::move(found.left_out);
}

}  // namespace linkboy

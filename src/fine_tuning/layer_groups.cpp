// Lists the modules of a model with the layer group of each.

#include "fine_tuning/layer_groups.hpp"

#include <unordered_set>

#include "linkboy/error.hpp"

namespace linkboy {

std::shared_ptr<torch::nn::Module> require_layers(const Model& model) {
  LINKBOY_CHECK(model.module() != nullptr,
                "the model is TorchScript, whose layers are not accessible one by one; use a "
                "LibTorch module and load the weights into it.");
  return model.module();
}

std::vector<GroupedModule> layer_groups(const std::shared_ptr<torch::nn::Module>& root) {
  std::vector<GroupedModule> groups;
  for (const auto& child : root->named_children()) {
    groups.push_back({static_cast<int64_t>(groups.size()), child.key(), child.value()});
  }
  if (groups.empty()) groups.push_back({0, "", root});
  return groups;
}

std::vector<GroupedModule> grouped_modules(const std::shared_ptr<torch::nn::Module>& root) {
  std::vector<GroupedModule> modules{{0, "", root}};
  for (const GroupedModule& group : layer_groups(root)) {
    if (group.module == root) break;
    for (const auto& part : group.module->named_modules(group.name)) {
      modules.push_back({group.group, part.key(), part.value()});
    }
  }
  return modules;
}

std::vector<GroupedParameter> grouped_parameters(
    const std::shared_ptr<torch::nn::Module>& root,
    std::optional<std::pair<int64_t, int64_t>> in_groups) {
  std::vector<GroupedParameter> parameters;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const auto& [group, name, module] : grouped_modules(root)) {
    if (in_groups && (group < in_groups->first || group > in_groups->second)) continue;
    for (const auto& item : module->named_parameters(/*recurse=*/false)) {
      const at::Tensor& tensor = item.value();
      if (!tensor.defined() || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
      parameters.push_back(
          {group, name.empty() ? item.key() : name + "." + item.key(), item.key(), module, tensor});
    }
  }
  return parameters;
}

}  // namespace linkboy

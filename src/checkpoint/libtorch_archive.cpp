// Saves optimizers for which there is no Python layout, as the bytes of LibTorch's own archive.

#include "libtorch_archive.hpp"

#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Type.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>
#include <torch/types.h>

#include <cstring>
#include <memory>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "linkboy/error.hpp"

namespace linkboy {
namespace {

using torch::optim::Optimizer;

std::string class_name(const Optimizer& optimizer) {
  return c10::demangle(typeid(optimizer).name());
}

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

// The parts of an optimizer that load() replaces, so that they can be restored.
class Backup {
 public:
  explicit Backup(Optimizer& optimizer) {
    for (const auto& [param, state] : optimizer.state()) states_[param] = state->clone();
    for (auto& group : optimizer.param_groups()) options_.push_back(group.options().clone());
  }

  void restore(Optimizer& optimizer) {
    optimizer.state() = std::move(states_);
    for (std::size_t i = 0; i < options_.size(); ++i) {
      optimizer.param_groups()[i].set_options(std::move(options_[i]));
    }
  }

 private:
  std::remove_reference_t<decltype(std::declval<Optimizer&>().state())> states_;
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options_;
};

}  // namespace

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

  c10::impl::GenericList shapes(c10::AnyType::get());
  for (const auto& shape : param_shapes(optimizer)) shapes.push_back(shape);
  return {{"optimizer_class", class_name(optimizer)},
          {"param_shapes", std::move(shapes)},
          {"libtorch_archive", std::move(tensor)}};
}

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
  Backup backup(optimizer);
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

}  // namespace linkboy

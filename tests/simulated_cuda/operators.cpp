// Replaces the CUDA kernels of LibTorch's operators when the library is loaded. All other parts are
// LibTorch's own: allocators, streams, events, graphs, generators, guards, and copies between
// memories.

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

#include <set>
#include <string>
#include <vector>

#include "cuda_only_kernels.hpp"
#include "host_call.hpp"

namespace linkboy::simulated_cuda {
namespace {

/// Returns the operators that do not launch kernels: they manage memory, create views, or copy to
/// the host.
const std::set<std::string>& kept() {
  static const std::set<std::string> names{"aten::_efficientzerotensor",
                                           "aten::_has_compatible_shallow_copy_type",
                                           "aten::_local_scalar_dense",
                                           "aten::_reshape_alias",
                                           "aten::as_strided",
                                           "aten::is_set_to",
                                           "aten::record_stream",
                                           "aten::resize_",
                                           "aten::set_",
                                           "aten::set_.source_Storage",
                                           "aten::set_.source_Storage_storage_offset",
                                           "aten::set_.source_Tensor",
                                           "aten::unfold",
                                           "aten::view"};
  return names;
}

/// Suppresses LibTorch's warning for each kernel that replaces another.
class NoWarnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

bool replace_kernels() {
  NoWarnings no_warnings;
  const c10::WarningUtils::WarningHandlerGuard quiet(&no_warnings);
  // The handles are never destroyed, because the registrations would end with them.
  static auto* registrations = new std::vector<c10::RegistrationHandleRAII>;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNamesForDispatchKey(c10::DispatchKey::CUDA)) {
    const std::string text = c10::toString(name);
    if (!text.starts_with("aten::") || kept().contains(text)) continue;
    registrations->push_back(dispatcher.registerImpl(
        name, c10::DispatchKey::CUDA, c10::KernelFunction::makeFromBoxedFunction<&run_on_stream>(),
        std::nullopt, nullptr, "simulated CUDA"));
  }
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  register_cuda_only_kernels(*library);
  at::globalContext().setUserEnabledCuDNN(false);
  return true;
}

const bool are_replaced = replace_kernels();

}  // namespace
}  // namespace linkboy::simulated_cuda

// Replaces the kernels of LibTorch's operators for CUDA when the library is loaded. Everything
// around them stays as it is: allocators, streams, events, graphs, generators, copies between
// memories, guards.

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

/// These launch no kernels. They handle memory, make views, or copy to the host.
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

/// LibTorch warns of each kernel that replaces another.
class NoWarnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

bool replace_kernels() {
  NoWarnings no_warnings;
  const c10::WarningUtils::WarningHandlerGuard quiet(&no_warnings);
  // Registrations end with their handles; these live as long as the program.
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

// The description of a run for its trackers: configuration, optimizer, LibTorch, device and host.

#include "linkboy/tracking/describe_run.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <c10/util/Type.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <torch/optim/optimizer.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <typeinfo>

#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {
namespace {

void add_optimizer(TrackedRun::Entries& entries, const torch::optim::Optimizer& optimizer) {
  entries.emplace_back("optimizer", c10::demangle(typeid(optimizer).name()));
  if (optimizer.param_groups().empty()) return;
  for (const auto field : {ParamGroupField::lr, ParamGroupField::weight_decay}) {
    try {
      const double value = get_param_group_field(optimizer, field).front();
      entries.emplace_back(to_string(field), fmt::format("{}", value));
    } catch (const Error&) {
      // The optimizer does not have this field.
    }
  }
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

/// Returns the device's name, or an empty string if it is unknown. Calls the driver that LibTorch
/// has loaded, so that linkboy needs neither CUDA headers nor a library to link.
std::string cuda_device_name(c10::DeviceIndex index) {
  void* driver = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (driver == nullptr) return "";
  const auto get = reinterpret_cast<int (*)(int*, int)>(::dlsym(driver, "cuDeviceGet"));
  const auto get_name =
      reinterpret_cast<int (*)(char*, int, int)>(::dlsym(driver, "cuDeviceGetName"));
  std::array<char, 256> name{};
  int device = 0;
  const bool is_known = get != nullptr && get_name != nullptr && get(&device, index) == 0 &&
                        get_name(name.data(), name.size() - 1, device) == 0;
  ::dlclose(driver);
  return is_known ? name.data() : "";
}

TrackedRun::Entries describe_config(Trainer& trainer) {
  TrackedRun::Entries entries = options_to_text(trainer.run().config());
  if (trainer.optimizer()) add_optimizer(entries, *trainer.optimizer());
  int64_t num_parameters = 0;
  int64_t num_trainable = 0;
  for (const at::Tensor& parameter : trainer.model().parameters()) {
    num_parameters += parameter.numel();
    if (parameter.requires_grad()) num_trainable += parameter.numel();
  }
  entries.emplace_back("num_parameters", fmt::format("{}", num_parameters));
  entries.emplace_back("num_trainable_parameters", fmt::format("{}", num_trainable));
  entries.emplace_back("seed",
                       fmt::format("{}", at::detail::getDefaultCPUGenerator().current_seed()));
  return entries;
}

TrackedRun::Entries describe_environment(Trainer& trainer) {
  const c10::Device device = trainer.accelerator().device();
  TrackedRun::Entries entries = {{"libtorch", TORCH_VERSION},
                                 {"device", device.str()},
                                 {"host", host_name()},
                                 {"process_id", fmt::format("{}", ::getpid())},
                                 {"num_threads", fmt::format("{}", at::get_num_threads())}};
  if (device.is_cuda()) {
    const std::string name =
        cuda_device_name(device.has_index() ? device.index() : c10::DeviceIndex{0});
    if (!name.empty()) entries.emplace_back("device_name", name);
  }
  return entries;
}

/// Replaces the entry with the same name or, if there is none, adds `entry`.
void set_entry(TrackedRun::Entries& entries, const TrackedRun::Entries::value_type& entry) {
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [&](const auto& old) { return old.first == entry.first; });
  if (found == entries.end()) {
    entries.push_back(entry);
  } else {
    found->second = entry.second;
  }
}

}  // namespace

TrackedRun describe_run(Trainer& trainer, const std::string& name,
                        const TrackedRun::Entries& more) {
  TrackedRun run{.name = name,
                 .config = describe_config(trainer),
                 .environment = describe_environment(trainer)};
  for (const auto& entry : more) set_entry(run.config, entry);
  return run;
}

}  // namespace linkboy

// How an Accelerator chooses its device and connects to the other processes. The files
// accelerator_*.cpp contain the rest of Accelerator.

#include "linkboy/accelerator.hpp"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/utils.h>

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <utility>

#include "accelerator/accelerator_implementation.hpp"
#include "distributed/agreement.hpp"
#include "distributed/init_process_group.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

c10::Device parse_device(const std::string& name, const LaunchEnvironment& launch) {
  // LibTorch supports one type of accelerator per process.
  const auto type = at::accelerator::getAccelerator().value_or(c10::DeviceType::CUDA);
  const auto num_devices = int{at::accelerator::deviceCount()};
  if (name == "cpu" || (name == "auto" && num_devices == 0)) return c10::Device("cpu");
  const std::string kind = c10::DeviceTypeName(type, /*lower_case=*/true);
  const std::string devices = c10::str(" ", c10::DeviceTypeName(type), " devices");
  const std::string names = "; it must be auto, cpu, " + kind + " or " + kind + ":INDEX.";
  int index = 0;
  if (name == "auto" || name == kind) {
    const auto own_index = device_index_of(launch, num_devices);
    LINKBOY_CHECK_OPTION(
        num_devices == 0 || own_index, "there are ", launch.local_world_size,
        " processes on this host, but ", num_devices, devices,
        ". Start at most one process per device, let the launcher assign one device to each "
        "process (CUDA_VISIBLE_DEVICES, srun --gpus-per-task=1), or choose the device cpu.");
    index = static_cast<int>(own_index.value_or(0));
  } else {
    const std::string digits = name.starts_with(kind + ":") ? name.substr(kind.size() + 1) : "";
    const bool is_number = !digits.empty() && digits.size() < 4 &&
                           digits.find_first_not_of("0123456789") == std::string::npos;
    LINKBOY_CHECK_OPTION(is_number, "the device is \"", name, "\"", names);
    index = std::stoi(digits);
  }
  LINKBOY_CHECK_OPTION(index < num_devices, "the device is \"", name, "\", but there are ",
                       num_devices, devices, " here. Use cpu, auto or a smaller index.");
  return {type, static_cast<c10::DeviceIndex>(index)};
}

/// Ranks with different options would make different collective calls and wait for each other
/// forever.
void check_same_on_all_ranks(AcceleratorOptions options, c10::Device device,
                             const ProcessGroup& group) {
  DistributedOptions& distributed = options.distributed;
  // Ranks may differ in their timeout and in the device's index.
  options.device = c10::DeviceTypeName(device.type(), /*lower_case=*/true);
  distributed.timeout = {};
  distributed.gradient_as_bucket_view = distributed.gradient_as_bucket_view.value_or(false);
  std::vector<std::string> lines{
      c10::str("a gradient_comm_hook = ", distributed.gradient_comm_hook != nullptr)};
  const auto add = [&lines](const std::string& owner, const auto& fields) {
    for (const auto& [name, value] : options_to_text(fields)) {
      lines.push_back(owner + name + " = " + value);
    }
  };
  add("", options);
  add("grad_scaler.", options.grad_scaler);
  add("", distributed);
  require_same_on_all_ranks(group, "AcceleratorOptions", lines);
}

/// Returns the UUID that NVIDIA's driver reports for a device or a part of one; empty if there is
/// no driver. LibTorch has already loaded the driver, so linkboy does not need the CUDA headers.
std::string uuid_of_cuda_device(c10::DeviceIndex index) {
  using GetUuid = int (*)(unsigned char* uuid, int device);
  void* driver = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (driver == nullptr) return {};
  const auto get = reinterpret_cast<GetUuid>(::dlsym(driver, "cuDeviceGetUuid_v2"));
  std::array<unsigned char, 16> bytes{};
  const bool is_known = get != nullptr && get(bytes.data(), index) == 0;
  ::dlclose(driver);
  return is_known ? fmt::format("GPU-{:02x}", fmt::join(bytes, "")) : "";
}

/// Whether the processes of this host may use more threads than it has cores. If a launcher has
/// bound the processes to cores of their own, LibTorch uses only these.
bool share_too_few_cores(const LaunchEnvironment& launch) {
  cpu_set_t allowed;
  const int64_t num_cores = ::sysconf(_SC_NPROCESSORS_ONLN);
  return launch.local_world_size > 1 && std::getenv("OMP_NUM_THREADS") == nullptr &&
         ::sched_getaffinity(0, sizeof(allowed), &allowed) == 0 &&
         CPU_COUNT(&allowed) == num_cores &&
         at::get_num_threads() * launch.local_world_size > num_cores;
}

void use_deterministic_algorithms() {
  // cuBLAS reads this variable at its first use; without it, LibTorch refuses to call cuBLAS.
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  context.setDeterministicCuDNN(true);
  context.setBenchmarkCuDNN(false);
}

}  // namespace

Accelerator::Accelerator(AcceleratorOptions options) {
  const LaunchEnvironment launch = read_launch_environment();
  impl_ = std::make_unique<Implementation>(std::move(options), launch);
  const bool shares_cores = device().is_cpu() && share_too_few_cores(launch);
  if (!is_main_process() || (!shares_cores && launch.warning.empty())) return;
  static std::atomic<bool> is_told = false;
  if (is_told.exchange(true)) return;
  if (!launch.warning.empty()) log(LogLevel::warning, launch.warning);
  if (!shares_cores) return;
  log(LogLevel::warning,
      c10::str(
          "each of the ", launch.local_world_size, " processes on this host may use ",
          at::get_num_threads(),
          " threads on all of its cores, so they slow each other down. "
          "Set OMP_NUM_THREADS, or let the launcher bind each process to its own cores (mpirun "
          "--bind-to core, srun --cpus-per-task with --cpu-bind=cores)."));
}

Accelerator::~Accelerator() = default;

Accelerator::Implementation::Implementation(AcceleratorOptions options,
                                            const LaunchEnvironment& launch)
    : distributed_(options.distributed),
      local_process_index_(launch.local_rank),
      device_(parse_device(options.device, launch)),
      logger_(std::move(options.logger)),
      precision_(options.precision),
      channels_last_(options.channels_last) {
  // A tensor that the program creates on "cuda" must be on this process's device, not on the first
  // one.
  if (!device_.is_cpu()) c10::impl::VirtualGuardImpl(device_.type()).setDevice(device_);
  if (precision_ == Precision::fp16)
    grad_scaler_ = std::make_unique<GradScaler>(options.grad_scaler);
  check_distributed_options(distributed_);
  LINKBOY_CHECK_OPTION(
      distributed_.zero_stage != 2 || !grad_scaler_,
      "zero_stage 2 does not work with fp16, because a process would not see overflows in the "
      "gradients of others. Use bf16, or zero_stage 1 or 3.");
  if (options.deterministic) use_deterministic_algorithms();
  // This comes last because it waits for the other processes, which must not wait for an error
  // found here.
  const auto world = options.process_group ? options.process_group
                                           : init_process_group(launch, distributed_, device_);
  check_same_on_all_ranks(options, device_, *world);
  mesh_ = std::make_unique<DeviceMesh>(world, options.parallel, distributed_.zero_stage == 3);
  process_group_ = mesh_->group({MeshDim::data, MeshDim::shard});
  // All ranks have the same type of device. If a launcher makes only one device visible to each
  // process, it may be the same device for several processes.
  if (device_.is_cuda()) {
    require_device_of_its_own(*world, uuid_of_cuda_device(device_.index()));
  }
  const bool assigns_parameters = distributed_.zero_stage == 1 || distributed_.zero_stage == 2;
  if (assigns_parameters && process_group_->size() > 1) {
    zero_ = std::make_unique<ZeroShards>(process_group_);
  }
}

c10::Device Accelerator::device() const { return impl_->device_; }

AutocastScope Accelerator::autocast() const {
  // Casts of all parameters would occupy half of the memory that they are distributed to save.
  return {impl_->device_.type(), autocast_dtype(impl_->precision_),
          /*caches=*/impl_->shards_ == nullptr};
}

Precision Accelerator::precision() const { return impl_->precision_; }

const DistributedOptions& Accelerator::distributed_options() const { return impl_->distributed_; }

GradScaler* Accelerator::grad_scaler() { return impl_->grad_scaler_.get(); }
const GradScaler* Accelerator::grad_scaler() const { return impl_->grad_scaler_.get(); }

void Accelerator::set_seed(uint64_t seed) { torch::manual_seed(seed); }

}  // namespace linkboy

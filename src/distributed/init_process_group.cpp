// Creates the group of all processes of a launch, or returns that of an earlier call.

#include "distributed/init_process_group.hpp"

#include <sys/resource.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <mutex>
#include <numeric>

#include "distributed/backends.hpp"
#include "distributed/process_group_implementation.hpp"
#include "distributed/rendezvous.hpp"
#include "linkboy/error.hpp"
#include "util/environment_flag.hpp"

namespace linkboy {
namespace {

/// The store exists for the entire lifetime of the process: its port could not be acquired again,
/// and each connection may wait for a name server.
struct World {
  std::mutex mutex;
  LaunchEnvironment launch;
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::Store> store_for_signs;  // a separate connection
  std::weak_ptr<ProcessGroup> group;
  int64_t num_calls = 0;
};

World& world() {
  // Never destroyed, because threads of its group may outlive static objects.
  static auto* instance = new World();
  return *instance;
}

/// Connects the ranks. A rank may be lost after it has arrived.
std::shared_ptr<ProcessGroup> meet(std::shared_ptr<ProcessGroup::Implementation> implementation) {
  const ProcessGroup unconnected(implementation);  // to read the signs of life
  try {
    return std::make_shared<ProcessGroup>(make_c10d_group(implementation));
  } catch (const std::exception& error) {
    throw_collective_error(unconnected, "connecting the ranks", /*is_late=*/false,
                           first_line(error.what()));
  }
}

bool wants_nccl(const DistributedOptions& options, c10::Device device) {
  if (options.backend == Backend::nccl) {
    LINKBOY_CHECK_OPTION(
        device.is_cuda(), "the backend is nccl, but the device is ", device.str(),
        "; NCCL transfers only tensors on CUDA devices. Use gloo, or a CUDA device.");
    return true;
  }
  return options.backend == Backend::automatic && device.is_cuda() && has_nccl();
}

/// Whether all ranks say yes.
bool agree_on_all_ranks(c10d::Store& store, const LaunchEnvironment& launch, bool mine,
                        std::chrono::milliseconds timeout) {
  const auto key = [](int64_t rank) { return "agrees/" + std::to_string(rank); };
  try {
    store.set(key(launch.rank), mine ? "yes" : "no");
    wait_for_arrivals(store, launch.rank, launch.world_size, timeout);
    for (int64_t rank = 0; rank < launch.world_size; ++rank) {
      if (store.get_to_str(key(rank)) != "yes") return false;
    }
    return true;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw DistributedError(c10::str(
        "the ranks cannot meet: rank 0, or the process that hosts the ranks' store, is lost. See "
        "its output. (",
        first_line(error.what()), ")"));
  }
}

/// Without this check, the ranks would wait for ranks that exist only because of a typo in
/// WORLD_SIZE.
void check_open_files(int64_t world_size) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  LINKBOY_CHECK(static_cast<rlim_t>(world_size) <= limit.rlim_cur, "there are ", world_size,
                " processes, and each connects to all others, but this one may open only ",
                limit.rlim_cur,
                " files. Correct the number of processes (WORLD_SIZE), or raise the limit (ulimit "
                "-n).");
}

}  // namespace

void check_distributed_options(const DistributedOptions& options) {
  LINKBOY_CHECK_OPTION(options.timeout.count() > 0, "the timeout of the processes is ",
                       options.timeout.count(), " ms; it must be positive.");
  LINKBOY_CHECK_OPTION(options.bucket_cap_mb > 0.0, "bucket_cap_mb is ", options.bucket_cap_mb,
                       "; it must be positive.");
  LINKBOY_CHECK_OPTION(options.local_sgd_interval >= 0, "local_sgd_interval is ",
                       options.local_sgd_interval,
                       "; it must not be negative. Use 0 to average gradients instead of weights.");
  LINKBOY_CHECK_OPTION(options.zero_stage >= 0 && options.zero_stage <= 3, "zero_stage is ",
                       options.zero_stage, "; it must be 0, 1, 2 or 3.");
  LINKBOY_CHECK_OPTION(options.zero_whole_below >= 0, "zero_whole_below is ",
                       options.zero_whole_below, "; it must not be negative.");
  LINKBOY_CHECK_OPTION(
      options.zero_stage == 0 ||
          (options.local_sgd_interval == 0 && options.gradient_comm_hook == nullptr),
      "zero_stage is ", options.zero_stage,
      ", but local_sgd_interval or gradient_comm_hook is set, too; zero_stage needs averaged "
      "gradients. Set only one of them.");
  LINKBOY_CHECK_OPTION(
      options.zero_stage < 2 || options.compression == Compression::none, "zero_stage ",
      options.zero_stage,
      " does not compress gradients; set compression to none, or zero_stage to 1.");
  const int num_ways = (options.compression != Compression::none) +
                       (options.local_sgd_interval > 0) + (options.gradient_comm_hook != nullptr);
  LINKBOY_CHECK_OPTION(
      num_ways <= 1,
      "more than one of compression, local_sgd_interval and gradient_comm_hook is set; "
      "each changes how gradients are combined. Set only one of them.");
}

std::shared_ptr<ProcessGroup> init_process_group(const LaunchEnvironment& launch,
                                                 const DistributedOptions& options,
                                                 c10::Device device) {
  check_distributed_options(options);
  const bool uses_nccl = wants_nccl(options, device);
  if (!launch.is_distributed()) return std::make_shared<ProcessGroup>();
  LINKBOY_CHECK(
      device.is_cpu() || device.is_cuda(), "there are ", launch.world_size,
      " processes, but the device is ", device.str(),
      "; several processes can use only CUDA devices and CPUs. Start one process, or choose the "
      "device cpu.");
  check_open_files(launch.world_size);

  if (uses_nccl) choose_nccl_defaults();
  World& shared = world();
  const std::lock_guard lock(shared.mutex);
  if (!shared.store) {
    shared.launch = launch;
    shared.store = connect_store(shared.launch, options.timeout);
    shared.store_for_signs = shared.store->clone();
  }
  const std::string prefix = "world/" + std::to_string(shared.num_calls++);
  const auto store = c10::make_intrusive<c10d::PrefixStore>(prefix, shared.store);
  // A rank may still use the present group although others have released it.
  auto present = shared.group.lock();
  const bool can_stay = present && present->timeout() == options.timeout &&
                        (!uses_nccl || present->implementation()->nccl_device == device);
  if (agree_on_all_ranks(*store, launch, can_stay, options.timeout)) return present;

  auto implementation = std::make_shared<ProcessGroup::Implementation>();
  implementation->rank = launch.rank;
  implementation->world_ranks.resize(launch.world_size);
  std::iota(implementation->world_ranks.begin(), implementation->world_ranks.end(), int64_t{0});
  implementation->store = store;
  implementation->timeout = options.timeout;
  if (uses_nccl) implementation->nccl_device = device;
  implementation->address = own_address(shared.launch, *shared.store);
  implementation->heartbeat = std::make_shared<Heartbeat>(
      c10::make_intrusive<c10d::PrefixStore>(prefix, shared.store_for_signs), launch.rank);
  implementation->checks_calls = environment_flag("LINKBOY_DEBUG_COLLECTIVES", false);
  auto group = meet(std::move(implementation));
  // A rank that leaves immediately would cut connections that others are still making.
  const auto connected = c10::make_intrusive<c10d::PrefixStore>("connected", store);
  wait_for_arrivals(*connected, launch.rank, launch.world_size, options.timeout);
  shared.group = group;
  return group;
}

}  // namespace linkboy

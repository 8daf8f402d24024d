// The construction and connection of a group. process_group_collectives.cpp contains its
// collectives.

#include "linkboy/distributed/process_group.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <iterator>
#include <utility>

#include "distributed/backends.hpp"
#include "distributed/current_group_scope.hpp"
#include "distributed/process_group_implementation.hpp"

namespace linkboy {
namespace {

thread_local const ProcessGroup* group_of_run = nullptr;

}  // namespace

CurrentGroupScope::CurrentGroupScope(const ProcessGroup& group)
    : outer_(std::exchange(group_of_run, &group)) {}

CurrentGroupScope::~CurrentGroupScope() { group_of_run = outer_; }

const ProcessGroup& current_process_group() {
  static const ProcessGroup alone;
  return group_of_run != nullptr ? *group_of_run : alone;
}

ProcessGroup::ProcessGroup() = default;

ProcessGroup::ProcessGroup(std::shared_ptr<Implementation> implementation)
    : impl_(std::move(implementation)) {}

ProcessGroup::~ProcessGroup() = default;

int64_t ProcessGroup::rank() const { return impl_ ? impl_->rank : 0; }

int64_t ProcessGroup::size() const { return impl_ ? std::ssize(impl_->world_ranks) : 1; }

const std::vector<int64_t>& ProcessGroup::world_ranks() const {
  static const std::vector<int64_t> alone{0};
  return impl_ ? impl_->world_ranks : alone;
}

std::chrono::milliseconds ProcessGroup::timeout() const {
  return impl_ ? impl_->timeout : std::chrono::milliseconds(0);
}

std::shared_ptr<ProcessGroup::Implementation> make_c10d_group(
    std::shared_ptr<ProcessGroup::Implementation> implementation) {
  const auto rank = static_cast<int>(implementation->rank);
  const auto size = static_cast<int>(implementation->world_ranks.size());
  using Type = c10d::ProcessGroup::BackendType;
  const auto setup_for = [&](const char* name) {
    return BackendSetup{c10::make_intrusive<c10d::PrefixStore>(name, implementation->store), rank,
                        size, implementation->timeout};
  };
  auto group = c10::make_intrusive<c10d::ProcessGroup>(implementation->store, rank, size);
  auto gloo = make_gloo_backend(setup_for("gloo"), implementation->address);
  group->setBackend(c10::DeviceType::CPU, Type::GLOO, gloo);
  if (implementation->nccl_device) {
    group->setBoundDeviceId(implementation->nccl_device);
    auto nccl = make_nccl_backend(setup_for("nccl"), *implementation->nccl_device);
    implementation->watch_device(nccl);
    group->setBackend(c10::DeviceType::CUDA, Type::NCCL, std::move(nccl));
    group->setDefaultBackend(Type::NCCL);
  } else {
    group->setBackend(c10::DeviceType::CUDA, Type::GLOO, gloo);
    group->setDefaultBackend(Type::GLOO);
  }
  implementation->group = std::move(group);
  return implementation;
}

bool ProcessGroup::Implementation::has_failed() const {
  return heartbeat && heartbeat->has_found_cause();
}

void ProcessGroup::Implementation::watch_device(const c10::intrusive_ptr<c10d::Backend>& backend) {
  if (!heartbeat) return;
  device_watch = std::make_shared<CollectiveWatchdog>(
      *nccl_device, timeout,
      [signs = heartbeat, backend] {
        return signs->has_found_cause() || backend->getError() != c10d::ErrorType::SUCCESS;
      },
      [signs = heartbeat, ranks = world_ranks,
       limit = timeout_text()](const std::string& late_call) {
        const bool is_late = !late_call.empty();
        signs->find_cause(
            ranks, {.late_call = is_late ? late_call + limit : "",
                    .otherwise = is_late ? "all ranks reached " + late_call + limit +
                                               ", but the device of one of them does not finish it"
                                         : "NCCL reports an error, although all ranks are alive"});
      },
      [backend] { backend->abort(); });
}

ProcessGroup::Implementation::~Implementation() {
  if (!group || !nccl_device) return;
  try {
    // Results may still be written to tensors that outlive the group. If a rank does not arrive,
    // the watch ends this wait.
    c10::impl::VirtualGuardImpl(nccl_device->type()).synchronizeDevice(nccl_device->index());
    device_watch.reset();
    const auto backend = group->getBackend(nccl_device->type());
    has_failed() ? backend->abort() : backend->shutdown();
  } catch (...) {  // NOLINT(bugprone-empty-catch): a destructor must not throw
  }
}

}  // namespace linkboy

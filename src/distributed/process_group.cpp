// The construction, connection and errors of a group. process_group_collectives.cpp contains its
// collectives.

#include "linkboy/distributed/process_group.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <net/if.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>  // includes headers of the system's Gloo

#include <cstdlib>
#include <exception>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "distributed/backends.hpp"
#include "distributed/current_group_scope.hpp"
#include "distributed/process_group_implementation.hpp"

namespace linkboy {
namespace {

thread_local const ProcessGroup* group_of_run = nullptr;

/// Creates a backend that transfers tensors between CPUs over TCP.
/// @param address  The address at which the other ranks can reach this host. If empty, uses the
///        address of the interface in GLOO_SOCKET_IFNAME, or the one to which the host name
///        resolves.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendSetup& setup,
                                                    const std::string& address) {
  using Gloo = c10d::ProcessGroupGloo;
  auto options = Gloo::Options::create(setup.timeout);
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface != nullptr && *interface != '\0') {
    LINKBOY_CHECK(::if_nametoindex(interface) != 0, "GLOO_SOCKET_IFNAME is \"", interface,
                  "\", but this host has no such network interface (see `ip link`). Correct or "
                  "unset it.");
    options->devices.push_back(Gloo::createDeviceForInterface(interface));
  } else {
    options->devices.push_back(address.empty() ? Gloo::createDefaultDevice()
                                               : Gloo::createDeviceForHostname(address));
  }
  return c10::make_intrusive<Gloo>(setup.store, setup.rank, setup.size, std::move(options));
}

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
    if (implementation->heartbeat) {
      implementation->device_watch = std::make_shared<CollectiveWatchdog>(
          nccl, *implementation->nccl_device, implementation->timeout, implementation->heartbeat,
          implementation->world_ranks);
    }
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

std::string timeout_text(std::chrono::milliseconds timeout) {
  return c10::str(" (timeout ", std::chrono::duration<double>(timeout).count(), " s)");
}

bool is_communication_error(const std::exception& error) {
  if (dynamic_cast<const c10::DistError*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::Error*>(&error) != nullptr) return false;
  // A collective within this one has told its cause.
  if (dynamic_cast<const Error*>(&error) != nullptr) return false;
  // Gloo's own exceptions do not have a type that its headers and LibTorch's library share.
  const std::string_view said = error.what();
  return said.find("gloo/") != std::string_view::npos ||
         said.find("pair closure") != std::string_view::npos;
}

void tell_failure(const ProcessGroup& group, const std::exception_ptr& why) {
  const auto* implementation = group.implementation();
  if (implementation == nullptr || !implementation->heartbeat) return;
  if (implementation->has_failed()) return;  // another rank is the cause
  implementation->heartbeat->set_failure(why ? first_line(message_of(why)) : "");
}

void throw_collective_error(const ProcessGroup& group, const char* what, bool is_late,
                            const std::string& details) {
  const std::string limit = timeout_text(group.timeout());
  const Heartbeat::Failure failure{
      .late_call = is_late ? what + limit : "",
      .otherwise =
          "not all ranks arrived in time or with the same tensors, but all of them are alive" +
          limit};
  const auto& signs = group.implementation()->heartbeat;
  const std::string why =
      signs ? signs->find_cause(group.world_ranks(), failure) : failure.otherwise;
  throw DistributedError(c10::str(what, " failed: ", why, "; restart from the last training state.",
                                  details.empty() ? "" : " (" + details + ")"));
}

void check_can_continue(const ProcessGroup& group, const char* what) {
  const auto* implementation = group.implementation();
  // If a collective on a device was aborted, the values on that device are invalid.
  if (implementation != nullptr && implementation->has_failed()) {
    throw_collective_error(group, what, /*is_late=*/false, "");
  }
}

void begin_collective(const ProcessGroup& group, const char* what) {
  check_can_continue(group, what);
  const auto* implementation = group.implementation();
  if (implementation == nullptr || !implementation->heartbeat) return;
  if (implementation->is_world) implementation->heartbeat->count_call();
}

void end_collective(const ProcessGroup& group, const char* what) {
  const auto* implementation = group.implementation();
  if (implementation != nullptr && implementation->device_watch) {
    implementation->device_watch->mark(what);
  }
}

}  // namespace linkboy

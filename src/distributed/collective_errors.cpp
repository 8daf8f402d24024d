// Converts exceptions of c10d to errors that name the lost or late ranks.

#include <exception>
#include <string>
#include <string_view>

#include "distributed/process_group_implementation.hpp"

namespace linkboy {

std::string ProcessGroup::Implementation::timeout_text() const {
  return c10::str(" (timeout ", std::chrono::duration<double>(timeout).count(), " s)");
}

bool is_communication_error(const std::exception& error) {
  if (dynamic_cast<const c10::DistError*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::Error*>(&error) != nullptr) return false;
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
  const std::string limit = group.implementation()->timeout_text();
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

void begin_collective(const ProcessGroup& group, const char* what) {
  const auto* implementation = group.implementation();
  if (implementation == nullptr || !implementation->heartbeat) return;
  // If a collective on a device was aborted, the values on that device are invalid.
  if (implementation->has_failed()) throw_collective_error(group, what, /*is_late=*/false, "");
  if (implementation->is_world) implementation->heartbeat->count_call();
}

void end_collective(const ProcessGroup& group, const char* what) {
  const auto* implementation = group.implementation();
  if (implementation != nullptr && implementation->device_watch) {
    implementation->device_watch->mark(what);
  }
}

}  // namespace linkboy

// LibTorch exports Gloo; its headers come from the system.

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <cstdlib>

#include "distributed/backends.hpp"

namespace linkboy {

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendSetup& setup,
                                                    const std::string& address) {
  using Gloo = c10d::ProcessGroupGloo;
  auto options = Gloo::Options::create(setup.timeout);
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface != nullptr && *interface != '\0') {
    options->devices.push_back(Gloo::createDeviceForInterface(interface));
  } else if (!address.empty()) {
    options->devices.push_back(Gloo::createDeviceForHostname(address));
  } else {
    options->devices.push_back(Gloo::createDefaultDevice());
  }
  return c10::make_intrusive<Gloo>(setup.store, setup.rank, setup.size, std::move(options));
}

}  // namespace linkboy

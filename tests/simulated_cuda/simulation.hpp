// The interface of the simulation for tests. It looks up functions at run time, because the
// simulation is preloaded and not linked.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace linkboy::simulated_cuda {

/// Counts since the program's start.
struct Counts {
  std::int64_t kernels = 0;  // operators and memsets that were launched one by one
  std::int64_t graphs = 0;   // launches of whole graphs
  std::int64_t host_to_device = 0;
  // Copies from the host to a device that do not have to wait for all earlier work of the device's
  // other streams.
  std::int64_t overlapping_host_to_device = 0;
  std::int64_t device_to_host = 0;
  std::int64_t device_to_device = 0;
  std::int64_t pageable = 0;      // copies whose memory on the host is not page-locked
  std::int64_t stream_waits = 0;  // waits of the host for all work of a stream
  std::int64_t event_waits = 0;   // waits of the host for an event
  std::int64_t device_waits = 0;  // waits of the host for all work of a device
  // Waits for an event after which its stream had no work left, as after a wait for the stream.
  std::int64_t draining_event_waits = 0;
  std::int64_t races = 0;
};

/// Whether this program's CUDA devices are simulated.
inline bool is_simulated() { return ::dlsym(RTLD_DEFAULT, "simulated_cuda_counts") != nullptr; }

template <class Function>
Function* function_of_simulation(const char* name) {
  auto* function = reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
  if (function == nullptr) throw std::logic_error("the CUDA devices are not simulated");
  return function;
}

inline Counts counts() {
  Counts counts;
  function_of_simulation<void(Counts*)>("simulated_cuda_counts")(&counts);
  return counts;
}

/// Clears the failure of a kernel, which makes all later waits fail. On a real device, the program
/// would have to be restarted.
inline void forget_failure() { function_of_simulation<void()>("simulated_cuda_forget_failure")(); }

/// While it exists, a race does not end the program in strict mode, so that a test can check it.
class RacesAreReported {
 public:
  RacesAreReported() { tolerate(true); }
  ~RacesAreReported() { tolerate(false); }
  RacesAreReported(const RacesAreReported&) = delete;
  RacesAreReported& operator=(const RacesAreReported&) = delete;

  /// Returns the reports since the last call, one per line.
  std::string take() const {
    return function_of_simulation<const char*()>("simulated_cuda_take_race_reports")();
  }

 private:
  static void tolerate(bool on) {
    function_of_simulation<void(bool)>("simulated_cuda_tolerate_races")(on);
  }
};

}  // namespace linkboy::simulated_cuda

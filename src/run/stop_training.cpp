#include "linkboy/run/stop_training.hpp"

namespace linkboy {

std::string_view to_string(StopReason reason) {
  switch (reason) {
    case StopReason::finished:
      return "finished";
    case StopReason::max_steps:
      return "max_steps";
    case StopReason::early_stop:
      return "early_stop";
    case StopReason::nan:
      return "nan";
    case StopReason::stop_request:
      return "stop_request";
  }
  return "unknown";
}

}  // namespace linkboy

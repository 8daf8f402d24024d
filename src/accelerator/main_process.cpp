#include "linkboy/accelerator/main_process.hpp"

#include <exception>

#include "linkboy/accelerator.hpp"
#include "linkboy/error.hpp"
#include "linkboy/run/stop_training.hpp"

namespace linkboy {

std::string failure_on_main_process(const Accelerator& accelerator,
                                    const std::function<void()>& work) {
  std::string failure;
  if (!accelerator.is_main_process()) {
    work();
  } else {
    try {
      work();
    } catch (const std::exception&) {
      failure = message_of(std::current_exception());
    }
  }
  return accelerator.broadcast_bytes(failure);
}

void run_on_main_process(const Accelerator& accelerator, const std::function<void()>& work) {
  const std::string failure = failure_on_main_process(accelerator, [&] {
    if (accelerator.is_main_process()) work();
  });
  LINKBOY_CHECK(failure.empty(), failure);
}

}  // namespace linkboy

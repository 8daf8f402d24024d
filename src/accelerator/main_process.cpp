// Runs work that may fail on the main process only, and tells the other processes its error.

#include "linkboy/accelerator/main_process.hpp"

#include <exception>

#include "linkboy/accelerator.hpp"
#include "linkboy/error.hpp"
#include "linkboy/run/stop_training.hpp"
#include "util/error_bytes.hpp"

namespace linkboy {

namespace {

/// Runs the work. Returns the main process's exception, as `error_bytes`, on all processes.
std::string error_of_main_process(const Accelerator& accelerator, const std::function<void()>& work,
                                  std::exception_ptr& own) {
  std::string error;
  if (!accelerator.is_main_process()) {
    work();
  } else {
    try {
      work();
    } catch (const StopTraining&) {
      throw;
    } catch (const std::exception&) {
      own = std::current_exception();
      error = error_bytes(own);
    }
  }
  return accelerator.broadcast_bytes(error);
}

}  // namespace

std::string failure_on_main_process(const Accelerator& accelerator,
                                    const std::function<void()>& work) {
  std::exception_ptr own;
  const std::string error = error_of_main_process(accelerator, work, own);
  return error.empty() ? error : error.substr(1);
}

void run_on_main_process(const Accelerator& accelerator, const std::function<void()>& work) {
  std::exception_ptr own;
  const std::string error = error_of_main_process(
      accelerator,
      [&] {
        if (accelerator.is_main_process()) work();
      },
      own);
  if (own) std::rethrow_exception(own);
  if (!error.empty()) throw_error(error);
}

}  // namespace linkboy

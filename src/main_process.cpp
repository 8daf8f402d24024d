#include "linkboy/main_process.hpp"

#include <c10/util/Exception.h>

#include <exception>

#include "linkboy/accelerator.hpp"
#include "linkboy/stop_training.hpp"

namespace linkboy {

std::string failure_on_main_process(const Accelerator& accelerator,
                                    const std::function<void()>& work) {
  std::string failure;
  if (!accelerator.is_main_process()) {
    work();
  } else {
    try {
      work();
    } catch (const StopTraining&) {
      throw;
    } catch (const c10::Error& error) {
      failure = error.what_without_backtrace();
    } catch (const std::exception& error) {
      failure = error.what();
    }
  }
  return accelerator.broadcast_object(failure);
}

}  // namespace linkboy

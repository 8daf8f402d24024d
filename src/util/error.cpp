// The message of an exception without LibTorch's backtrace.

#include "linkboy/error.hpp"

#include <c10/util/Exception.h>

namespace linkboy {

std::string message_of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is not a std::exception was thrown.";
  }
}

}  // namespace linkboy

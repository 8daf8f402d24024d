#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace linkboy {

/// What an exception says, without the addresses of LibTorch's backtrace.
inline std::string message_of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

}  // namespace linkboy

#pragma once

#include <c10/util/StringUtil.h>

#include <exception>
#include <stdexcept>
#include <string>

#include "linkboy/export.hpp"

namespace linkboy {

/// What linkboy throws when it is used wrongly or meets bad input.
///
/// The message says what is wrong (with the value), what is allowed and what to do. Errors that
/// LibTorch finds itself arrive as LibTorch's own `c10::Error`.
class LINKBOY_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Returns the message of `exception`, which must not be null. That of a `c10::Error` comes without
/// LibTorch's backtrace, which its `what()` holds.
LINKBOY_API std::string message_of(const std::exception_ptr& exception);

}  // namespace linkboy

/// Throws linkboy::Error with the remaining arguments, streamed one after the other, as its
/// message unless `condition` holds. The arguments are evaluated only on failure.
#define LINKBOY_CHECK(condition, ...)                  \
  do {                                                 \
    if (!(condition)) [[unlikely]] {                   \
      throw ::linkboy::Error(::c10::str(__VA_ARGS__)); \
    }                                                  \
  } while (false)

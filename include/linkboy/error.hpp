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

/// An option, an argument or a combination of them that is not allowed.
class LINKBOY_API OptionError : public Error {
 public:
  using Error::Error;
};

/// A file that cannot be opened, read or written, which says nothing about its contents.
class LINKBOY_API FileError : public Error {
 public:
  using Error::Error;
};

/// A file that was read, but is damaged, cut short or of another kind.
class LINKBOY_API CorruptFileError : public FileError {
 public:
  using FileError::FileError;
};

/// The processes of a run cannot go on together: one is lost or late, or they disagree. Start them
/// again from the last training state.
class LINKBOY_API DistributedError : public Error {
 public:
  using Error::Error;
};

/// Returns the message of `exception`, which must not be null. That of a `c10::Error` comes without
/// LibTorch's backtrace, which its `what()` holds.
LINKBOY_API std::string message_of(const std::exception_ptr& exception);

}  // namespace linkboy

/// Throws an ErrorClass with the remaining arguments, streamed one after the other, as its message
/// unless `condition` holds. The arguments are evaluated only on failure.
#define LINKBOY_CHECK_AS(ErrorClass, condition, ...) \
  do {                                               \
    if (!(condition)) [[unlikely]] {                 \
      throw ErrorClass(::c10::str(__VA_ARGS__));     \
    }                                                \
  } while (false)

/// The same with a linkboy::Error.
#define LINKBOY_CHECK(condition, ...) LINKBOY_CHECK_AS(::linkboy::Error, condition, __VA_ARGS__)

/// The same with a linkboy::OptionError.
#define LINKBOY_CHECK_OPTION(condition, ...) \
  LINKBOY_CHECK_AS(::linkboy::OptionError, condition, __VA_ARGS__)

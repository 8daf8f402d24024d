#pragma once

#include <c10/util/StringUtil.h>

#include <exception>
#include <stdexcept>
#include <string>

#include "linkboy/export.hpp"

namespace linkboy {

/// Base class of the errors that linkboy throws for wrong usage and invalid input.
///
/// The message says what is wrong (with the value), what is accepted and what to do. LibTorch
/// reports the errors that it detects as `c10::Error`.
class LINKBOY_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An option, an argument or a combination of them is not allowed.
class LINKBOY_API OptionError : public Error {
 public:
  using Error::Error;
};

/// A file cannot be opened, read or written. This says nothing about its contents.
class LINKBOY_API FileError : public Error {
 public:
  using Error::Error;
};

/// A file was read but is damaged, truncated or of another kind.
class LINKBOY_API CorruptFileError : public FileError {
 public:
  using FileError::FileError;
};

/// The processes of a run cannot continue together: one of them is lost or late, or they disagree.
/// Restart them from the last training state.
class LINKBOY_API DistributedError : public Error {
 public:
  using Error::Error;
};

/// Returns the message of `exception`, which must not be null. For a `c10::Error`, omits LibTorch's
/// backtrace, which `what()` contains.
LINKBOY_API std::string message_of(const std::exception_ptr& exception);

}  // namespace linkboy

/// Throws an ErrorClass unless `condition` is true. The message consists of the remaining
/// arguments, streamed one after another. They are evaluated only on failure.
#define LINKBOY_CHECK_AS(ErrorClass, condition, ...) \
  do {                                               \
    if (!(condition)) [[unlikely]] {                 \
      throw ErrorClass(::c10::str(__VA_ARGS__));     \
    }                                                \
  } while (false)

/// Throws a linkboy::Error unless `condition` is true; see LINKBOY_CHECK_AS.
#define LINKBOY_CHECK(condition, ...) LINKBOY_CHECK_AS(::linkboy::Error, condition, __VA_ARGS__)

/// Throws a linkboy::OptionError unless `condition` is true; see LINKBOY_CHECK_AS.
#define LINKBOY_CHECK_OPTION(condition, ...) \
  LINKBOY_CHECK_AS(::linkboy::OptionError, condition, __VA_ARGS__)

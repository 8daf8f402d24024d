// Sends an exception to another process, where one of the same class is thrown.

#include "util/error_bytes.hpp"

#include "linkboy/error.hpp"

namespace linkboy {
namespace {

char class_of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const OptionError&) {
    return 'o';
  } catch (const CorruptFileError&) {
    return 'c';
  } catch (const FileError&) {
    return 'f';
  } catch (const DistributedError&) {
    return 'd';
  } catch (...) {
    return 'e';
  }
}

}  // namespace

std::string error_bytes(const std::exception_ptr& exception) {
  return class_of(exception) + message_of(exception);
}

void throw_error(std::string_view bytes, const std::string& prefix) {
  const std::string message = prefix + std::string(bytes.substr(1));
  switch (bytes[0]) {
    case 'o':
      throw OptionError(message);
    case 'c':
      throw CorruptFileError(message);
    case 'f':
      throw FileError(message);
    case 'd':
      throw DistributedError(message);
    default:
      throw Error(message);
  }
}

}  // namespace linkboy

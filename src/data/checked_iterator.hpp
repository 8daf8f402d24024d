#pragma once

#include <memory>
#include <utility>

#include "linkboy/data/data_loader.hpp"
#include "linkboy/error.hpp"

namespace linkboy {

/// Returns the iterator of a loader, which may be a user's class.
/// @throws Error if it is null.
inline std::unique_ptr<BatchIterator> checked(std::unique_ptr<BatchIterator> batches) {
  LINKBOY_CHECK(batches != nullptr,
                "iterate() or peek() of the loader returned null; it must return an iterator, also "
                "if there are no batches left.");
  return batches;
}

}  // namespace linkboy

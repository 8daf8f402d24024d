#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <vector>

#include "pickle_format.hpp"

namespace linkboy {

/// A value under construction. Nodes point at each other freely, in cycles even; the Unpickler owns
/// them, and only the conversion at the end has to bound what it follows.
struct PickleNode {
  enum class Kind { kPlain, kTuple, kList, kDict, kGlobal, kStorage };

  Kind kind = Kind::kPlain;
  c10::IValue plain;               // kPlain: None, bool, integer, double, string or tensor.
  std::vector<PickleNode*> items;  // kDict: key, value, key, value.
  GlobalEntry global{};            // kGlobal; kStorage: its dtype.
  c10::Storage storage;            // kStorage.

  // Of the conversion, which leaves its result in `plain`:
  std::size_t num_values = 0;  // in it, itself included, as often as they are met; 0 before
  int height = 0;              // levels of containers below it
};

/// The value that a finished node stands for; leaves it in the node, too.
///
/// @param max_values  Shared containers are shared in memory too, but whoever walks through the
///                    result meets them each time: a few that hold each other many times must not
///                    keep them for ever.
/// @throws Error if it has more values than that, is nested too deeply or in itself, or is not
/// data.
c10::IValue to_ivalue(PickleNode& node, std::size_t max_values);

}  // namespace linkboy

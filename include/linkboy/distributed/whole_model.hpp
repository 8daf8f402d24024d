#pragma once

#include <memory>

#include "linkboy/export.hpp"
#include "linkboy/model.hpp"

namespace linkboy {

/// With `zero_stage` 3, gathers the model's parameters. While the result exists, every process has
/// them whole, and may use them without the others: to export the model, to write it to a file, or
/// to read the memory of a parameter. Do not train in this time. Without `zero_stage` 3, does
/// nothing.
/// @note Collective.
[[nodiscard]] LINKBOY_API std::shared_ptr<void> whole(const Model& model);

}  // namespace linkboy

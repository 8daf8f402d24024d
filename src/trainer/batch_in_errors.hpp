#pragma once

#include <c10/util/Exception.h>

#include "linkboy/data/batch.hpp"
#include "linkboy/model.hpp"

namespace linkboy {

/// Adds a description of the batch and of the model's parameters to an error.
void add_batch(c10::Error& error, const Batch& batch, const Model& model);

/// Runs a step. LibTorch's errors do not name the tensors of the batch, so they are added.
template <class Step>
auto with_batch_in_errors(const Batch& batch, const Model& model, const Step& step) {
  try {
    return step();
  } catch (c10::Error& error) {
    add_batch(error, batch, model);
    throw;
  }
}

}  // namespace linkboy

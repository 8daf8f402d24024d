// Describes the batch on which a step has failed.

#include "trainer/batch_in_errors.hpp"

#include <ATen/ATen.h>

#include <string>
#include <vector>

namespace linkboy {
namespace {

/// Returns "Float [8, 4] with values from -1 to 1".
std::string describe_tensor(const at::Tensor& tensor) {
  std::string text = c10::str(tensor.scalar_type(), " ", tensor.sizes());
  try {
    const at::NoGradGuard no_grad;
    text += c10::str(" with values from ", tensor.min().item(), " to ", tensor.max().item());
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): without elements or an order,
  }                                  // or on a device that has failed
  return text;
}

}  // namespace

void add_batch(c10::Error& error, const Batch& batch, const Model& model) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return;
  std::vector<std::string> parts;
  parts.reserve(batch.tensors().size());
  for (const auto& [name, tensor] : batch.tensors()) {
    parts.push_back(c10::str('"', name, "\" is ", describe_tensor(tensor)));
  }
  std::string text = c10::str("In this batch, ", c10::Join(", ", parts), ".");
  const auto parameters = model.parameters();
  if (!parameters.empty()) {
    text += c10::str(" The first of the model's parameters is ", parameters[0].scalar_type(), ".");
  }
  error.add_context(text + " Compare them with what the model and the loss function accept.");
}

}  // namespace linkboy

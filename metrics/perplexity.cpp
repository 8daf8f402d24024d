// Accumulates the negative log likelihood of the tokens and their number.

#include "linkboy/metrics/perplexity.hpp"

#include <ATen/ATen.h>

#include "linkboy/error.hpp"

namespace linkboy {

Perplexity::Perplexity(PerplexityOptions options) : options_(options) {
  add_state("sum", at::zeros({}, at::kDouble), Merge::sum);
  add_state("count", at::zeros({}, at::kLong), Merge::sum);
  add_rule(c10::str(
      "Perplexity: labels must be class indexes of the outputs",
      options.ignore_index ? c10::str(", or ignore_index (", *options.ignore_index, ").") : "."));
}

void Perplexity::check_shapes(const at::Tensor& outputs, const at::Tensor& targets) const {
  LINKBOY_CHECK(outputs.defined() && targets.defined(),
                "Perplexity: the outputs or the targets are undefined; pass two tensors.");
  LINKBOY_CHECK(outputs.device() == targets.device(), "Perplexity: the outputs are on ",
                outputs.device(), ", but the targets are on ", targets.device(),
                "; move them to the same device.");
  LINKBOY_CHECK(outputs.is_floating_point(), "Perplexity: the outputs are ", outputs.scalar_type(),
                "; they must be floating-point logits.");
  LINKBOY_CHECK(at::isIntegralType(targets.scalar_type(), /*includeBool=*/false),
                "Perplexity: the targets are ", targets.scalar_type(),
                "; they must be class indexes of an integer type.");
  const int64_t dim = outputs.dim();
  LINKBOY_CHECK(
      dim >= 2 && options_.class_dim >= -dim && options_.class_dim < dim,
      "Perplexity: the outputs are ", outputs.sizes(), ", but class_dim is ", options_.class_dim,
      "; they must have this dimension, and at least two dimensions. Set class_dim to -1 for "
      "[N, ..., C] or 1 for [N, C, ...].");
  const at::Tensor classes_last = outputs.movedim(options_.class_dim, -1);
  LINKBOY_CHECK(classes_last.sizes().slice(0, dim - 1) == targets.sizes(),
                "Perplexity: the outputs are ", outputs.sizes(), " with the classes in dimension ",
                options_.class_dim, ", but the targets are ", targets.sizes(), "; they must be ",
                classes_last.sizes().slice(0, dim - 1), ".");
  LINKBOY_CHECK(classes_last.size(-1) >= 1, "Perplexity: the outputs are ", outputs.sizes(),
                ", with no classes in dimension ", options_.class_dim,
                "; there must be at least one.");
}

void Perplexity::update(const at::Tensor& outputs, const at::Tensor& targets) {
  check_shapes(outputs, targets);
  const at::Tensor logits = outputs.detach().movedim(options_.class_dim, -1);
  const at::Tensor labels = targets.to(at::kLong);
  const int64_t num_classes = logits.size(-1);
  const at::Tensor counts =
      options_.ignore_index ? labels.ne(*options_.ignore_index) : at::ones_like(labels, at::kBool);
  const at::Tensor is_wrong = labels.lt(0).logical_or(labels.ge(num_classes)).logical_and(counts);
  follow(outputs);
  check_values(0, labels, is_wrong);

  const auto precision = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor log_likelihoods = at::log_softmax(logits, -1, precision)
                                         .gather(-1, labels.clamp(0, num_classes - 1).unsqueeze(-1))
                                         .squeeze(-1)
                                         .masked_fill(counts.logical_not(), 0.0);
  state(0).sub_(log_likelihoods.sum(at::kDouble));
  state(1).add_(counts.sum());
}

at::Tensor Perplexity::value_of(const std::vector<at::Tensor>& states) const {
  return (states[0] / states[1]).exp();
}

}  // namespace linkboy

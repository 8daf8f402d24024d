// Converts outputs of all accepted forms (scores per class, scores of class 1, class indexes) to
// predicted classes, and checks the labels.

#include "linkboy/metrics/class_predictions.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "linkboy/error.hpp"

namespace linkboy {
namespace {

bool are_class_indexes(const at::Tensor& tensor) {
  return at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
}

/// Whether `outputs` has the shape of `targets` with an additional dimension 1 of size `size`.
bool has_dimension_more(const at::Tensor& outputs, const at::Tensor& targets, int64_t size) {
  return outputs.dim() == targets.dim() + 1 && outputs.size(0) == targets.size(0) &&
         outputs.size(1) == size && outputs.sizes().slice(2) == targets.sizes().slice(1);
}

at::Tensor best_of_top_k(const at::Tensor& scores, const at::Tensor& targets, int64_t top_k) {
  // `topk` returns equal scores in any order.
  const at::Tensor highest =
      at::argsort(scores, /*stable=*/true, /*dim=*/1, /*descending=*/true).slice(1, 0, top_k);
  const at::Tensor is_among = highest.eq(targets.unsqueeze(1)).any(1);
  return at::where(is_among, targets, highest.select(1, 0));
}

at::Tensor classes_of(const at::Tensor& outputs, const at::Tensor& targets,
                      const ClassPredictionOptions& options) {
  const bool are_scores = outputs.is_floating_point();
  if (are_scores && has_dimension_more(outputs, targets, options.num_classes)) {
    return options.top_k == 1 ? outputs.argmax(1) : best_of_top_k(outputs, targets, options.top_k);
  }
  LINKBOY_CHECK(options.top_k == 1, "top_k is ", options.top_k, ", but the outputs are ",
                outputs.scalar_type(), outputs.sizes(), " with targets ", targets.sizes(),
                "; top_k needs floating-point scores [N, ", options.num_classes, ", ...].");
  if (are_scores && options.num_classes == 2) {
    const bool is_column = has_dimension_more(outputs, targets, 1);
    if (is_column || outputs.sizes() == targets.sizes()) {
      return outputs.gt(options.threshold).view_as(targets).to(at::kLong);
    }
  }
  LINKBOY_CHECK(!are_scores && are_class_indexes(outputs) && outputs.sizes() == targets.sizes(),
                "the outputs are ", outputs.scalar_type(), outputs.sizes(), " and the targets ",
                targets.sizes(), ", with ", options.num_classes,
                " classes; for targets [N, ...] the outputs must be scores [N, ",
                options.num_classes, ", ...] or class indexes [N, ...]",
                options.num_classes == 2 ? ", or scores [N, ...] of class 1." : ".");
  return outputs.to(at::kLong);
}

void check_range(const at::Tensor& classes, const at::Tensor& is_counted, const char* what,
                 const ClassPredictionOptions& options) {
  if (classes.numel() == 0) return;
  const auto [least, most] = at::aminmax(at::where(is_counted, classes, 0));
  const auto lowest = least.item<int64_t>();
  const auto highest = most.item<int64_t>();
  LINKBOY_CHECK(lowest >= 0 && highest < options.num_classes, what, " is ",
                lowest < 0 ? lowest : highest, ", but num_classes is ", options.num_classes, "; ",
                options.label_rule());
}

at::Tensor is_no_class(const at::Tensor& classes, int64_t num_classes) {
  return (classes < 0) | (classes >= num_classes);
}

}  // namespace

void ClassPredictionOptions::check() const {
  LINKBOY_CHECK_OPTION(num_classes >= 2, "num_classes is ", num_classes,
                       "; it must be at least 2. Use 2 for binary classification.");
  LINKBOY_CHECK_OPTION(top_k >= 1 && top_k <= num_classes, "top_k is ", top_k,
                       ", but num_classes is ", num_classes, "; it must lie in [1, ", num_classes,
                       "].");
  LINKBOY_CHECK_OPTION(!std::isnan(threshold), "threshold is NaN; it must be a number.");
}

std::string ClassPredictionOptions::label_rule() const {
  return c10::str("labels must lie in [0, ", num_classes - 1,
                  "]. Check num_classes, or set ignore_index to the label of samples that do not "
                  "count.");
}

ClassPredictions predict_classes(const at::Tensor& outputs, const at::Tensor& targets,
                                 const ClassPredictionOptions& options) {
  const at::NoGradGuard no_grad;
  LINKBOY_CHECK(are_class_indexes(targets), "the targets are ", targets.scalar_type(),
                targets.sizes(),
                "; they must be class indexes of an integer type, such as at::kLong.");
  LINKBOY_CHECK(targets.dim() > 0, "the targets have no dimension 0; they must be [N, ...].");
  LINKBOY_CHECK(outputs.device() == targets.device(), "the outputs are on ", outputs.device(),
                ", but the targets are on ", targets.device(), "; move them to the same device.");
  ClassPredictions result;
  result.labels = targets.to(at::kLong);
  result.predicted = classes_of(outputs, result.labels, options).reshape({-1});
  result.labels = result.labels.reshape({-1});
  at::Tensor is_counted = options.ignore_index ? result.labels.ne(*options.ignore_index)
                                               : at::ones_like(result.labels, at::kBool);
  if (targets.is_cpu()) {
    check_range(result.labels, is_counted, "a label of the targets", options);
    check_range(result.predicted, is_counted, "a class index of the outputs", options);
  } else {
    result.is_out_of_range = (is_no_class(result.labels, options.num_classes) |
                              is_no_class(result.predicted, options.num_classes)) &
                             is_counted;
    is_counted = is_counted & ~result.is_out_of_range;
  }
  result.labels = result.labels.clamp(0, options.num_classes - 1);
  result.predicted = result.predicted.clamp(0, options.num_classes - 1);
  result.counts = is_counted.to(at::kLong);
  return result;
}

}  // namespace linkboy

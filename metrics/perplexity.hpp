#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/metrics/metric.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

struct PerplexityOptions {
  /// Where the classes lie in the outputs: last, [N, ..., C], as a language model gives them; or 1,
  /// [N, C, ...], as cross entropy takes them.
  int64_t class_dim = -1;
  /// A label that does not count.
  std::optional<int64_t> ignore_index{};

  LINKBOY_FIELDS(class_dim, ignore_index);
};

/// exp of the mean cross entropy of tokens: how many classes a model hesitates between.
///
/// Outputs are logits, targets class numbers of the outputs' shape without the classes. The value
/// is a scalar; NaN before the first label that counts.
class LINKBOY_API Perplexity : public Metric {
 public:
  /// What `make<Perplexity>({...})` takes.
  using Options = PerplexityOptions;

  /// See the options.
  explicit Perplexity(PerplexityOptions options = {});

  /// @throws Error if shapes or dtypes do not fit, or a label is neither in [0, C) nor
  ///         `ignore_index`.
  void update(const at::Tensor& outputs, const at::Tensor& targets) override;

 protected:
  at::Tensor value_of(const std::vector<at::Tensor>& states) const override;

 private:
  void check_shapes(const at::Tensor& outputs, const at::Tensor& targets) const;

  PerplexityOptions options_;
};

}  // namespace linkboy

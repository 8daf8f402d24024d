#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/metric.hpp"
#include "linkboy/util/make.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

struct PerplexityOptions {
  /// Dimension of the classes in the outputs: -1 for [N, ..., C], as language models return them,
  /// or 1 for [N, C, ...], as cross entropy accepts them.
  int64_t class_dim = -1;
  /// Label of tokens to ignore.
  std::optional<int64_t> ignore_index{};

  LINKBOY_FIELDS(class_dim, ignore_index);
};

/// The exponential of the mean cross entropy of tokens. A value of k means that the model is as
/// uncertain as a uniform choice between k classes.
///
/// Outputs are logits. Targets are class indexes, with the shape of the outputs without the
/// dimension of the classes. The value is a scalar. It is NaN before the first label that is not
/// ignored.
class LINKBOY_API Perplexity : public Metric {
 public:
  /// The options type for `make<Perplexity>({...})`.
  using Options = PerplexityOptions;

  /// Creates a metric with these options.
  explicit Perplexity(PerplexityOptions options = {});

  /// @throws Error if shapes, dtypes or devices are invalid, or, on the CPU, if a label is neither
  ///         in [0, C) nor `ignore_index`.
  void update(const at::Tensor& outputs, const at::Tensor& targets) override;

 protected:
  at::Tensor value_of(const std::vector<at::Tensor>& states) const override;

 private:
  void check_shapes(const at::Tensor& outputs, const at::Tensor& targets) const;

  PerplexityOptions options_;
};
/// Makes a Perplexity.
inline constexpr Maker<Perplexity> perplexity{};

}  // namespace linkboy

#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace linkboy {

struct RunConfig;

/// A number, or an expression over what the run will resolve to:
/// `NUM_UPDATE_STEPS_PER_EPOCH * 7 + 1`. Placeholders and numbers combine with + - * / on either
/// side, chained as one likes, and with `ceil` and `floor`; `resolve` computes the value.
class RunValue {
 public:
  RunValue(double value);   // NOLINT(google-explicit-constructor): a number is a value
  RunValue(int64_t value);  // NOLINT(google-explicit-constructor)
  RunValue(int value) : RunValue(static_cast<int64_t>(value)) {}  // NOLINT

  /// A placeholder called `name`. `get` may throw Error if the run has no such value.
  RunValue(std::string name, std::function<double(const RunConfig&)> get);

  /// @throws Error if a placeholder has no value in this run or something is divided by zero; the
  ///         message shows the expression.
  double resolve(const RunConfig& config) const;

  /// As `resolve`, for counts.
  /// @throws Error also if the value is no whole number; the message advises `ceil` or `floor`.
  int64_t resolve_count(const RunConfig& config) const;

  /// The expression as text: "(NUM_EPOCHS * 2)".
  const std::string& to_string() const { return text_; }

  friend RunValue operator+(const RunValue& left, const RunValue& right);
  friend RunValue operator-(const RunValue& left, const RunValue& right);
  friend RunValue operator*(const RunValue& left, const RunValue& right);
  friend RunValue operator/(const RunValue& left, const RunValue& right);
  friend RunValue operator-(const RunValue& value);
  friend RunValue ceil(const RunValue& value);
  friend RunValue floor(const RunValue& value);

 private:
  std::string text_;
  std::function<double(const RunConfig&)> get_;
};

/// Epochs of the run.
extern const RunValue NUM_EPOCHS;
/// Optimizer steps in an epoch; the same number on every rank.
extern const RunValue NUM_UPDATE_STEPS_PER_EPOCH;
/// The same as NUM_UPDATE_STEPS_PER_EPOCH, since linkboy counts updates in one unit; kept for those
/// who come from pytorch-accelerated.
extern const RunValue PER_PROCESS_NUM_UPDATE_STEPS_PER_EPOCH;
/// Batches that one process sees in a training (evaluation) epoch.
extern const RunValue TRAIN_DATALOADER_LEN;
/// @note Resolving it throws Error in a run without evaluation data.
extern const RunValue EVAL_DATALOADER_LEN;

}  // namespace linkboy

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "linkboy/export.hpp"

namespace linkboy {

struct RunConfig;

/// A number, or an expression over what the run will resolve to:
/// `NUM_UPDATE_STEPS_PER_EPOCH * 7 + 1`. Placeholders and numbers combine with + - * / on either
/// side, chained as one likes, and with `ceil`, `floor`, `min` and `max`; `resolve` computes the
/// value.
class LINKBOY_API RunValue {
 public:
  /// A number, which is its own value.
  /// @{
  RunValue(double value);   // NOLINT(google-explicit-constructor): a number is a value
  RunValue(int64_t value);  // NOLINT(google-explicit-constructor)
  RunValue(int value) : RunValue(static_cast<int64_t>(value)) {}  // NOLINT
  /// @}

  /// A placeholder called `name`. `get` may throw Error if the run has no such value.
  RunValue(std::string name, std::function<double(const RunConfig&)> get);

  /// The placeholder called `name`, as the constants below hold them.
  /// @throws Error that lists the names if there is none.
  static RunValue placeholder(std::string_view name);

  /// Reads an expression as one would write it in C++: "2 * NUM_UPDATE_STEPS_PER_EPOCH + 1",
  /// "ceil(NUM_EPOCHS / 3)", "min(100, NUM_UPDATE_STEPS / 2)".
  /// @throws Error that shows the place if `text` is none; the message lists the placeholders.
  static RunValue parse(std::string_view text);

  /// Returns the value in a run. One that is a whole number up to rounding is that number:
  /// `NUM_UPDATE_STEPS * 0.07` is 7 of 100 updates, although 100 * 0.07 is a little more.
  /// @throws Error if a placeholder has no value in this run or something is divided by zero; the
  ///         message shows the expression.
  double resolve(const RunConfig& config) const;

  /// As `resolve`, for counts.
  /// @throws Error also if the value is not a whole number (the message advises `ceil` or `floor`),
  ///         or beyond 2^53, where doubles leave out whole numbers.
  int64_t resolve_count(const RunConfig& config) const;

  /// The expression as text: "(NUM_EPOCHS * 2)".
  const std::string& to_string() const { return text_; }

  /// A value that is computed when the run is known.
  /// @{
  friend RunValue operator+(const RunValue& left, const RunValue& right);
  friend RunValue operator-(const RunValue& left, const RunValue& right);
  friend RunValue operator*(const RunValue& left, const RunValue& right);
  friend RunValue operator/(const RunValue& left, const RunValue& right);
  friend RunValue operator-(const RunValue& value);
  friend RunValue ceil(const RunValue& value);
  friend RunValue floor(const RunValue& value);
  friend RunValue min(const RunValue& left, const RunValue& right);
  friend RunValue max(const RunValue& left, const RunValue& right);
  /// @}

 private:
  using Get = std::function<double(const RunConfig&)>;

  std::string text_;
  std::shared_ptr<const Get> get_;  // copies share it: an expression holds its parts
};

/// As `RunValue::parse`, for `options_from_text`.
LINKBOY_API void read_text(const std::string& text, RunValue& value);

// `inline`, so that a namespace-scope constant of a program may be made of them.

/// Epochs of the run.
inline const RunValue NUM_EPOCHS = RunValue::placeholder("NUM_EPOCHS");
/// Optimizer steps in the whole run; fewer than NUM_EPOCHS * NUM_UPDATE_STEPS_PER_EPOCH if
/// `max_num_train_steps` ends the run in mid-epoch.
inline const RunValue NUM_UPDATE_STEPS = RunValue::placeholder("NUM_UPDATE_STEPS");
/// Optimizer steps in an epoch; the same number on every rank.
inline const RunValue NUM_UPDATE_STEPS_PER_EPOCH =
    RunValue::placeholder("NUM_UPDATE_STEPS_PER_EPOCH");
/// The same as NUM_UPDATE_STEPS_PER_EPOCH, since linkboy counts updates in one unit; kept for those
/// who come from pytorch-accelerated.
inline const RunValue PER_PROCESS_NUM_UPDATE_STEPS_PER_EPOCH =
    RunValue::placeholder("PER_PROCESS_NUM_UPDATE_STEPS_PER_EPOCH");
/// Batches that one process sees in a training (evaluation) epoch.
inline const RunValue TRAIN_DATALOADER_LEN = RunValue::placeholder("TRAIN_DATALOADER_LEN");
/// @note Resolving it throws Error in a run without evaluation data.
inline const RunValue EVAL_DATALOADER_LEN = RunValue::placeholder("EVAL_DATALOADER_LEN");

}  // namespace linkboy

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "linkboy/export.hpp"

namespace linkboy {

struct RunConfig;

namespace detail {
/// Name of one of the placeholders below.
struct PlaceholderName {
  std::string_view text;
};
}  // namespace detail

/// A number, or an expression over values that are known once the run begins, such as
/// `placeholders::num_updates_per_epoch * 7 + 1`. Placeholders and numbers combine with + - * / on
/// either side, in any nesting, and with `ceil`, `floor`, `min` and `max`. `resolve` computes the
/// value.
class LINKBOY_API RunExpression {
 public:
  /// Constructs an expression with a constant value.
  /// @{
  RunExpression(double value);   // NOLINT(google-explicit-constructor): a number is a value
  RunExpression(int64_t value);  // NOLINT(google-explicit-constructor)
  RunExpression(int value) : RunExpression(static_cast<int64_t>(value)) {}  // NOLINT
  /// @}

  /// Constructs a placeholder called `name`. `get` may throw Error if the run does not have the
  /// value.
  RunExpression(std::string name, std::function<double(const RunConfig&)> get);

  /// Constructs a placeholder at compile time, for the constants below.
  constexpr explicit RunExpression(detail::PlaceholderName name) noexcept
      : placeholder_(name.text) {}

  /// Returns the placeholder called `name`, which equals the constant of that name below.
  /// @throws Error that lists the names if there is no such placeholder.
  static RunExpression placeholder(std::string_view name);

  /// Parses an expression in C++ notation without `placeholders::`: "2 * num_updates_per_epoch +
  /// 1", "ceil(num_epochs / 3)", "min(100, num_updates / 2)".
  /// @throws Error that shows the position if `text` is not an expression; the message lists the
  ///         placeholders.
  static RunExpression parse(std::string_view text);

  /// Returns the value in a run. A value that is a whole number up to rounding is rounded to it:
  /// `placeholders::num_updates * 0.07` is 7 for 100 updates, although 100 * 0.07 is slightly
  /// larger.
  /// @throws Error if a placeholder does not have a value in this run, for a division by zero, or
  ///         if the result is not finite; the message shows the expression.
  double resolve(const RunConfig& config) const;

  /// Returns the value in a run as a count.
  /// @throws Error under the same conditions as `resolve`; if the value is not a whole number (the
  ///         message recommends `ceil` or `floor`); or if its absolute value is greater than 2^53,
  ///         above which a double cannot represent every whole number.
  int64_t resolve_count(const RunConfig& config) const;

  /// Returns the expression as text: "(num_epochs * 2)".
  std::string to_string() const;

  /// Returns an expression that `resolve` computes.
  /// @{
  friend RunExpression operator+(const RunExpression& left, const RunExpression& right);
  friend RunExpression operator-(const RunExpression& left, const RunExpression& right);
  friend RunExpression operator*(const RunExpression& left, const RunExpression& right);
  friend RunExpression operator/(const RunExpression& left, const RunExpression& right);
  friend RunExpression operator-(const RunExpression& value);
  friend RunExpression ceil(const RunExpression& value);
  friend RunExpression floor(const RunExpression& value);
  friend RunExpression min(const RunExpression& left, const RunExpression& right);
  friend RunExpression max(const RunExpression& left, const RunExpression& right);
  /// @}

 private:
  struct Expression;

  std::string_view placeholder_{};                  // set for a placeholder
  std::shared_ptr<const Expression> expression_{};  // otherwise set; copies share it
};

/// Values that expressions can use before the run that determines them exists.
namespace placeholders {

// `constinit`, so that a program's namespace-scope constants can use them.

/// Number of epochs in the run.
inline constinit const RunExpression num_epochs{detail::PlaceholderName{"num_epochs"}};
/// Number of updates in the entire run; less than num_epochs * num_updates_per_epoch if
/// `max_num_updates` ends the run in mid-epoch.
inline constinit const RunExpression num_updates{detail::PlaceholderName{"num_updates"}};
/// Number of updates in an epoch; the same on every rank.
inline constinit const RunExpression num_updates_per_epoch{
    detail::PlaceholderName{"num_updates_per_epoch"}};
/// Number of training batches per epoch on one process.
inline constinit const RunExpression num_train_batches_per_epoch{
    detail::PlaceholderName{"num_train_batches_per_epoch"}};
/// Number of batches per evaluation on one process; the largest if the processes differ.
/// @note Resolving it throws Error in a run without evaluation data.
inline constinit const RunExpression num_eval_batches_per_epoch{
    detail::PlaceholderName{"num_eval_batches_per_epoch"}};

}  // namespace placeholders
}  // namespace linkboy

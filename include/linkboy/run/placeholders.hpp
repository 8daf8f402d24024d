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
/// One of the names below, and no other.
struct PlaceholderName {
  std::string_view text;
};
}  // namespace detail

/// A number, or an expression over what the run will resolve to:
/// `placeholders::num_updates_per_epoch * 7 + 1`. Placeholders and numbers combine with + - * / on
/// either side, chained as one likes, and with `ceil`, `floor`, `min` and `max`; `resolve` computes
/// the value.
class LINKBOY_API RunExpression {
 public:
  /// A number, which is its own value.
  /// @{
  RunExpression(double value);   // NOLINT(google-explicit-constructor): a number is a value
  RunExpression(int64_t value);  // NOLINT(google-explicit-constructor)
  RunExpression(int value) : RunExpression(static_cast<int64_t>(value)) {}  // NOLINT
  /// @}

  /// A placeholder called `name`. `get` may throw Error if the run has no such value.
  RunExpression(std::string name, std::function<double(const RunConfig&)> get);

  /// For the constants below, which the compiler initialises.
  constexpr explicit RunExpression(detail::PlaceholderName name) noexcept
      : placeholder_(name.text) {}

  /// The placeholder called `name`, as the constants below hold them.
  /// @throws Error that lists the names if there is none.
  static RunExpression placeholder(std::string_view name);

  /// Reads an expression as one would write it in C++, without `placeholders::`:
  /// "2 * num_updates_per_epoch + 1", "ceil(num_epochs / 3)", "min(100, num_updates / 2)".
  /// @throws Error that shows the place if `text` is none; the message lists the placeholders.
  static RunExpression parse(std::string_view text);

  /// Returns the value in a run. One that is a whole number up to rounding is that number:
  /// `placeholders::num_updates * 0.07` is 7 of 100 updates, although 100 * 0.07 is a little more.
  /// @throws Error if a placeholder has no value in this run or something is divided by zero; the
  ///         message shows the expression.
  double resolve(const RunConfig& config) const;

  /// As `resolve`, for counts.
  /// @throws Error also if the value is not a whole number (the message advises `ceil` or `floor`),
  ///         or beyond 2^53, where doubles leave out whole numbers.
  int64_t resolve_count(const RunConfig& config) const;

  /// The expression as text: "(num_epochs * 2)".
  std::string to_string() const;

  /// A value that is computed when the run is known.
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

  std::string_view placeholder_{};                  // of a placeholder
  std::shared_ptr<const Expression> expression_{};  // of all else; copies share it
};

/// What a run has, before it is known.
namespace placeholders {

// `inline`, so that a namespace-scope constant of a program may be made of them.

/// Epochs of the run.
inline constinit const RunExpression num_epochs{detail::PlaceholderName{"num_epochs"}};
/// Optimizer steps in the whole run; fewer than num_epochs * num_updates_per_epoch if
/// `max_num_updates` ends the run in mid-epoch.
inline constinit const RunExpression num_updates{detail::PlaceholderName{"num_updates"}};
/// Optimizer steps in an epoch; the same number on every rank.
inline constinit const RunExpression num_updates_per_epoch{
    detail::PlaceholderName{"num_updates_per_epoch"}};
/// Batches that one process sees in an epoch.
inline constinit const RunExpression num_train_batches_per_epoch{
    detail::PlaceholderName{"num_train_batches_per_epoch"}};
/// Batches that one process sees in an evaluation.
/// @note Resolving it throws Error in a run without evaluation data.
inline constinit const RunExpression num_eval_batches_per_epoch{
    detail::PlaceholderName{"num_eval_batches_per_epoch"}};

}  // namespace placeholders
}  // namespace linkboy

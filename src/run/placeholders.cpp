// Builds expressions of a run's lengths, and computes them once the run begins.

#include "linkboy/run/placeholders.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "linkboy/error.hpp"
#include "linkboy/run/run_config.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {
namespace {

template <class Operation>
RunExpression combine(const RunExpression& left, const char* symbol, const RunExpression& right,
                      Operation operation) {
  return RunExpression(fmt::format("({} {} {})", left.to_string(), symbol, right.to_string()),
                       [left, right, operation](const RunConfig& config) {
                         return operation(left.resolve(config), right.resolve(config));
                       });
}

struct Placeholder {
  std::string_view name;
  int64_t RunConfig::*field;
};

constexpr std::array kPlaceholders{
    Placeholder{"num_epochs", &RunConfig::num_epochs},
    Placeholder{"num_updates", &RunConfig::max_num_updates},
    Placeholder{"num_updates_per_epoch", &RunConfig::num_updates_per_epoch},
    Placeholder{"num_train_batches_per_epoch", &RunConfig::num_train_batches_per_epoch},
    Placeholder{"num_eval_batches_per_epoch", &RunConfig::num_eval_batches_per_epoch}};

const Placeholder& find_placeholder(std::string_view name) {
  std::string all;
  for (const Placeholder& known : kPlaceholders) {
    if (known.name == name) return known;
    all += (all.empty() ? "" : ", ") + std::string(known.name);
  }
  throw Error(c10::str("there is no placeholder \"", name, "\"; the placeholders are ", all, "."));
}

double value_of_placeholder(std::string_view name, const RunConfig& config) {
  const int64_t value = config.*find_placeholder(name).field;
  LINKBOY_CHECK(value > 0, "the placeholder ", name,
                " has no value in this run; it needs training data ",
                "(num_eval_batches_per_epoch needs an eval_dataset).");
  return static_cast<double>(value);
}

}  // namespace

struct RunExpression::Expression {
  std::string text;
  std::function<double(const RunConfig&)> get;
};

RunExpression::RunExpression(double value)
    : RunExpression(fmt::format("{}", value), [value](const RunConfig&) { return value; }) {}

RunExpression::RunExpression(int64_t value)
    : RunExpression(fmt::format("{}", value),
                    [value](const RunConfig&) { return static_cast<double>(value); }) {}

RunExpression::RunExpression(std::string name, std::function<double(const RunConfig&)> get)
    : expression_(std::make_shared<const Expression>(Expression{std::move(name), std::move(get)})) {
}

RunExpression RunExpression::placeholder(std::string_view name) {
  return RunExpression(detail::PlaceholderName{find_placeholder(name).name});
}

std::string RunExpression::to_string() const {
  return expression_ ? expression_->text : std::string(placeholder_);
}

double RunExpression::resolve(const RunConfig& config) const {
  const double value =
      expression_ ? expression_->get(config) : value_of_placeholder(placeholder_, config);
  LINKBOY_CHECK(std::isfinite(value), to_string(), " is ", value,
                " in this run; it must be a finite number.");
  constexpr double kRounding = 1e-9;
  const double whole = std::round(value);
  return std::abs(value - whole) <= kRounding * std::abs(whole) ? whole : value;
}

int64_t RunExpression::resolve_count(const RunConfig& config) const {
  const double value = resolve(config);
  constexpr double kMost = 9007199254740992.0;  // 2^53
  LINKBOY_CHECK(value == std::floor(value), to_string(), " is ", fmt::format("{}", value),
                " in this run; a count must be an integer. Use ceil or floor (without std::).");
  LINKBOY_CHECK(std::abs(value) <= kMost, to_string(), " is ", fmt::format("{}", value),
                " in this run; a count must be at most 2^53. Reduce it, or shorten the run.");
  return static_cast<int64_t>(value);
}

LINKBOY_API RunExpression operator+(const RunExpression& left, const RunExpression& right) {
  return combine(left, "+", right, std::plus<>());
}

LINKBOY_API RunExpression operator-(const RunExpression& left, const RunExpression& right) {
  return combine(left, "-", right, std::minus<>());
}

LINKBOY_API RunExpression operator*(const RunExpression& left, const RunExpression& right) {
  return combine(left, "*", right, std::multiplies<>());
}

LINKBOY_API RunExpression operator/(const RunExpression& left, const RunExpression& right) {
  return combine(left, "/", right, [text = right.to_string()](double dividend, double divisor) {
    LINKBOY_CHECK(divisor != 0.0, "a schedule divides by ", text,
                  text == "0" ? "" : ", which is 0 in this run",
                  "; the divisor must not be 0. Correct it, or use max(..., 1).");
    return dividend / divisor;
  });
}

LINKBOY_API RunExpression operator-(const RunExpression& value) { return RunExpression(0) - value; }

LINKBOY_API RunExpression ceil(const RunExpression& value) {
  return RunExpression("ceil(" + value.to_string() + ")", [value](const RunConfig& config) {
    return std::ceil(value.resolve(config));
  });
}

LINKBOY_API RunExpression floor(const RunExpression& value) {
  return RunExpression("floor(" + value.to_string() + ")", [value](const RunConfig& config) {
    return std::floor(value.resolve(config));
  });
}

LINKBOY_API RunExpression min(const RunExpression& left, const RunExpression& right) {
  return RunExpression(fmt::format("min({}, {})", left.to_string(), right.to_string()),
                       [left, right](const RunConfig& config) {
                         return std::min(left.resolve(config), right.resolve(config));
                       });
}

LINKBOY_API RunExpression max(const RunExpression& left, const RunExpression& right) {
  return RunExpression(fmt::format("max({}, {})", left.to_string(), right.to_string()),
                       [left, right](const RunConfig& config) {
                         return std::max(left.resolve(config), right.resolve(config));
                       });
}

}  // namespace linkboy

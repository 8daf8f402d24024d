// Parses placeholder expressions by recursive descent, with one function per rule.

#include <charconv>

#include "linkboy/error.hpp"
#include "linkboy/run/placeholders.hpp"

namespace linkboy {
namespace {

constexpr int kMaxDepth = 100;
constexpr int kMaxOperators = 1000;  // `resolve` recurses once per operator

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  RunExpression parse() {
    RunExpression value = sum();
    if (skip_blanks() != text_.size()) fail("the end");
    return value;
  }

 private:
  // sum := product (('+' | '-') product)*
  RunExpression sum() {
    RunExpression value = product();
    while (true) {
      if (take_operator('+')) {
        value = value + product();
      } else if (take_operator('-')) {
        value = value - product();
      } else {
        return value;
      }
    }
  }

  // product := factor (('*' | '/') factor)*
  RunExpression product() {
    RunExpression value = factor();
    while (true) {
      if (take_operator('*')) {
        value = value * factor();
      } else if (take_operator('/')) {
        value = value / factor();
      } else {
        return value;
      }
    }
  }

  // factor := '-' factor | '(' sum ')' | number | placeholder | ('ceil' | 'floor') '(' sum ')'
  //         | ('min' | 'max') '(' sum ',' sum ')'
  RunExpression factor() {
    if (++depth_ > kMaxDepth) fail("less nesting");
    RunExpression value = take('-') ? -factor() : take('(') ? rest_of_parentheses() : word();
    --depth_;
    return value;
  }

  RunExpression rest_of_parentheses() {
    RunExpression value = sum();
    if (!take(')')) fail("')'");
    return value;
  }

  RunExpression word() {
    const std::size_t begin = skip_blanks();
    double number = 0.0;
    const char* first = text_.data() + begin;
    const auto [end, error] = std::from_chars(first, text_.data() + text_.size(), number);
    // from_chars also accepts "inf" and "nan".
    const bool is_number = begin < text_.size() && (is_digit(*first) || *first == '.');
    if (is_number && error == std::errc()) {
      position_ = static_cast<std::size_t>(end - text_.data());
      return number;
    }
    while (position_ < text_.size() && (is_letter(text_[position_]) || is_digit(text_[position_])))
      ++position_;
    const std::string_view name = text_.substr(begin, position_ - begin);
    if ((name == "ceil" || name == "floor") && take('(')) {
      const RunExpression inside = rest_of_parentheses();
      return name == "ceil" ? ceil(inside) : floor(inside);
    }
    if ((name == "min" || name == "max") && take('(')) {
      const RunExpression left = sum();
      if (!take(',')) fail("','");
      const RunExpression right = rest_of_parentheses();
      return name == "min" ? min(left, right) : max(left, right);
    }
    if (!name.empty()) return RunExpression::placeholder(name);
    fail("a number, a placeholder, or a call of ceil, floor, min or max");
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  }

  std::size_t skip_blanks() {
    while (position_ < text_.size() && text_[position_] == ' ') ++position_;
    return position_;
  }

  bool take(char symbol) {
    if (skip_blanks() == text_.size() || text_[position_] != symbol) return false;
    ++position_;
    return true;
  }

  bool take_operator(char symbol) {
    if (!take(symbol)) return false;
    if (++num_operators_ > kMaxOperators) fail("fewer operators");
    return true;
  }

  [[noreturn]] void fail(const char* expected) const {
    throw Error(c10::str("\"", text_, "\" is not a number of updates: at \"",
                         text_.substr(position_), "\", expected ", expected, "."));
  }

  std::string_view text_;
  std::size_t position_ = 0;
  int depth_ = 0;
  int num_operators_ = 0;
};

}  // namespace

RunExpression RunExpression::parse(std::string_view text) { return Parser(text).parse(); }

}  // namespace linkboy

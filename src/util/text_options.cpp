#include "linkboy/util/text_options.hpp"

#include "util/parse_number.hpp"

namespace linkboy {
namespace {

template <class Number>
void read_number(const std::string& text, Number& value, const char* what) {
  const auto number = parse_number<Number>(text);
  LINKBOY_CHECK_OPTION(number, "it must be a ", what);
  value = *number;
}

}  // namespace

void read_text(const std::string& text, int64_t& value) {
  read_number(text, value, "whole number");
}

void read_text(const std::string& text, double& value) { read_number(text, value, "number"); }

void read_text(const std::string& text, bool& value) {
  read_text_choice<bool>(text, value, {{"true", true}, {"false", false}});
}

void read_text(const std::string& text, std::string& value) { value = text; }

void read_text(const std::string& text, std::filesystem::path& value) { value = text; }

std::vector<std::string> split_at(char separator, const std::string& text) {
  const bool has_pairs =
      std::count(text.begin(), text.end(), '(') == std::count(text.begin(), text.end(), ')');
  std::vector<std::string> items(1);
  int depth = 0;
  for (const char c : text) {
    if (has_pairs) depth += (c == '(' ? 1 : 0) - (c == ')' ? 1 : 0);
    if (c == separator && depth <= 0) {
      items.emplace_back();
    } else {
      items.back() += c;
    }
  }
  return items;
}

std::string join_with_commas(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

}  // namespace linkboy

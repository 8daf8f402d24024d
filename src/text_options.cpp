#include "linkboy/text_options.hpp"

#include <charconv>

namespace linkboy {
namespace {

template <class Number>
void read_number(const std::string& text, Number& value, const char* what) {
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  LINKBOY_CHECK(error == std::errc() && rest == end, "it must be a ", what);
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

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> items(1);
  for (const char c : text) {
    if (c == ',') {
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

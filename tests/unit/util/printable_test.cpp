#include "linkboy/util/printable.hpp"

#include <gtest/gtest.h>

namespace linkboy::printable_test {
namespace {

TEST(PrintableTest, EscapesControlCharacters) {
  EXPECT_EQ(printable("a\x1b[31m\n\r\t\\b"), "a\\x1b[31m\\n\\r\\t\\\\b");
  EXPECT_EQ(printable("\x7f\xc2\x9b\xe2\x80\xae"), "\\x7f\\u009b\\u202e");
  EXPECT_EQ(printable(std::string_view("\0", 1)), "\\x00");
}

TEST(PrintableTest, KeepsTextOfEveryLanguageAndEscapesInvalidUtf8) {
  EXPECT_EQ(printable("caf\xc3\xa9 \xe6\xa8\xa1 \xf0\x9f\x98\x80"),
            "caf\xc3\xa9 \xe6\xa8\xa1 \xf0\x9f\x98\x80");
  EXPECT_EQ(printable("\xc3"), "\\xc3");
  EXPECT_EQ(printable("\xc0\xaf\xed\xa0\x80\xff"), "\\xc0\\xaf\\xed\\xa0\\x80\\xff");
}

TEST(PrintableTest, QuotesEscapeQuotationMarks) {
  EXPECT_EQ(quoted("a\"b"), "\"a\\\"b\"");
  EXPECT_EQ(printable("a\"b"), "a\"b");
}

TEST(PrintableTest, LongTextIsTruncatedBetweenCharacters) {
  EXPECT_EQ(printable("abcdef", 3), "abc...");
  EXPECT_EQ(printable("abc", 3), "abc");
  EXPECT_EQ(printable("ab\xc3\xa9\xc3\xa9", 3), "ab\xc3\xa9...");
  EXPECT_EQ(quote_name(std::string(1'000'000, 'n')), '"' + std::string(200, 'n') + "...\"");
}

TEST(PrintableTest, AMessageKeepsItsLinesTabsAndBackslashes) {
  EXPECT_EQ(printable_message("a\\x1b\n\tb\x1b]0;c\x07"), "a\\x1b\n\tb\\x1b]0;c\\x07");
}

}  // namespace
}  // namespace linkboy::printable_test

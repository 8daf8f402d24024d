#pragma once

#include <gtest/gtest.h>

#include <string>

#include "linkboy/error.hpp"

/// Expects that `statement` throws this class with a message that contains `substring`.
#define EXPECT_ERROR_AS(Class, statement, substring)                                      \
  do {                                                                                    \
    try {                                                                                 \
      static_cast<void>(statement);                                                       \
      ADD_FAILURE() << #statement " threw nothing; expected " #Class ": " << (substring); \
    } catch (const Class& error) {                                                        \
      EXPECT_NE(std::string(error.what()).find(substring), std::string::npos)             \
          << "the message is: " << error.what() << "\nit must contain: " << (substring);  \
    }                                                                                     \
  } while (false)

#define EXPECT_ERROR(statement, substring) EXPECT_ERROR_AS(::linkboy::Error, statement, substring)
#define EXPECT_OPTION_ERROR(statement, substring) \
  EXPECT_ERROR_AS(::linkboy::OptionError, statement, substring)

#pragma once

#include <gtest/gtest.h>

#include <string>

#include "linkboy/error.hpp"

/// Expects that `statement` throws linkboy::Error with a message that contains `substring`.
#define EXPECT_ERROR(statement, substring)                                                    \
  do {                                                                                        \
    try {                                                                                     \
      statement;                                                                              \
      ADD_FAILURE() << #statement " threw nothing; expected linkboy::Error: " << (substring); \
    } catch (const ::linkboy::Error& error) {                                                 \
      EXPECT_NE(std::string(error.what()).find(substring), std::string::npos)                 \
          << "the message is: " << error.what() << "\nit must contain: " << (substring);      \
    }                                                                                         \
  } while (false)

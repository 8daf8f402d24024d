// Includes all of util/: text that is read and printed.

#pragma once

#include "linkboy/util/make.hpp"
#include "linkboy/util/printable.hpp"
#include "linkboy/util/required.hpp"
#include "linkboy/util/text_options.hpp"

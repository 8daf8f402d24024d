// Includes all of util/: parsing and printing text.

#pragma once

#include "linkboy/util/make.hpp"
#include "linkboy/util/plain_name.hpp"
#include "linkboy/util/printable.hpp"
#include "linkboy/util/required.hpp"
#include "linkboy/util/text_options.hpp"

// All of cli/: command lines, configuration files, and whole programs.

#pragma once

#include "linkboy/cli/command_line.hpp"
#include "linkboy/cli/logger.hpp"
#include "linkboy/cli/run.hpp"

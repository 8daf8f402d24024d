// Includes all of cli/: command lines, config files and complete programs.

#pragma once

#include "linkboy/cli/command_line.hpp"
#include "linkboy/cli/engine_settings.hpp"
#include "linkboy/cli/logger.hpp"
#include "linkboy/cli/run.hpp"

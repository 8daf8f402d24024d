// All of cli/: command lines and configuration files.

#pragma once

#include "linkboy/cli/command_line.hpp"

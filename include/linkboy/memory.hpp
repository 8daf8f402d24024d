// All of memory/: how much memory is in use, and how to need less.

#pragma once

#include "linkboy/memory/activation_checkpoint.hpp"
#include "linkboy/memory/memory_use.hpp"

// Includes all of memory/: measuring and reducing memory use.

#pragma once

#include "linkboy/memory/activation_checkpoint.hpp"
#include "linkboy/memory/memory_use.hpp"

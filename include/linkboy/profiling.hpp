// Includes all of profiling/: names in traces, and the cost of layers.

#pragma once

#include "linkboy/profiling/flop_counter.hpp"
#include "linkboy/profiling/profiler_range.hpp"

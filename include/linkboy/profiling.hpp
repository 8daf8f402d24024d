// All of profiling/: names in traces, and what layers cost.

#pragma once

#include "linkboy/profiling/flop_counter.hpp"
#include "linkboy/profiling/profiler_range.hpp"

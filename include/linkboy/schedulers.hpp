// Includes all of schedulers/: linkboy's schedules.

#pragma once

#include "linkboy/schedulers/composite.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "linkboy/schedulers/cycles.hpp"
#include "linkboy/schedulers/functions.hpp"
#include "linkboy/schedulers/option_reader.hpp"
#include "linkboy/schedulers/reactive.hpp"
#include "linkboy/schedulers/scheduler_factory.hpp"

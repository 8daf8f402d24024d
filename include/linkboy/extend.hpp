// Includes all of extend/: building blocks for custom callbacks, metrics and schedules.

#pragma once

#include "linkboy/extend/async_scalar.hpp"
#include "linkboy/extend/limited_loader.hpp"
#include "linkboy/extend/loss_average.hpp"
#include "linkboy/extend/metric_cursor.hpp"
#include "linkboy/extend/peeking_loader.hpp"
#include "linkboy/extend/status_line.hpp"

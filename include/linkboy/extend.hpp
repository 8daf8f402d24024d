// All of extend/: parts for callbacks, metrics and schedulers of your own.

#pragma once

#include "linkboy/extend/deferred_value.hpp"
#include "linkboy/extend/limited_loader.hpp"
#include "linkboy/extend/loss_tracker.hpp"
#include "linkboy/extend/metric_reader.hpp"
#include "linkboy/extend/status_line.hpp"

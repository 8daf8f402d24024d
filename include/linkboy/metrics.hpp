// Includes all of metrics/: linkboy's metrics.

#pragma once

#include "linkboy/metrics/classification.hpp"
#include "linkboy/metrics/mean.hpp"
#include "linkboy/metrics/metric_factory.hpp"
#include "linkboy/metrics/perplexity.hpp"
#include "linkboy/metrics/ranking.hpp"
#include "linkboy/metrics/regression.hpp"

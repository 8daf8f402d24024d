// Includes all of the core library. The headers of the other libraries are <linkboy/metrics.hpp>,
// <linkboy/tracking.hpp>, <linkboy/cli.hpp> and <linkboy/vision.hpp>. To compile faster, include
// only the headers that you use.

#pragma once

/// @namespace linkboy
/// A thin training library over LibTorch.

#include "linkboy/accelerator.hpp"
#include "linkboy/callback.hpp"
#include "linkboy/callbacks.hpp"
#include "linkboy/checkpoint.hpp"
#include "linkboy/data.hpp"
#include "linkboy/distributed.hpp"
#include "linkboy/engine.hpp"
#include "linkboy/error.hpp"
#include "linkboy/export.hpp"
#include "linkboy/extend.hpp"
#include "linkboy/fine_tuning.hpp"
#include "linkboy/loss_function.hpp"
#include "linkboy/memory.hpp"
#include "linkboy/metric.hpp"
#include "linkboy/model.hpp"
#include "linkboy/precision.hpp"
#include "linkboy/profiling.hpp"
#include "linkboy/run.hpp"
#include "linkboy/scheduler.hpp"
#include "linkboy/schedulers.hpp"
#include "linkboy/trainer.hpp"
#include "linkboy/util.hpp"
#include "linkboy/version.hpp"

// Includes all of run/: options, configuration and results of a run.

#pragma once

#include "linkboy/run/accumulation_window.hpp"
#include "linkboy/run/evaluation_set.hpp"
#include "linkboy/run/logger.hpp"
#include "linkboy/run/optimizers.hpp"
#include "linkboy/run/options.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/run/precision.hpp"
#include "linkboy/run/run_config.hpp"
#include "linkboy/run/run_history.hpp"
#include "linkboy/run/step_executor.hpp"
#include "linkboy/run/step_output.hpp"
#include "linkboy/run/stop_training.hpp"
#include "linkboy/run/train_result.hpp"

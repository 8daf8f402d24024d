#pragma once

/// All of linkboy's core. Callbacks and schedulers have headers of their own:
/// <linkboy/callbacks/...>, <linkboy/schedulers/...>.

#include "linkboy/accelerator.hpp"
#include "linkboy/batch.hpp"
#include "linkboy/callback.hpp"
#include "linkboy/checkpoint.hpp"
#include "linkboy/data_loader.hpp"
#include "linkboy/dataset.hpp"
#include "linkboy/error.hpp"
#include "linkboy/loss_function.hpp"
#include "linkboy/loss_tracker.hpp"
#include "linkboy/metric_reader.hpp"
#include "linkboy/model.hpp"
#include "linkboy/name_options.hpp"
#include "linkboy/options.hpp"
#include "linkboy/placeholders.hpp"
#include "linkboy/run_config.hpp"
#include "linkboy/run_history.hpp"
#include "linkboy/safetensors.hpp"
#include "linkboy/sampler.hpp"
#include "linkboy/scheduler.hpp"
#include "linkboy/state_dict.hpp"
#include "linkboy/step_output.hpp"
#include "linkboy/stop_training.hpp"
#include "linkboy/trainer.hpp"
#include "linkboy/training_state.hpp"

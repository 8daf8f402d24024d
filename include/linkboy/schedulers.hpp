// Includes all of schedulers/: linkboy's schedules.

#pragma once

#include "linkboy/schedulers/chained_scheduler.hpp"
#include "linkboy/schedulers/composite_scheduler.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "linkboy/schedulers/cyclic_scheduler.hpp"
#include "linkboy/schedulers/lambda_scheduler.hpp"
#include "linkboy/schedulers/one_cycle_scheduler.hpp"
#include "linkboy/schedulers/option_reader.hpp"
#include "linkboy/schedulers/per_group.hpp"
#include "linkboy/schedulers/reduce_on_plateau_scheduler.hpp"
#include "linkboy/schedulers/scheduler_factory.hpp"
#include "linkboy/schedulers/sequential_scheduler.hpp"
#include "linkboy/schedulers/timm_scheduler.hpp"
#include "linkboy/schedulers/timm_steps_scheduler.hpp"
#include "linkboy/schedulers/torch_scheduler.hpp"
#include "linkboy/schedulers/warmup_scheduler.hpp"
#include "linkboy/schedulers/wsd_scheduler.hpp"

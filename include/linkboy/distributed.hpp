// Includes all of distributed/: training with several processes.

#pragma once

#include "linkboy/distributed/device_mesh.hpp"
#include "linkboy/distributed/distributed_options.hpp"
#include "linkboy/distributed/launch.hpp"
#include "linkboy/distributed/process_group.hpp"
#include "linkboy/distributed/skip_init.hpp"
#include "linkboy/distributed/sync_batch_norm.hpp"
#include "linkboy/distributed/whole_model.hpp"

// Includes all of fine_tuning/: freezing layers, parameter groups, and searches for a learning rate
// or a batch size.

#pragma once

#include "linkboy/fine_tuning/batch_size_finder.hpp"
#include "linkboy/fine_tuning/lr_finder.hpp"
#include "linkboy/fine_tuning/model_freezer.hpp"
#include "linkboy/fine_tuning/parameter_groups.hpp"

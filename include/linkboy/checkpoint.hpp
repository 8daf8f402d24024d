// Includes all of checkpoint/: files with models and training states, including Python's.

#pragma once

#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/checkpoint/checkpoint_parts.hpp"
#include "linkboy/checkpoint/safetensors.hpp"
#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/checkpoint/tensor_renaming.hpp"
#include "linkboy/checkpoint/training_state_folders.hpp"

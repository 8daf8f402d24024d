// Includes all of precision/: training in half precision.

#pragma once

#include "linkboy/precision/autocast.hpp"
#include "linkboy/precision/grad_scaler.hpp"

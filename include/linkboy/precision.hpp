// All of precision/: half precision.

#pragma once

#include "linkboy/precision/grad_scaler.hpp"

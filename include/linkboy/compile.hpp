// Includes all of compile/: compiled steps. This component is experimental.

#pragma once

#include "linkboy/compile/compiled_steps.hpp"

// Includes all of compile/: compiled steps, their packages, and exported models. This component is
// experimental.

#pragma once

#include "linkboy/compile/compiled_steps.hpp"
#include "linkboy/compile/export_model.hpp"
#include "linkboy/compile/packages.hpp"

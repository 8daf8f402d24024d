#pragma once

#include <functional>
#include <memory>
#include <string>

#include "compile/package_cache.hpp"
#include "compile/program.hpp"
#include "linkboy/compile/compiled_steps.hpp"

namespace linkboy {

/// Returns a program's package, as `PackageCache::load` does. Several threads call it.
using LoadPackageFn =
    std::function<std::shared_ptr<CompiledPackage>(const Program& program, TellFn tell)>;

/// As `compiled_steps`, with packages from `load`.
CreateStepExecutorFn compiled_steps_from(LoadPackageFn load, CompileOptions options);

}  // namespace linkboy

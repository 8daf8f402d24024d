// Moves the registered modules once more, because earlier callbacks may have registered others.

#include "linkboy/callbacks/move_modules_to_device.hpp"

#include "linkboy/trainer.hpp"

namespace linkboy {

void MoveModulesToDevice::move(Trainer& trainer) {
  for (const auto& module : trainer.registered_modules())
    module->to(trainer.accelerator().device());
}

}  // namespace linkboy

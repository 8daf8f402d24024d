#include "linkboy/callbacks/bring_here.hpp"

#include "linkboy/accelerator/main_process.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {

bool bring_here(Trainer& trainer, const std::string& name, std::filesystem::path& file,
                const StateDict& marks, const std::filesystem::path& here) {
  const std::string failure = failure_on_main_process(trainer.accelerator(), [&] {
    if (!trainer.accelerator().is_main_process()) return;
    const StateDict found = read_checkpoint(file, {.with_data = false});
    for (const auto& [mark, value] : marks.entries()) {
      LINKBOY_CHECK(found.contains(mark) && found.at(mark) == value, file,
                    " was replaced after the training state was saved.");
    }
    std::error_code error;
    if (here == file || std::filesystem::equivalent(here, file, error)) return;
    write_checkpoint(here, read_checkpoint(file, {.mmap = true}));
  });
  if (failure.empty()) {
    file = here;
    return true;
  }
  trainer.log(LogLevel::warning, c10::str(name, " is ignored: ", failure));
  return false;
}

}  // namespace linkboy

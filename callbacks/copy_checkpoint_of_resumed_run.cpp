// Finds a checkpoint to which a training state refers, verifies that it is the one that was meant,
// and copies it to where the resumed run keeps it.

#include "linkboy/callbacks/copy_checkpoint_of_resumed_run.hpp"

#include <vector>

#include "linkboy/accelerator/main_process.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {
namespace {

namespace fs = std::filesystem;

/// Returns the paths at which the checkpoint can be.
std::vector<fs::path> candidates(const fs::path& resumed_from, const fs::path& name,
                                 const fs::path& here) {
  std::vector<fs::path> paths{here.parent_path() / name};
  if (resumed_from.empty()) return paths;
  fs::path folder = fs::absolute(resumed_from / "").lexically_normal().parent_path();
  for (int i = 0; i < 3; ++i, folder = folder.parent_path()) paths.push_back(folder / name);
  return paths;
}

/// @throws Error if the file is missing, damaged, a symbolic link, or does not contain the marks.
void check_marks(const fs::path& file, const StateDict& marks) {
  std::error_code ignored;
  LINKBOY_CHECK(!fs::is_symlink(file, ignored), file,
                " is a symbolic link, which is not followed.");
  const StateDict found = read_checkpoint(file, {.with_data = false});
  for (const auto& [mark, value] : marks.entries()) {
    LINKBOY_CHECK(found.contains(mark) && found.at(mark) == value, file,
                  " was replaced after the training state was saved.");
  }
}

}  // namespace

bool copy_checkpoint_of_resumed_run(Trainer& trainer, const std::string& name,
                                    std::filesystem::path& file, const StateDict& marks,
                                    const std::filesystem::path& here) {
  const std::string failure = failure_on_main_process(trainer.accelerator(), [&] {
    if (!trainer.accelerator().is_main_process()) return;
    std::string reason;
    for (const fs::path& path : candidates(trainer.run().resumed_from(), file.filename(), here)) {
      std::error_code error;
      if (!fs::exists(fs::symlink_status(path, error))) continue;
      try {
        check_marks(path, marks);
      } catch (const Error& cause) {
        if (reason.empty()) reason = cause.what();
        continue;
      }
      if (here != path && !fs::equivalent(here, path, error)) {
        write_checkpoint(here, read_checkpoint(path, {.mmap = true}));
      }
      return;
    }
    LINKBOY_CHECK(!reason.empty(), file.filename(), " is neither in the folder of ", here,
                  " nor next to the training state. Copy it to one of these places.");
    throw Error(reason);
  });
  if (failure.empty()) {
    file = here;
    return true;
  }
  trainer.log(LogLevel::warning, c10::str(name, " is ignored: ", failure));
  return false;
}

}  // namespace linkboy

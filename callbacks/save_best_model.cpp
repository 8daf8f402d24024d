// Keeps the checkpoints of the best epochs, and loads the best one at the end.

#include "linkboy/callbacks/save_best_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "linkboy/accelerator/main_process.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {
namespace {

std::string mark_of(int64_t epoch) { return fmt::format("-epoch{}", epoch); }

}  // namespace

SaveBestModel::SaveBestModel(SaveBestModelOptions options)
    : options_(std::move(options)),
      metric_(options_.monitor, options_.greater_is_better),
      kept_({.max_files = options_.save_top_k,
             .metric = options_.monitor,
             .greater_is_better = options_.greater_is_better}) {
  LINKBOY_CHECK_OPTION(options_.save_top_k >= 1, "save_top_k is ", options_.save_top_k,
                       "; it must be at least 1.");
}

/// Returns the path of a file; if several are kept, with the mark in its name.
std::filesystem::path SaveBestModel::path_with(const std::string& mark) const {
  std::filesystem::path path = options_.path;
  if (options_.save_top_k == 1) return path;
  return path.replace_filename(path.stem().string() + mark + path.extension().string());
}

/// Returns the path for a new checkpoint. If `reset_on_train` is false, the same epoch of an
/// earlier run may be one of the best.
std::filesystem::path SaveBestModel::free_path(int64_t epoch) const {
  std::filesystem::path path = path_with(mark_of(epoch));
  if (options_.save_top_k == 1) return path;
  for (int i = 2; std::ranges::count(saved(), path, &KeptCheckpoints::File::path) > 0; ++i) {
    path = path_with(fmt::format("{}-{}", mark_of(epoch), i));
  }
  return path;
}

/// Keeps the "-2" of "best-epoch3-2.pt", the second file of epoch 3.
std::filesystem::path SaveBestModel::path_in_this_run(const KeptCheckpoints::File& file) const {
  const std::string name = file.path.stem().string();
  const std::string mark = mark_of(file.epoch);
  const std::size_t place = name.rfind(mark);
  return path_with(place == std::string::npos ? mark : name.substr(place));
}

void SaveBestModel::on_training_run_start(Trainer& trainer) {
  run_on_main_process(trainer.accelerator(), [&] { check_writable(options_.path); });
  if (metric_.start_run(trainer, is_resumed(), options_.reset_on_train)) kept_.clear();
  kept_.take_over(trainer, "the best checkpoint",
                  [this](const auto& file) { return path_in_this_run(file); });
  lost_.reset();
  first_epoch_ = trainer.run_history().current_epoch();
}

void SaveBestModel::on_training_run_epoch_end(Trainer& trainer) {
  const auto value = metric_.new_value(trainer);
  if (!value || !kept_.would_keep(*value)) return;
  const int64_t epoch = trainer.run_history().current_epoch();
  // A run that was interrupted at the end of an epoch repeats that end.
  const auto is_this = [&](const auto& file) { return file.epoch == epoch && file.value == value; };
  if (is_resumed() && epoch == first_epoch_ && std::ranges::any_of(saved(), is_this)) return;
  const KeptCheckpoints::File file{epoch, free_path(epoch), value};
  const bool is_saved = kept_.save(trainer, "the best model", file, [&](const StateDict& entries) {
    trainer.save_checkpoint(
        file.path, entries,
        {.optimizer = options_.save_optimizer, .scheduler = options_.save_scheduler});
  });
  if (!is_saved && (!lost_ || metric_.is_better(*value, *lost_))) lost_ = value;
}

void SaveBestModel::on_training_run_end(Trainer& trainer) {
  if (!options_.load_saved_checkpoint) return;
  const auto report_lost = [&](const char* what_happens) {
    if (!lost_ || (!saved().empty() && !metric_.is_better(*lost_, *saved().front().value))) return;
    trainer.log(LogLevel::error,
                fmt::format("the model with the best {} ({:.6g}) could not be saved; {}.",
                            metric_.name(), *lost_, what_happens));
  };
  if (saved().empty()) return report_lost("the model keeps the weights of the last epoch");
  const KeptCheckpoints::File& best = saved().front();
  const std::string failure = failure_on_main_process(trainer.accelerator(), [&] {
    if (!trainer.accelerator().is_main_process()) return;
    read_checkpoint(best.path, {.with_data = false});
  });
  if (!failure.empty()) {
    trainer.log(LogLevel::error,
                fmt::format("the best checkpoint {} cannot be loaded: {} The model keeps the "
                            "weights of the last epoch.",
                            best.path.string(), failure));
    return;
  }
  report_lost("the best of the saved models is loaded");
  trainer.print(fmt::format("Loading checkpoint with {}: {:.6g} from epoch {}", metric_.name(),
                            *best.value, best.epoch));
  trainer.load_checkpoint(
      best.path, {.optimizer = options_.save_optimizer, .scheduler = options_.save_scheduler});
}

StateDict SaveBestModel::state_dict() const { return metric_.state_dict(); }

StateDict SaveBestModel::file_state_dict() const { return kept_.state_dict(); }

void SaveBestModel::load_state_dict(const StateDict& state) {
  KeptCheckpoints kept = kept_;
  kept.load_state_dict(state, options_.path.parent_path());
  const auto has_value = [](const auto& file) { return file.value.has_value(); };
  LINKBOY_CHECK(std::ranges::all_of(kept.files(), has_value),
                "SaveBestModel's state names a checkpoint without the value of its metric; it was "
                "not written by SaveBestModel.");
  metric_.load_state_dict(state);
  kept_ = std::move(kept);
}

}  // namespace linkboy

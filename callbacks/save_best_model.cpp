// Keeps the checkpoints of the best epochs, and loads the best one at the end. A worse checkpoint
// is removed only after the new one is on disk.

#include "linkboy/callbacks/save_best_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "linkboy/accelerator/main_process.hpp"
#include "linkboy/callbacks/copy_checkpoint_of_resumed_run.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"
#include "linkboy/util/plain_name.hpp"

namespace linkboy {

namespace {

std::string mark_of(int64_t epoch) { return fmt::format("-epoch{}", epoch); }

/// Returns "-2" for "best-epoch3-2.pt", the second file of epoch 3.
std::string ending_of(const std::filesystem::path& path, int64_t epoch) {
  const std::string name = path.stem().string();
  const std::string mark = mark_of(epoch);
  const std::size_t place = name.rfind(mark);
  return place == std::string::npos ? "" : name.substr(place + mark.size());
}

}  // namespace

SaveBestModel::SaveBestModel(SaveBestModelOptions options)
    : options_(std::move(options)), metric_(options_.monitor, options_.greater_is_better) {
  LINKBOY_CHECK_OPTION(options_.save_top_k >= 1, "save_top_k is ", options_.save_top_k,
                       "; it must be at least 1.");
}

std::filesystem::path SaveBestModel::path_of(int64_t epoch, const std::string& ending) const {
  if (options_.save_top_k == 1) return options_.path;
  const auto& path = options_.path;
  const std::string name = path.stem().string() + mark_of(epoch) + ending;
  return path.parent_path() / (name + path.extension().string());
}

/// Returns the path for a new checkpoint. If `reset_on_train` is false, the same epoch of an
/// earlier run may be one of the best.
std::filesystem::path SaveBestModel::free_path(int64_t epoch) const {
  std::filesystem::path path = path_of(epoch);
  const auto is_taken = [&path](const Saved& saved) { return saved.path == path; };
  for (int i = 2; options_.save_top_k > 1 && std::any_of(saved_.begin(), saved_.end(), is_taken);
       ++i) {
    path = path_of(epoch, fmt::format("-{}", i));
  }
  return path;
}

void SaveBestModel::on_training_run_start(Trainer& trainer) {
  run_on_main_process(trainer.accelerator(), [&] { check_writable(options_.path); });
  if (metric_.start_run(trainer, is_resumed(), options_.reset_on_train)) saved_.clear();
  bring_saved_here(trainer);
  lost_.reset();
  first_epoch_ = trainer.run_history().current_epoch();
}

/// Stops tracking checkpoints that cannot be used, so that a later epoch can become one of the
/// best. If the saved run kept more, tracks only the best of them.
void SaveBestModel::bring_saved_here(Trainer& trainer) {
  if (std::ssize(saved_) > options_.save_top_k) {
    saved_.erase(saved_.begin() + options_.save_top_k, saved_.end());
  }
  std::vector<Saved> kept;
  for (Saved& saved : saved_) {
    const std::string name = fmt::format("the best checkpoint of epoch {}", saved.epoch);
    const StateDict marks{{metric_.name(), saved.value}, {"epoch", saved.epoch}};
    const auto here = path_of(saved.epoch, ending_of(saved.path, saved.epoch));
    if (copy_checkpoint_of_resumed_run(trainer, name, saved.path, marks, here))
      kept.push_back(saved);
  }
  saved_ = std::move(kept);
  if (saved_.empty()) {
    metric_.forget_best();
  } else {
    metric_.set_best(saved_.front().value);
  }
}

void SaveBestModel::on_training_run_epoch_end(Trainer& trainer) {
  const auto value = metric_.new_value(trainer);
  if (!value || !std::isfinite(*value)) return;
  const bool is_full = static_cast<int64_t>(saved_.size()) >= options_.save_top_k;
  if (is_full && !metric_.is_better(*value, saved_.back().value)) return;
  const int64_t epoch = trainer.run_history().current_epoch();
  // A run that was interrupted at the end of an epoch repeats that end.
  const bool may_repeat = is_resumed() && epoch == first_epoch_;
  const auto is_this = [&](const Saved& known) {
    return known.epoch == epoch && known.value == *value;
  };
  if (may_repeat && std::any_of(saved_.begin(), saved_.end(), is_this)) return;
  const Saved saved{*value, epoch, free_path(epoch)};
  const std::string failure = failure_on_main_process(trainer.accelerator(), [&] {
    trainer.save_checkpoint(
        saved.path, {{metric_.name(), *value}, {"epoch", epoch}},
        {.optimizer = options_.save_optimizer, .scheduler = options_.save_scheduler});
  });
  if (!failure.empty()) {
    if (!lost_ || metric_.is_better(*value, *lost_)) lost_ = value;
    trainer.log(LogLevel::error,
                c10::str("the best model was not saved: ", failure,
                         " The run continues; the files of earlier epochs are kept."));
    return;
  }
  keep(saved, trainer.accelerator().is_main_process());
}

/// Called after the new file is written, so that an older file is removed only then.
void SaveBestModel::keep(Saved saved, bool is_main_process) {
  // A run that starts at epoch 1 again overwrites files of the previous run.
  std::erase_if(saved_, [&](const Saved& present) { return present.path == saved.path; });
  const auto worse = std::upper_bound(saved_.begin(), saved_.end(), saved,
                                      [this](const Saved& added, const Saved& present) {
                                        return metric_.is_better(added.value, present.value);
                                      });
  saved_.insert(worse, std::move(saved));
  if (static_cast<int64_t>(saved_.size()) > options_.save_top_k) {
    std::error_code ignored;  // a leftover file does no harm
    if (is_main_process && options_.save_top_k > 1) {
      std::filesystem::remove(saved_.back().path, ignored);
    }
    saved_.pop_back();
  }
  metric_.set_best(saved_.front().value);
}

void SaveBestModel::on_training_run_end(Trainer& trainer) {
  if (!options_.load_saved_checkpoint) return;
  const auto report_lost = [&](const char* what_happens) {
    if (!lost_ || (!saved_.empty() && !metric_.is_better(*lost_, saved_.front().value))) return;
    trainer.log(LogLevel::error,
                fmt::format("the model with the best {} ({:.6g}) could not be saved; {}.",
                            metric_.name(), *lost_, what_happens));
  };
  if (saved_.empty()) return report_lost("the model keeps the weights of the last epoch");
  const Saved& best = saved_.front();
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
                            best.value, best.epoch));
  trainer.load_checkpoint(
      best.path, {.optimizer = options_.save_optimizer, .scheduler = options_.save_scheduler});
}

StateDict SaveBestModel::state_dict() const { return metric_.state_dict(); }

StateDict SaveBestModel::file_state_dict() const {
  std::vector<double> values;
  c10::List<int64_t> epochs;
  c10::impl::GenericList names(c10::AnyType::get());
  for (const Saved& saved : saved_) {
    values.push_back(saved.value);
    epochs.push_back(saved.epoch);
    names.push_back(saved.path.filename().string());
  }
  StateDict state{{"values", values}, {"epochs", epochs}, {"names", names}};
  if (!saved_.empty()) state.set("best", saved_.front().value);
  return state;
}

void SaveBestModel::load_state_dict(const StateDict& state) {
  const auto values = state.get_doubles("values");
  const auto epochs = state.get_list("epochs");
  const auto names = state.get_list("names");
  LINKBOY_CHECK(epochs.size() == values.size() && names.size() == values.size(),
                "SaveBestModel's state contains ", values.size(), " values, but ", epochs.size(),
                " epochs and ", names.size(), " names; it was not written by SaveBestModel.");
  std::vector<Saved> saved;
  saved.reserve(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const int64_t epoch = epochs[i].toInt();
    const std::string name = names[i].isString() ? names[i].toStringRef() : "";
    std::filesystem::path path = path_of(epoch);
    path.replace_filename(require_plain_name(name, "SaveBestModel's checkpoint"));
    saved.push_back({values[i], epoch, std::move(path)});
  }
  metric_.load_state_dict(state);
  saved_ = std::move(saved);
}

}  // namespace linkboy

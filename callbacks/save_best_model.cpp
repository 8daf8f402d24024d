#include "linkboy/callbacks/save_best_model.hpp"

#include <fmt/format.h>

#include "linkboy/checkpoint.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {

SaveBestModel::SaveBestModel(SaveBestModelOptions options)
    : options_(std::move(options)), metric_(options_.watch_metric, options_.greater_is_better) {}

void SaveBestModel::on_training_run_start(Trainer& trainer) {
  check_writable(options_.save_path);
  metric_.start_run(trainer, options_.reset_on_train);
  if (!metric_.best()) has_saved_ = false;
}

void SaveBestModel::on_training_run_epoch_end(Trainer& trainer) {
  const auto value = metric_.new_value(trainer);
  if (!value || !metric_.is_better(*value)) return;
  const int64_t epoch = trainer.run_history().current_epoch();
  trainer.save_checkpoint(
      options_.save_path, {{metric_.name(), *value}, {"epoch", epoch}},
      {.optimizer = options_.save_optimizer, .scheduler = options_.save_scheduler});
  metric_.set_best(*value);
  best_epoch_ = epoch;
  has_saved_ = true;
}

void SaveBestModel::on_training_run_end(Trainer& trainer) {
  if (!options_.load_saved_checkpoint || !has_saved_) return;
  trainer.print(fmt::format("Loading checkpoint with {}: {:.6g} from epoch {}", metric_.name(),
                            *metric_.best(), best_epoch_));
  trainer.load_checkpoint(options_.save_path, {.optimizer = options_.save_optimizer,
                                               .scheduler = trainer.scheduler() != nullptr});
}

StateDict SaveBestModel::state_dict() const {
  StateDict state = metric_.state_dict();
  state.set("best_epoch", best_epoch_);
  return state;
}

void SaveBestModel::load_state_dict(const StateDict& state) {
  metric_.load_state_dict(state);
  best_epoch_ = state.get_int("best_epoch");
  has_saved_ = metric_.best().has_value() && std::filesystem::exists(options_.save_path);
}

}  // namespace linkboy

// Prints a line when a run starts or ends, and when an epoch starts.

#include "linkboy/callbacks/print_progress.hpp"

#include <fmt/format.h>

#include "linkboy/trainer.hpp"

namespace linkboy {

void PrintProgress::on_training_run_start(Trainer& trainer) {
  trainer.print("Starting training run");
}

void PrintProgress::on_train_epoch_start(Trainer& trainer) {
  trainer.print(fmt::format("Starting epoch {}", trainer.run_history().current_epoch()));
}

void PrintProgress::on_eval_epoch_start(Trainer& trainer) { trainer.print("Starting eval epoch"); }

void PrintProgress::on_training_run_end(Trainer& trainer) {
  trainer.print("Finishing training run");
}

void PrintProgress::on_evaluation_run_start(Trainer& trainer) {
  trainer.print("Starting evaluation run");
}

void PrintProgress::on_evaluation_run_end(Trainer& trainer) {
  trainer.print("Finishing evaluation run");
}

}  // namespace linkboy

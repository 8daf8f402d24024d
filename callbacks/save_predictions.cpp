// Writes the outputs and targets that PredictedRows collects in an evaluation to one file.

#include "linkboy/callbacks/save_predictions.hpp"

#include <ATen/core/Tensor.h>

#include <numeric>
#include <string_view>
#include <utility>

#include "linkboy/accelerator/main_process.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/checkpoint/safetensors.hpp"
#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {
namespace {

constexpr std::string_view kEpoch = "{epoch}";
constexpr std::string_view kSet = "{set}";

std::string replaced(std::string text, std::string_view what, const std::string& by) {
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at)) {
    text.replace(at, what.size(), by);
    at += by.size();
  }
  return text;
}

/// Returns the rows that a batch adds to the tensor `name`.
at::Tensor rows_of(const std::string& name, const Batch& batch, const StepOutput& output) {
  if (name == "targets") return batch.target();
  LINKBOY_CHECK(output.model_outputs.isTensor(), "the model returned a ",
                output.model_outputs.tagKind(),
                "; SavePredictions can write only one tensor. Override "
                "calculate_eval_batch_loss to return the part of interest.");
  const at::Tensor& outputs = output.model_outputs.toTensor();
  if (name == "outputs") return outputs;
  LINKBOY_CHECK(outputs.dim() >= 2, "the model's outputs have ", outputs.dim(),
                " dimension(s); argmax is taken over dimension 1. Set argmax to false.");
  return outputs.argmax(1);
}

}  // namespace

SavePredictions::SavePredictions(SavePredictionsOptions options) : options_(std::move(options)) {
  const auto ending = options_.path->extension();
  LINKBOY_CHECK_OPTION(ending == ".pt" || ending == ".safetensors",
                       "the path of the predictions is ", options_.path,
                       "; it must end in .pt or .safetensors.");
  LINKBOY_CHECK_OPTION(options_.outputs || options_.argmax || options_.targets,
                       "there is nothing to write; set outputs, argmax or targets.");
  LINKBOY_CHECK_OPTION(options_.every_n_epochs >= 0, "every_n_epochs is ", options_.every_n_epochs,
                       "; it must not be negative. Use 0 to write after evaluate only.");
}

std::filesystem::path SavePredictions::path_of(const std::string& set_name, int64_t epoch) const {
  return replaced(replaced(options_.path->string(), kSet, set_name), kEpoch, std::to_string(epoch));
}

void SavePredictions::check_paths(Trainer& trainer) const {
  run_on_main_process(trainer.accelerator(), [&] {
    for (const auto& set : trainer.run().evaluation_sets()) {
      LINKBOY_CHECK(
          set.name.empty() || options_.path->string().find(kSet) != std::string::npos,
          "the run has an evaluation set \"", set.name, "\", but the path of the ", "predictions, ",
          options_.path,
          ", does not contain {set}; all sets would be written to one file. Add {set} to it.");
      check_writable(path_of(set.name, trainer.run_history().current_epoch()));
    }
  });
}

void SavePredictions::on_training_run_start(Trainer& trainer) {
  is_training_ = true;
  if (options_.every_n_epochs > 0) check_paths(trainer);
}

void SavePredictions::on_evaluation_run_start(Trainer& trainer) {
  is_training_ = false;
  check_paths(trainer);
}

void SavePredictions::on_eval_epoch_start(Trainer& trainer) {
  if (trainer.run().is_intermediate_evaluation()) return;
  const int64_t n = options_.every_n_epochs;
  is_collecting_ = !is_training_ || (n > 0 && trainer.run_history().current_epoch() % n == 0);
  num_batches_ = 0;
  columns_.clear();
  const auto add = [&](bool is_written, const char* name) {
    if (is_written)
      columns_.emplace_back(name, "SavePredictions needs one row of the same shape per sample.");
  };
  add(options_.outputs, "outputs");
  add(options_.argmax, "argmax");
  add(options_.targets, "targets");
}

void SavePredictions::on_eval_step_end(Trainer& trainer, const Batch& batch,
                                       const StepOutput& output) {
  if (!is_collecting_ || trainer.run().is_intermediate_evaluation()) return;
  // Batch k of rank r has the number k * P + r, where P is the number of processes.
  const auto& accelerator = trainer.accelerator();
  const int64_t number = num_batches_++ * accelerator.num_processes() + accelerator.process_index();
  std::vector<int64_t> places(static_cast<std::size_t>(batch.size()));
  std::iota(places.begin(), places.end(), number << 32);
  for (PredictedRows& column : columns_) {
    column.add(rows_of(column.name(), batch, output), places);
  }
}

void SavePredictions::on_eval_epoch_end(Trainer& trainer) {
  if (trainer.run().is_intermediate_evaluation() || !std::exchange(is_collecting_, false)) return;
  const auto& accelerator = trainer.accelerator();
  NamedTensors tensors;
  for (PredictedRows& column : columns_) {
    const c10::IValue rows = column.gather(accelerator);
    if (rows.isTensor()) tensors.emplace_back(column.name(), rows.toTensor());
  }
  const std::string failure = failure_on_main_process(accelerator, [&] {
    if (!accelerator.is_main_process()) return;
    const auto path =
        path_of(trainer.run().evaluation_set_name(), trainer.run_history().current_epoch());
    if (path.extension() == ".pt") return write_checkpoint(path, StateDict(tensors));
    write_safetensors(path, tensors);
  });
  // `evaluate` fails without the file; a training run continues.
  LINKBOY_CHECK(failure.empty() || is_training_, failure);
  if (failure.empty()) return;
  trainer.log(LogLevel::error,
              c10::str("the predictions were not saved: ", failure, " The run continues."));
}

void SavePredictions::on_eval_epoch_interrupted(Trainer& trainer) {
  if (trainer.run().is_intermediate_evaluation()) return;
  is_collecting_ = false;
  columns_.clear();
}

}  // namespace linkboy

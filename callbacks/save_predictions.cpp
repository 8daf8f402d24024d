// Collects outputs and targets on the CPU, gathers them from all processes in the order of the
// data, and writes one file.

#include "linkboy/callbacks/save_predictions.hpp"

#include <ATen/ATen.h>

#include <filesystem>
#include <sstream>
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

/// Returns the dtype's number and the sizes of a row, such as "4 3". A process without rows needs
/// them to take part in the collective calls.
std::string describe_rows(const at::Tensor& rows) {
  std::ostringstream text;
  text << static_cast<int>(rows.scalar_type());
  for (const int64_t size : rows.sizes().slice(1)) text << ' ' << size;
  return std::move(text).str();
}

at::Tensor no_rows(const std::string& description) {
  std::istringstream text(description);
  int dtype = 0;
  text >> dtype;
  std::vector<int64_t> sizes{0};
  for (int64_t size = 0; text >> size;) sizes.push_back(size);
  return at::empty(sizes, static_cast<at::ScalarType>(dtype));
}

/// Returns the position of each row among those of all processes. Batch k of rank r has the number
/// k * P + r, where P is the number of processes.
at::Tensor places_of(const std::vector<at::Tensor>& batches, const Accelerator& accelerator) {
  std::vector<at::Tensor> places{at::empty({0}, at::kLong)};
  for (std::size_t k = 0; k < batches.size(); ++k) {
    const int64_t number =
        static_cast<int64_t>(k) * accelerator.num_processes() + accelerator.process_index();
    places.push_back(at::arange(batches[k].size(0), at::kLong) + (number << 32));
  }
  return at::cat(places);
}

/// Returns the rows of all processes in order; undefined if there are none. Collective.
at::Tensor gather_rows(const std::vector<at::Tensor>& batches, const Accelerator& accelerator) {
  const std::string mine = batches.empty() ? "" : describe_rows(batches.front());
  std::string description;
  for (const std::string& one : accelerator.all_gather_bytes(mine)) {
    if (description.empty()) description = one;
    LINKBOY_CHECK(one.empty() || one == description,
                  "the rows of the processes' predictions differ in shape or dtype; they must be "
                  "the same to be written into one tensor.");
  }
  if (description.empty()) return {};
  at::Tensor rows = batches.empty() ? no_rows(description) : at::cat(batches);
  if (accelerator.num_processes() == 1) return rows;
  const at::Tensor places = accelerator.gather_uneven(places_of(batches, accelerator));
  return accelerator.gather_uneven(rows).index_select(0, places.argsort());
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
  columns_.clear();
  if (options_.outputs) columns_.push_back({"outputs"});
  if (options_.argmax) columns_.push_back({"argmax"});
  if (options_.targets) columns_.push_back({"targets"});
}

void SavePredictions::on_eval_step_end(Trainer& trainer, const Batch& batch,
                                       const StepOutput& output) {
  if (!is_collecting_ || trainer.run().is_intermediate_evaluation()) return;
  for (auto& column : columns_) {
    at::Tensor rows;
    if (column.name == "targets") {
      rows = batch.target();
    } else {
      LINKBOY_CHECK(output.model_outputs.isTensor(), "the model returned a ",
                    output.model_outputs.tagKind(),
                    "; SavePredictions can write only one tensor. Override "
                    "calculate_eval_batch_loss to return the part of interest.");
      rows = output.model_outputs.toTensor();
    }
    if (column.name == "argmax") {
      LINKBOY_CHECK(rows.dim() >= 2, "the model's outputs have ", rows.dim(),
                    " dimension(s); argmax is taken over dimension 1. Set argmax to false.");
      rows = rows.argmax(1);
    }
    LINKBOY_CHECK(rows.dim() >= 1 && rows.size(0) == batch.size(), "the ", column.name,
                  " of a batch have the shape ", rows.sizes(), "; there must be ", batch.size(),
                  " rows, one for each sample.");
    auto& batches = column.batches;
    LINKBOY_CHECK(batches.empty() || rows.sizes().slice(1) == batches[0].sizes().slice(1), "the ",
                  column.name, " of a batch have the shape ", rows.sizes(),
                  ", but earlier ones have ", batches[0].sizes(),
                  "; all sizes except the first must be the same.");
    // Copies rows on the CPU, too, because the loader or the model may reuse the memory.
    batches.push_back(rows.detach().to(at::kCPU, rows.scalar_type(), false, /*copy=*/true));
  }
}

void SavePredictions::on_eval_epoch_end(Trainer& trainer) {
  if (trainer.run().is_intermediate_evaluation() || !std::exchange(is_collecting_, false)) return;
  const auto& accelerator = trainer.accelerator();
  NamedTensors tensors;
  for (auto& column : std::exchange(columns_, {})) {
    at::Tensor rows = gather_rows(column.batches, accelerator);
    if (rows.defined()) tensors.emplace_back(column.name, std::move(rows));
  }
  const std::string failure = failure_on_main_process(accelerator, [&] {
    if (!accelerator.is_main_process()) return;
    write(path_of(trainer.run().evaluation_set_name(), trainer.run_history().current_epoch()),
          tensors);
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

void SavePredictions::write(const std::filesystem::path& path, const NamedTensors& tensors) const {
  if (path.extension() == ".safetensors") {
    write_safetensors(path, tensors);
  } else {
    write_checkpoint(path, StateDict(tensors));
  }
}

}  // namespace linkboy

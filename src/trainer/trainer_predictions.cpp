// Trainer's predictions.

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "accelerator/share_between_ranks.hpp"
#include "checkpoint/ivalue_tree.hpp"
#include "data/batch_fetcher.hpp"
#include "distributed/ivalue_bytes.hpp"
#include "linkboy/error.hpp"
#include "linkboy/profiling/profiler_range.hpp"
#include "trainer/batch_in_errors.hpp"
#include "trainer/run_checks.hpp"
#include "trainer/run_scope.hpp"
#include "trainer/run_setup.hpp"

namespace linkboy {
namespace {

/// Copies tensors on the CPU, too, because the loader or the model may reuse their memory.
c10::IValue copied_to_cpu(const c10::IValue& rows) {
  return map_leaves(rows, [](const c10::IValue& leaf, const ValuePath&) -> c10::IValue {
    if (!leaf.isTensor()) return leaf;
    const at::Tensor tensor = leaf.toTensor().detach();
    return tensor.to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  });
}

/// Returns the elements of a tuple or dict, in the order of `form`, which has the same ones.
std::vector<c10::IValue> elements_of(const c10::IValue& rows, const c10::IValue& form) {
  if (rows.isTuple()) return rows.toTupleRef().elements().vec();
  std::vector<c10::IValue> values;
  for (const auto& entry : form.toGenericDict()) {
    values.push_back(rows.toGenericDict().at(entry.key()));
  }
  return values;
}

bool have_same_elements(const c10::IValue& first, const c10::IValue& other) {
  if (first.tagKind() != other.tagKind()) return false;
  if (first.isTuple()) return first.toTupleRef().size() == other.toTupleRef().size();
  if (!first.isGenericDict()) return true;
  const auto keys = first.toGenericDict();
  const auto others = other.toGenericDict();
  return keys.size() == others.size() &&
         std::all_of(keys.begin(), keys.end(),
                     [&](const auto& entry) { return others.contains(entry.key()); });
}

/// Returns a tuple or dict like `form` with `values` as its elements.
c10::IValue with_elements(const c10::IValue& form, std::vector<c10::IValue> values) {
  if (form.isTuple()) return c10::ivalue::Tuple::create(std::move(values));
  const auto keys = form.toGenericDict();
  c10::impl::GenericDict made(keys.keyType(), keys.valueType());
  std::size_t i = 0;
  for (const auto& entry : keys) made.insert(entry.key(), std::move(values[i++]));
  return made;
}

/// Returns the row of the sample at each place. A shard with even batches contains some samples
/// twice; the first row is used.
at::Tensor order_of(const at::Tensor& places) {
  const at::Tensor order = places.argsort(/*stable=*/true);
  const at::Tensor sorted = places.index_select(0, order);
  const at::Tensor is_new = at::ones_like(sorted, at::kBool);
  if (sorted.numel() > 1) is_new.slice(0, 1).copy_(sorted.slice(0, 1) != sorted.slice(0, 0, -1));
  return order.masked_select(is_new);
}

/// Returns `rows` with row order[i] at position i.
c10::IValue in_order(const c10::IValue& rows, const at::Tensor& order) {
  if (rows.isTensor()) return rows.toTensor().index_select(0, order);
  if (rows.isList()) {
    c10::impl::GenericList ordered(c10::AnyType::get());
    const auto place = order.accessor<int64_t, 1>();
    for (int64_t i = 0; i < order.numel(); ++i) {
      ordered.push_back(rows.toListRef()[static_cast<std::size_t>(place[i])]);
    }
    return ordered;
  }
  std::vector<c10::IValue> values = elements_of(rows, rows);
  for (c10::IValue& element : values) element = in_order(element, order);
  return with_elements(rows, std::move(values));
}

}  // namespace

void PredictedRows::check_one_per_sample(const c10::IValue& rows, int64_t num_samples) const {
  const auto check = [&](bool is_right, const auto&... found) {
    LINKBOY_CHECK(is_right, "the ", name_, " of a batch of ", num_samples, " samples ", found...,
                  ". A tensor must have one row, and a list one entry, per sample; tuples and "
                  "dicts can contain these. ",
                  advice_);
  };
  if (rows.isTensor()) {
    const at::Tensor& tensor = rows.toTensor();
    check(tensor.defined(), "are an undefined tensor");
    check(tensor.dim() > 0 && tensor.size(0) == num_samples, "have shape ", tensor.sizes());
  } else if (rows.isList()) {
    const std::size_t size = rows.toListRef().size();
    check(std::cmp_equal(size, num_samples), "have a list of ", size, " entries");
  } else {
    check(rows.isTuple() || rows.isGenericDict(), "are a ", rows.tagKind());
    for (const c10::IValue& element : elements_of(rows, rows)) {
      check_one_per_sample(element, num_samples);
    }
  }
}

/// Checks that two batches can be concatenated.
void PredictedRows::check_same_form(const c10::IValue& first, const c10::IValue& other) const {
  LINKBOY_CHECK(have_same_elements(first, other), "the ", name_, " of one batch are a ",
                first.tagKind(), ", but those of another are a ", other.tagKind(),
                " or have different entries; all batches must have the same form. ", advice_);
  if (first.isTensor()) {
    const at::Tensor& a = first.toTensor();
    const at::Tensor& b = other.toTensor();
    LINKBOY_CHECK(a.sizes().slice(1) == b.sizes().slice(1) && a.scalar_type() == b.scalar_type(),
                  "the ", name_, " of one batch have shape ", a.sizes(), " and dtype ",
                  a.scalar_type(), ", but those of another have shape ", b.sizes(), " and dtype ",
                  b.scalar_type(), "; the rows of all batches must have the same shape and dtype. ",
                  advice_);
  } else if (!first.isList()) {
    const std::vector<c10::IValue> elements = elements_of(other, first);
    for (std::size_t i = 0; i < elements.size(); ++i) {
      check_same_form(elements_of(first, first)[i], elements[i]);
    }
  }
}

/// Returns the rows of all batches, which have the same form, as those of one batch.
c10::IValue PredictedRows::concatenated(const std::vector<c10::IValue>& batches) const {
  const c10::IValue& first = batches.front();
  if (first.isTensor()) {
    std::vector<at::Tensor> rows;
    rows.reserve(batches.size());
    for (const c10::IValue& batch : batches) rows.push_back(batch.toTensor());
    return at::cat(rows);
  }
  if (first.isList()) {
    c10::impl::GenericList all(c10::AnyType::get());
    for (const c10::IValue& batch : batches) {
      for (const c10::IValue& entry : batch.toListRef()) all.push_back(entry);
    }
    return all;
  }
  std::vector<std::vector<c10::IValue>> columns(elements_of(first, first).size());
  for (const c10::IValue& batch : batches) {
    const std::vector<c10::IValue> elements = elements_of(batch, first);
    for (std::size_t i = 0; i < columns.size(); ++i) columns[i].push_back(elements[i]);
  }
  std::vector<c10::IValue> values;
  values.reserve(columns.size());
  for (const auto& column : columns) values.push_back(concatenated(column));
  return with_elements(first, std::move(values));
}

void PredictedRows::add(const c10::IValue& rows, const std::vector<int64_t>& places) {
  check_one_per_sample(rows, std::ssize(places));
  batches_.push_back(
      c10::ivalue::Tuple::create({at::tensor(places, at::kLong), copied_to_cpu(rows)}));
  check_same_form(batches_.front(), batches_.back());
}

c10::IValue PredictedRows::gather(const Accelerator& accelerator) {
  const bool is_alone = accelerator.num_processes() == 1;
  std::vector<c10::IValue> parts = std::exchange(batches_, {});
  if (!is_alone) {
    // A process without batches does not know the form of a row.
    const std::string mine = parts.empty() ? "" : to_bytes(concatenated(parts));
    parts.clear();
    for (const std::string& bytes : accelerator.process_group().all_gather_bytes(mine)) {
      if (bytes.empty()) continue;
      parts.push_back(from_bytes(bytes));
      check_same_form(parts.front(), parts.back());
    }
  }
  if (parts.empty()) return {};
  const std::vector<c10::IValue> all = concatenated(parts).toTupleRef().elements().vec();
  return is_alone ? all[1] : in_order(all[1], order_of(all[0].toTensor()));
}

/// A call of `predict`.
class Trainer::Implementation::Predictor {
 public:
  Predictor(Implementation& trainer, const EvaluateOptions& options)
      : trainer_(trainer), options_(options) {}

  /// Calls `predict` in the run in progress, or in one of its own.
  void run(c10::function_ref<void()> predict);
  void predict_batches(const PredictionSink& sink);

 private:
  Implementation& trainer_;
  const EvaluateOptions& options_;
};

void Trainer::Implementation::Predictor::predict_batches(const PredictionSink& sink) {
  Trainer& trainer = trainer_.trainer_;
  RunSetUp set_up(trainer_);
  set_up.share_loader_seed();
  const auto data = share_between_ranks(set_up.create_eval_dataloader(options_),
                                        trainer_.accelerator_->mesh(), /*even_batches=*/false);
  const auto* of_dataset = dynamic_cast<const DatasetLoader*>(data.get());
  LINKBOY_CHECK(of_dataset != nullptr || trainer_.accelerator_->num_processes() == 1,
                "predict with several processes needs a DatasetLoader, which determines the "
                "samples of each process; the dataloader option or create_eval_dataloader provided "
                "a different type. Create the loader with make_data_loader.");
  const bool is_shared = trainer_.accelerator_->num_processes() > 1;
  std::vector<std::vector<int64_t>> planned;
  if (is_shared) planned = places_of_batches(of_dataset->options(), /*epoch=*/1);
  const auto loader = trainer_.accelerator_->prepare(data);
  const ModelModeGuard restore_modes = trainer_.modules_.restore_modes();
  const at::NoGradGuard no_grad;
  trainer_.accelerator_->broadcast_buffers();
  trainer.eval_epoch_start();
  trainer.fire<Event::prediction_run_start>();
  std::size_t num_batches = 0;
  int64_t num_samples = 0;
  trainer_.for_each_batch(*loader, /*epoch=*/1, [&](const Batch& batch) {
    trainer.fire<Event::prediction_step_start>();
    Prediction prediction;
    {
      const ProfilerRange range("predict_step");
      const AutocastScope autocast = trainer_.accelerator_->autocast();
      prediction.outputs = with_batch_in_errors(batch, trainer_.modules_.model(),
                                                [&] { return trainer.predict_step(batch); });
    }
    if (is_shared) {
      prediction.places = planned.at(num_batches);
      LINKBOY_CHECK(std::cmp_equal(batch.size(), prediction.places.size()),
                    "a batch to predict has ", batch.size(), " samples, but ",
                    prediction.places.size(),
                    " were taken from the data. With several processes, "
                    "neither collate_fn nor a transform may change the number of samples.");
    } else {
      prediction.places.resize(static_cast<std::size_t>(batch.size()));
      std::iota(prediction.places.begin(), prediction.places.end(), num_samples);
    }
    ++num_batches;
    num_samples += batch.size();
    trainer.fire<Event::prediction_step_end>(batch, prediction);
    sink(batch, prediction);
  });
}

/// Within a run, the prediction is a part of that run.
void Trainer::Implementation::Predictor::run(c10::function_ref<void()> predict) {
  Trainer& trainer = trainer_.trainer_;
  if (trainer_.call_) {
    LINKBOY_CHECK_OPTION(options_.callbacks.empty(),
                         "predict was called with callbacks during a run of this Trainer; leave "
                         "them out, or pass them to that run.");
    try {
      predict();
    } catch (...) {
      // A resumed run repeats everything that would have followed in the end of the epoch.
      trainer_.run_->progress.reopen_end_of_epoch();
      trainer_.run_->evaluations.is_cut_short = true;
      throw;
    }
    trainer.fire<Event::prediction_run_end>();
    return;
  }
  const RunScope back_to_training_run(trainer_, trainer_.run_->history);
  bool is_whole = false;
  trainer_.run_with_callbacks(options_.callbacks, [&] {
    trainer_.stop_.attach(trainer_.accelerator_->mesh().world());
    trainer_.run_until_stop([&] {
      RunSetUp(trainer_).prepare_modules();  // within a run they are already prepared
      predict();
      is_whole = true;
    });
    trainer_.call_all([&](Callback& callback) { callback.on_prediction_run_end(trainer); });
  });
  const TrainResult& result = trainer_.run_->result;
  if (!is_whole) throw StopTraining(result.reason, result.message);
}

void Trainer::predict(const EvaluateOptions& options, const PredictionSink& sink) {
  check_evaluate_options(options);
  LINKBOY_CHECK_OPTION(sink,
                       "the sink of predict is an empty function; pass one that accepts the "
                       "predictions of a batch, or leave it out.");
  Implementation::Predictor predictor(*impl_, options);
  predictor.run([&] { predictor.predict_batches(sink); });
}

c10::IValue Trainer::predict(const EvaluateOptions& options) {
  check_evaluate_options(options);
  c10::IValue result;
  Implementation::Predictor predictor(*impl_, options);
  predictor.run([&] {
    PredictedRows rows("predictions",
                       "Override predict_step, which may pad rows or return a list with one tensor "
                       "per sample, or pass a sink to predict.");
    predictor.predict_batches([&](const Batch&, const Prediction& prediction) {
      rows.add(prediction.outputs, prediction.places);
    });
    result = rows.gather(*impl_->accelerator_);
    LINKBOY_CHECK(!result.isNone(),
                  "the loader returned no batch to predict. An exhausted generator returns no "
                  "batches; create a new loader, or pass a sink to predict, which then accepts no "
                  "batches.");
  });
  return result;
}

c10::IValue Trainer::predict_step(const Batch& batch) {
  return impl_->modules_.model().forward({batch.input()});
}

}  // namespace linkboy

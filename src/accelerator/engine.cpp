// Makes the updates of a hand-written loop. The batches that the loop takes from its loader show
// when an epoch and its last accumulation window end.

#include "linkboy/engine.hpp"

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "accelerator/resolve_run_config.hpp"
#include "accelerator/resume_position.hpp"
#include "accelerator/share_between_ranks.hpp"
#include "accelerator/trained_optimizer.hpp"
#include "checkpoint/checkpoint_keys.hpp"
#include "checkpoint/named_tensors.hpp"
#include "checkpoint/optimizer_state.hpp"
#include "data/checked_iterator.hpp"
#include "distributed/agreement.hpp"
#include "distributed/ivalue_bytes.hpp"
#include "distributed/parameter_shards.hpp"
#include "linkboy/error.hpp"
#include "linkboy/run/run_history.hpp"
#include "util/option_checks.hpp"

namespace linkboy {
namespace {

constexpr const char* kEngine = "engine";

/// One pass over the training loader, by the loop or by anyone else who looks at its batches.
struct Reading {
  int64_t epoch = 0;
  int64_t first_batch = 0;
  int64_t num_batches = 0;  // of the epoch
  int64_t num_read = 0;     // batches of the epoch, including those before first_batch
  bool is_open = true;
};

/// The position of the loop in the training loader.
struct LoaderPosition {
  int64_t epoch = 0;
  int64_t micro_step = 0;
  int64_t num_micro_steps = std::numeric_limits<int64_t>::max();  // of the epoch
  bool has_begun = false;                          // whether the micro-step has begun
  std::shared_ptr<Reading> followed{};             // the one whose batches are trained
  std::vector<std::shared_ptr<Reading>> latest{};  // the last one to return a batch is at the back
  std::function<bool()> may_continue{};            // whether the loop may train another batch

  void has_read(const std::shared_ptr<Reading>& reading) {
    std::erase_if(latest, [&](const auto& each) { return each == reading || !each->is_open; });
    latest.push_back(reading);
  }

  /// Finds out which reading a micro-step that begins now belongs to: the same one as long as it
  /// has batches that are not trained yet; otherwise the last one that is still in use.
  void follow() {
    const bool has_batch = followed && followed->is_open && micro_step < followed->num_read;
    if (has_begun || has_batch || latest.empty()) return;
    const auto open = std::find_if(latest.rbegin(), latest.rend(),
                                   [](const auto& each) { return each->is_open; });
    const std::shared_ptr<Reading> next = open == latest.rend() ? latest.back() : *open;
    if (next == followed) return;
    followed = next;
    epoch = next->epoch;
    micro_step = next->first_batch;
    num_micro_steps = next->num_batches;
  }
};

/// Throws if an epoch is shorter than size(), because such an epoch would never end.
class EpochIterator final : public BatchIterator {
 public:
  EpochIterator(std::unique_ptr<BatchIterator> batches, std::shared_ptr<Reading> reading,
                std::shared_ptr<LoaderPosition> place)
      : batches_(std::move(batches)), reading_(std::move(reading)), place_(std::move(place)) {}
  ~EpochIterator() override { reading_->is_open = false; }
  EpochIterator(const EpochIterator&) = delete;
  EpochIterator& operator=(const EpochIterator&) = delete;

  std::optional<Batch> next() override {
    const bool is_trained = place_->followed == reading_ && place_->may_continue;
    if (is_trained && !place_->may_continue()) return std::nullopt;
    auto batch = batches_->next();
    LINKBOY_CHECK(batch || reading_->num_read >= reading_->num_batches,
                  "the training loader ended after ", reading_->num_read,
                  " batches, but its size() is ", reading_->num_batches,
                  ". Return the number of batches from size().");
    if (!batch) return batch;
    ++reading_->num_read;
    place_->has_read(reading_);
    return batch;
  }

 private:
  std::unique_ptr<BatchIterator> batches_;
  std::shared_ptr<Reading> reading_;
  std::shared_ptr<LoaderPosition> place_;
};

class EpochLoader final : public DataLoader {
 public:
  EpochLoader(std::shared_ptr<DataLoader> loader, std::shared_ptr<LoaderPosition> place)
      : loader_(std::move(loader)), place_(std::move(place)) {}

  int64_t size() const override { return loader_->size(); }
  int64_t batch_size() const override { return loader_->batch_size(); }
  std::unique_ptr<BatchIterator> iterate(int64_t epoch, int64_t first_batch) override {
    auto batches = checked(loader_->iterate(epoch, first_batch));
    auto reading = std::make_shared<Reading>(Reading{.epoch = epoch,
                                                     .first_batch = first_batch,
                                                     .num_batches = loader_->size(),
                                                     .num_read = first_batch});
    return std::make_unique<EpochIterator>(std::move(batches), std::move(reading), place_);
  }
  std::unique_ptr<BatchIterator> peek(int64_t epoch, int64_t max_batches) override {
    return loader_->peek(epoch, max_batches);
  }
  bool returns_own_share() const override { return loader_->returns_own_share(); }
  StateDict state_dict() const override { return loader_->state_dict(); }
  void load_state_dict(const StateDict& state) override { loader_->load_state_dict(state); }

 private:
  std::shared_ptr<DataLoader> loader_;
  std::shared_ptr<LoaderPosition> place_;
};

void check_engine_options(const EngineOptions& options, const torch::optim::Optimizer* optimizer,
                          bool has_train_dataloader, bool has_scheduler) {
  LINKBOY_CHECK_OPTION(optimizer != nullptr, "the optimizer is null; initialize needs one.");
  LINKBOY_CHECK_OPTION(!needs_closure(*optimizer),
                       "the optimizer is an LBFGS, which evaluates the loss several times in an "
                       "update; Engine::step cannot do that. Use Trainer, or call "
                       "Accelerator::optimizer_step(optimizer, closure) in the loop.");
  check_at_least_one("num_epochs", options.num_epochs.value_or(1));
  check_at_least_one("max_num_updates", options.max_num_updates.value_or(1));
  check_at_least_one("gradient_accumulation_steps", options.gradient_accumulation_steps);
  check_clip_value("gradient_clip_value", options.gradient_clip_value);
  check_clip_value("gradient_clip_norm", options.gradient_clip_norm);
  if (!has_scheduler || options.max_num_updates) return;
  LINKBOY_CHECK_OPTION(
      options.num_epochs,
      "neither num_epochs nor max_num_updates is set; the scheduler needs one of them "
      "to know the length of the run.");
  LINKBOY_CHECK_OPTION(has_train_dataloader,
                       "num_epochs is set, but without a training loader the length of an epoch is "
                       "unknown. Set max_num_updates.");
}

}  // namespace

struct Engine::Implementation {
  Implementation(Model model, std::shared_ptr<torch::optim::Optimizer> optimizer,
                 LossFunction loss_function, EngineOptions& options)
      : model_(std::move(model)),
        trained_(std::move(optimizer)),
        loss_function_(std::move(loss_function)),
        accelerator_(options.shared_accelerator
                         ? std::move(options.shared_accelerator)
                         : std::make_shared<Accelerator>(std::move(options.accelerator))),
        max_num_updates_(options.max_num_updates),
        max_num_epochs_(options.num_epochs) {
    place_->may_continue = [this] { return may_continue(); };
    std::vector<std::shared_ptr<torch::nn::Module>> others;
    if (loss_function_.module()) {
      loss_function_.module()->to(accelerator_->device());
      others.push_back(loss_function_.module());
    }
    accelerator_->prepare(model_, trained_.get().get(), others);
    accelerator_->set_gradient_accumulation_steps(options.gradient_accumulation_steps);
  }
  ~Implementation() { place_->may_continue = {}; }  // the loader may outlive the Engine
  Implementation(const Implementation&) = delete;
  Implementation& operator=(const Implementation&) = delete;

  void share(std::shared_ptr<DataLoader>& train_dataloader,
             std::shared_ptr<DataLoader>& eval_dataloader) const {
    if (train_dataloader) {
      train_dataloader =
          std::make_shared<EpochLoader>(accelerator_->prepare(std::move(train_dataloader)), place_);
    }
    if (eval_dataloader) {
      // An evaluation counts each sample once.
      eval_dataloader = accelerator_->prepare(share_between_ranks(
          std::move(eval_dataloader), accelerator_->mesh(), /*even_batches=*/false));
    }
  }

  /// If ranks made different numbers of updates or collective calls, they would wait for each other
  /// forever. Therefore this check comes before the first call that depends on any of these values.
  void check_same_on_all_ranks(const EngineOptions& options, const DataLoader* train_dataloader,
                               bool has_eval_dataloader, bool has_scheduler) const {
    if (accelerator_->world().size() == 1) return;
    std::vector<std::string> lines{
        c10::str("batches per epoch = ",
                 train_dataloader != nullptr ? train_dataloader->size() : 0),
        c10::str("an evaluation loader = ", has_eval_dataloader),
        c10::str("a scheduler = ", has_scheduler)};
    for (const auto& [name, value] : options_to_text(options))
      lines.push_back(name + " = " + value);
    require_same_on_all_ranks(accelerator_->world(), "what to train", lines);
  }

  void make_scheduler(const CreateSchedulerFn& create_scheduler_fn) {
    if (!create_scheduler_fn) return;
    const auto create = [&] {
      auto scheduler = create_scheduler_fn(*trained_, config_);
      LINKBOY_CHECK(
          scheduler != nullptr,
          "create_scheduler_fn returned null; it must return a scheduler. Leave it out to "
          "train without one.");
      return scheduler;
    };
    trained_.replace_scheduler(create, config_.max_num_updates, /*may_change_lengths=*/false,
                               InMemoryRunHistory());
  }

  void begin_micro_step() {
    place_->follow();
    if (resumed_at_) check_resumes_there(*std::exchange(resumed_at_, std::nullopt));
    if (std::exchange(place_->has_begun, true)) return;
    accelerator_->begin_micro_step(place_->micro_step, place_->num_micro_steps);
  }

  void check_resumes_there(const Reading& expected) const {
    if (!place_->followed) return;  // the loop has batches of its own
    const Reading& actual = *place_->followed;
    LINKBOY_CHECK(actual.epoch == expected.epoch && actual.first_batch == expected.first_batch,
                  "the Engine's state continues at batch ", expected.first_batch, " of epoch ",
                  expected.epoch, ", but the loop trains from batch ", actual.first_batch,
                  " of epoch ", actual.epoch,
                  ". Begin the loop with epoch = engine.num_epochs() + 1 and take batches(epoch, "
                  "engine.micro_step()) of the loader.");
  }

  /// Waits only for an update that can be the last.
  bool may_continue() {
    if (!max_num_updates_) return true;
    if (num_updates_ + 1 >= *max_num_updates_) finish_pending_update();
    return num_updates_ < *max_num_updates_;
  }

  void make_update() {
    // The device still computes this update's gradients while the host waits for the previous one.
    finish_pending_update();
    LINKBOY_CHECK(
        may_continue(), "step was called after the last of ", num_updates_,
        " updates (max_num_updates). End the loop when has_updates_left() returns false.");
    gradient_norm_ = trained_.step(*accelerator_, config_);
    accelerator_->update_scale();
    trained_.end_step(accelerator_->step_outcome());
    if (trained_.is_outcome_known()) finish_pending_update();
  }

  void finish_pending_update() {
    if (!trained_.is_pending()) return;
    accelerator_->settle_optimizer_steps();
    if (!trained_.finish_step(*accelerator_)) return;
    ++num_updates_;
    if (Scheduler* scheduler = trained_.scheduler()) scheduler->step();
  }

  void end_epoch() {
    finish_pending_update();
    num_epochs_ = place_->epoch;
    place_->micro_step = 0;
    if (place_->followed) place_->followed->is_open = false;
    Scheduler* const scheduler = trained_.scheduler();
    if (scheduler == nullptr) return;
    scheduler->epoch_end(num_epochs_, InMemoryRunHistory(), /*has_metrics=*/false);
    const std::vector<std::string> metrics = scheduler->monitored_metrics();
    // After the first epoch, the loop has not had the opportunity to pass the metric yet.
    if (++num_epochs_ended_ != 2 || is_scheduler_used_ || metrics.empty()) return;
    accelerator_->log(LogLevel::warning,
                      c10::str("the schedule follows ", c10::Join(", ", metrics),
                               ", but it has not received a value. Call scheduler()->epoch_end("
                               "epoch, history, true) after each epoch."));
  }

  bool is_in_window() const {
    return place_->has_begun || place_->micro_step % config_.gradient_accumulation_steps != 0;
  }

  c10::IValue weights_of_ranks() const {
    const StateDict own{{kModel, model_.state_dict()},  // local SGD does not distribute parameters
                        {kOptimizer, trained_.state_dict(*accelerator_)}};
    c10::impl::GenericList all(c10::AnyType::get());
    for (const std::string& bytes :
         accelerator_->process_group().all_gather_bytes(to_bytes(own.to_ivalue()))) {
      all.push_back(from_bytes(bytes));
    }
    return all;
  }

  /// Returns the part of a state that has the model and the optimizer of this rank.
  StateDict weights_in(const StateDict& state) const {
    const StateDict own = state.get_dict(kEngine);
    if (!accelerator_->has_own_weights() || !own.contains(kWeightsOfRanks)) return state;
    const auto all = own.get_list(kWeightsOfRanks);
    if (static_cast<int64_t>(all.size()) != accelerator_->num_processes()) return state;
    return StateDict::from_ivalue(all[accelerator_->process_index()], kWeightsOfRanks);
  }

  /// Adds the states of the Accelerator and the training loader, which `load_parts` restores.
  void add_parts(StateDict& state) const {
    state.set("accelerator", accelerator_->state_dict());
    if (const GradScaler* scaler = accelerator_->grad_scaler()) {
      state.set("grad_scaler", scaler->state_dict());
    }
    if (train_dataloader_) state.set("train_loader", train_dataloader_->state_dict());
  }

  void load_parts(const StateDict& state) {
    if (train_dataloader_) train_dataloader_->load_state_dict(state.get_dict("train_loader"));
    if (GradScaler* scaler = accelerator_->grad_scaler()) {
      scaler->load_state_dict(state.get_dict("grad_scaler"));
    }
    accelerator_->load_state_dict(state.get_dict("accelerator"));
  }

  Model model_;
  TrainedOptimizer trained_;
  LossFunction loss_function_;
  std::shared_ptr<Accelerator> accelerator_;
  std::shared_ptr<DataLoader> train_dataloader_;
  bool is_scheduler_used_ = false;  // by the loop, which may pass it a metric
  int64_t num_epochs_ended_ = 0;
  RunConfig config_;
  std::shared_ptr<LoaderPosition> place_ = std::make_shared<LoaderPosition>();
  at::Tensor gradient_norm_;
  bool has_gradients_ = false;  // whether the current micro-step has gradients
  std::optional<int64_t> max_num_updates_;
  std::optional<int64_t> max_num_epochs_;
  int64_t num_updates_ = 0;
  int64_t num_epochs_ = 0;
  std::optional<Reading> resumed_at_;  // until the loop continues there
};

Engine::Engine(std::unique_ptr<Implementation> implementation) : impl_(std::move(implementation)) {}
Engine::~Engine() = default;
Engine::Engine(Engine&& other) noexcept = default;
Engine& Engine::operator=(Engine&& other) noexcept = default;

void Engine::train() {
  impl_->model_.train();
  if (impl_->loss_function_.module()) impl_->loss_function_.module()->train();
}

void Engine::eval() {
  impl_->model_.eval();
  if (impl_->loss_function_.module()) impl_->loss_function_.module()->eval();
  impl_->accelerator_->broadcast_buffers();
}

void Engine::zero_grad() {
  impl_->place_->follow();
  if (!impl_->is_in_window()) Accelerator::zero_grad(*impl_->trained_);
}

void Engine::begin_forward() {
  if (impl_->model_.is_training() && at::GradMode::is_enabled()) impl_->begin_micro_step();
}

at::Tensor Engine::loss_function(const at::Tensor& output, const at::Tensor& target) {
  LINKBOY_CHECK(
      impl_->loss_function_,
      "the Engine has no loss function. Pass one to initialize, or compute the loss in the "
      "loop.");
  const auto autocast = impl_->accelerator_->autocast();
  return impl_->loss_function_(output, target);
}

void Engine::backward(const at::Tensor& loss) {
  impl_->begin_micro_step();
  impl_->accelerator_->backward(loss);
  impl_->has_gradients_ = true;
}

bool Engine::step() {
  LINKBOY_CHECK(
      std::exchange(impl_->has_gradients_, false),
      "step was called without a preceding backward. Call backward and then step for each batch.");
  LoaderPosition& place = *impl_->place_;
  const bool is_due = impl_->accelerator_->window().is_complete();
  if (is_due) impl_->make_update();
  place.has_begun = false;
  if (++place.micro_step == place.num_micro_steps) impl_->end_epoch();
  return is_due;
}

int64_t Engine::num_updates() {
  impl_->finish_pending_update();
  return impl_->num_updates_;
}

int64_t Engine::num_epochs() const { return impl_->num_epochs_; }
int64_t Engine::micro_step() const { return impl_->place_->micro_step; }

bool Engine::has_updates_left() {
  LINKBOY_CHECK_OPTION(impl_->max_num_updates_ || impl_->max_num_epochs_,
                       "neither num_epochs nor max_num_updates is set, so a loop that calls "
                       "has_updates_left would never end. Set one of them.");
  if (impl_->max_num_updates_) return num_updates() < *impl_->max_num_updates_;
  return !impl_->max_num_epochs_ || num_epochs() < *impl_->max_num_epochs_;
}

const at::Tensor& Engine::gradient_norm() const { return impl_->gradient_norm_; }
Model& Engine::model() { return impl_->model_; }
torch::optim::Optimizer& Engine::optimizer() { return *impl_->trained_; }

Scheduler* Engine::scheduler() {
  impl_->finish_pending_update();
  impl_->is_scheduler_used_ = true;
  return impl_->trained_.scheduler();
}

Accelerator& Engine::accelerator() { return *impl_->accelerator_; }
const RunConfig& Engine::run_config() const { return impl_->config_; }

StateDict Engine::state_dict() {
  Implementation& run = *impl_;
  LINKBOY_CHECK(!run.is_in_window(), "the Engine is in the middle of an accumulation window (",
                run.place_->micro_step,
                " micro-steps of the epoch are done), and a state does not contain gradients. Call "
                "state_dict after a step that returned true.");
  run.finish_pending_update();
  StateDict own{{"num_updates", run.num_updates_},
                {"num_epochs", run.num_epochs_},
                {"micro_step", run.place_->micro_step}};
  if (run.train_dataloader_) {
    save_resume_position(own, *run.train_dataloader_, run.accelerator_->num_processes());
  }
  run.add_parts(own);
  if (run.accelerator_->has_own_weights()) own.set(kWeightsOfRanks, run.weights_of_ranks());

  const auto whole = [](const StateDict& part) {
    return with_whole_parameters(part, /*is_wanted=*/true);
  };
  StateDict state{{kModel, whole(run.model_.state_dict())},
                  {kOptimizer, run.trained_.state_dict(*run.accelerator_)}};
  if (const Scheduler* scheduler = run.trained_.scheduler()) {
    state.set(kScheduler, scheduler->state_dict());
  }
  if (const auto& module = run.loss_function_.module()) {
    state.set(kRegisteredModules, StateDict{{"0", whole(StateDict(named_tensors_of(*module)))}});
  }
  state.set(kEngine, own);
  return state;
}

void Engine::load_state_dict(const StateDict& state) {
  Implementation& run = *impl_;
  run.finish_pending_update();
  // Check everything before anything changes.
  const StateDict own = state.get_dict(kEngine);
  const StateDict weights = run.weights_in(state);
  const StateDict model = weights.get_dict(kModel);
  check_named_tensors(run.model_.named_tensors(), model, "the Engine's state");
  NamedTensors of_loss_function;
  StateDict loss_function;
  if (const auto& module = run.loss_function_.module()) {
    of_loss_function = named_tensors_of(*module);
    loss_function = state.get_dict(kRegisteredModules).get_dict("0");
    check_named_tensors(of_loss_function, loss_function, "the loss function's state");
  }
  const int64_t num_updates = own.get_int("num_updates");
  const int64_t num_epochs = own.get_int("num_epochs");
  int64_t micro_step = own.get_int("micro_step");
  LINKBOY_CHECK(num_updates >= 0 && num_epochs >= 0 && micro_step >= 0, "the Engine's state has ",
                num_updates, " updates, ", num_epochs, " epochs and ", micro_step,
                " micro-steps; none may be negative. Use another state.");
  if (run.train_dataloader_) {
    micro_step =
        micro_step_in_this_run(own, *run.train_dataloader_, *run.accelerator_,
                               run.config_.gradient_accumulation_steps, "the Engine's state");
  }
  StateDict before;
  run.add_parts(before);
  for (const auto& [part, unused] : before.entries()) static_cast<void>(own.get_dict(part));
  StateDict schedule;
  Scheduler* const scheduler = run.trained_.scheduler();
  if (scheduler != nullptr) {
    schedule = state.get_dict(kScheduler);
    scheduler->check_state_dict(schedule);
  }

  // If one of these rejects its state, restore all of them.
  try {
    run.load_parts(own);
    load_optimizer_state_dict(*run.trained_, weights.get_dict(kOptimizer));
  } catch (...) {
    run.load_parts(before);
    throw;
  }
  run.model_.load_state_dict(model);
  copy_named_tensors(of_loss_function, loss_function, "the loss function's state");
  if (scheduler != nullptr) scheduler->load_state_dict(schedule);
  run.num_updates_ = num_updates;
  run.num_epochs_ = num_epochs;
  run.has_gradients_ = false;
  run.resumed_at_ = Reading{.epoch = num_epochs + 1, .first_batch = micro_step};
  *run.place_ = {.epoch = num_epochs,
                 .micro_step = micro_step,
                 .may_continue = std::move(run.place_->may_continue)};
}

InitializedEngine initialize(Model model, std::shared_ptr<torch::optim::Optimizer> optimizer,
                             LossFunction loss_function,
                             std::shared_ptr<DataLoader> train_dataloader,
                             std::shared_ptr<DataLoader> eval_dataloader,
                             const CreateSchedulerFn& create_scheduler_fn, EngineOptions options) {
  check_engine_options(options, optimizer.get(), train_dataloader != nullptr,
                       create_scheduler_fn != nullptr);
  auto engine = std::make_unique<Engine::Implementation>(std::move(model), std::move(optimizer),
                                                         std::move(loss_function), options);
  engine->check_same_on_all_ranks(options, train_dataloader.get(), eval_dataloader != nullptr,
                                  create_scheduler_fn != nullptr);
  engine->share(train_dataloader, eval_dataloader);
  engine->train_dataloader_ = train_dataloader;
  engine->config_ =
      resolve_run_config(*engine->accelerator_,
                         {.num_epochs = options.num_epochs,
                          .max_num_updates = options.max_num_updates,
                          .gradient_accumulation_steps = options.gradient_accumulation_steps,
                          .gradient_clip_value = options.gradient_clip_value,
                          .gradient_clip_norm = options.gradient_clip_norm},
                         train_dataloader.get(), eval_dataloader.get());
  engine->make_scheduler(create_scheduler_fn);
  Scheduler* const scheduler = engine->trained_.scheduler();
  return {Engine(std::move(engine)), std::move(train_dataloader), std::move(eval_dataloader),
          scheduler};
}

}  // namespace linkboy

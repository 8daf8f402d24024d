// Random combinations of options.
//
// A run that is cut at a random place and resumed, or extended, equals the whole run: the values of
// their training states, results, files and weights are equal. An Engine, also one that is cut and
// resumed, and a hand-written loop make the same updates as a Trainer: the weights and the
// optimizer's state are bit-identical.
//
// LINKBOY_COMBINATIONS="FROM TO" tries these seeds; otherwise the tests try a few.
// LINKBOY_COMBINATION="optimizer=adam cut=exception" tries one combination.

#include <gtest/gtest.h>

#include <iterator>
#include <set>

#include "linkboy/engine.hpp"
#include "linkboy/precision/autocast.hpp"
#include "precision/fused_step.hpp"
#include "support/combination_checks.hpp"
#include "support/state_difference.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::combinations_test {
namespace {

AcceleratorOptions on_cpu() { return {.device = "cpu"}; }

/// The settings of loops that an Engine runs. The hand-written loop has the same, unless it says
/// otherwise.
const std::set<std::string> kLoopSettings{
    "optimizer",   "param_groups",    "model",     "data",           "order",   "drop_last",
    "transform",   "prefetch_factor", "schedule",  "precision",      "scale",   "samples",
    "batch_size",  "accumulation",    "clip_norm", "clip_value",     "workers", "num_epochs",
    "loss_module", "frozen",          "cut_at",    "max_num_updates"};
/// Settings of a Trainer that do not change what it trains.
const std::set<std::string> kTracelessSettings{
    "before",     "evaluation",    "evaluate_every",        "evaluate_before", "evaluate_now",
    "predict_in", "execution",     "activation_checkpoint", "step_evaluation", "save_checkpoint",
    "track",      "gradient_norm", "learning_rates",        "event_storage",   "metrics",
    "observers",  "measurements",  "save_predictions"};

/// Returns the combination with only the settings of all loops and the `other` one.
Combination for_loop(Combination combination, const std::string& other) {
  for (const Setting& setting : all_settings()) {
    const bool is_in_loop =
        kLoopSettings.contains(setting.name) || kTracelessSettings.contains(setting.name);
    if (!is_in_loop && setting.name != other) combination.reset(setting.name);
  }
  if (combination.is("optimizer", "lbfgs")) combination.reset("optimizer");
  if (combination.is("frozen", "until_epoch_2")) combination.reset("frozen");
  // It needs a dataset, and the loops share a loader.
  if (combination.is("before", "find_batch_size")) combination.reset("before");
  // The loops share a loader, and a graph's batches have one shape.
  if (combination.has("execution")) {
    combination.set("drop_last", "yes");
    if (combination.is("order", "batch_sampler")) combination.reset("order");
  }
  // A compiled step multiplies its gradients by a third, and an eager one the loss.
  if (combination.matches("execution=compiled accumulation=3")) combination.reset("execution");
  // After its last update, an Engine does not end an epoch that is not whole.
  if (combination.matches("schedule=by_epoch|timm")) combination.reset("max_num_updates");
  // These depend on metrics.
  if (combination.matches("schedule=plateau|sequential_plateau|epoch_plateau|timm_steps")) {
    combination.reset("schedule");
  }
  return combination;
}

/// What a loop leaves.
struct Left {
  std::vector<torch::Tensor> tensors;
  int64_t num_updates = 0;
  double scale = 0.0;
  c10::IValue optimizer{};
};

std::string difference(const Left& left, const Left& right) {
  if (left.num_updates != right.num_updates) {
    return c10::str(left.num_updates, " and ", right.num_updates, " updates");
  }
  if (left.scale != right.scale) return c10::str("scales ", left.scale, " and ", right.scale);
  std::string text = same_values(left.tensors, right.tensors) ? "" : "weights; ";
  add_differences(text, "optimizer", left.optimizer, right.optimizer);
  return text;
}

double scale_of(const Accelerator& accelerator) {
  return accelerator.grad_scaler() != nullptr ? accelerator.grad_scaler()->get_scale() : 0.0;
}

/// The parts of a run for a loop that is not a Trainer.
struct Parts {
  explicit Parts(const Combination& combination)
      : run(combination, folder.path(), on_cpu()), loader(run.make_loader()) {
    if (!loader) {
      DataLoaderOptions options = run.loader_options();
      if (!options.sampler && !options.batch_sampler && !options.shuffle) options.shuffle = true;
      options.seed = 5;
      loader = make_data_loader(toy_data(combination.number("samples")), options);
    }
    torch::manual_seed(11);
  }

  TemporaryFolder folder;
  CombinationRun run;
  std::shared_ptr<DataLoader> loader;
};

Left by_trainer(const Combination& combination) {
  Parts parts(combination);
  CombinationRun& run = parts.run;
  run.options.train_dataset = {};
  run.options.train_dataloader_options = {};
  run.options.train_dataloader = parts.loader;
  run.do_before();
  const TrainResult result = run.trainer->train(run.options);
  return {run.tensors(), result.num_updates, scale_of(run.trainer->accelerator()),
          run.trainer->accelerator().optimizer_state_dict(*run.trainer->optimizer()).to_ivalue()};
}

/// @param cut  The update after which the loop continues with new objects; 0: never.
Left by_engine(const Combination& combination, int64_t cut) {
  auto parts = std::make_unique<Parts>(combination);
  const auto start = [&] {
    CombinationRun& run = parts->run;
    const TrainOptions& options = run.options;
    return initialize(run.model, run.make_optimizer(), run.loss(), parts->loader, nullptr,
                      schedule_of(combination),
                      {.num_epochs = options.num_epochs,
                       .max_num_updates = options.max_num_updates,
                       .gradient_accumulation_steps = options.gradient_accumulation_steps,
                       .gradient_clip_value = options.gradient_clip_value,
                       .gradient_clip_norm = options.gradient_clip_norm,
                       .accelerator = run.accelerator_options(on_cpu())});
  };
  auto loop = std::make_unique<InitializedEngine>(start());
  const auto train_epoch = [&] {
    Engine& engine = loop->engine;
    engine.train();
    for (const Batch& batch :
         loop->train_dataloader->batches(engine.num_epochs() + 1, engine.micro_step())) {
      engine.zero_grad();
      engine.backward(engine.loss_function(engine(batch), batch.target()));
      const bool is_updated = engine.step();
      if (!engine.has_updates_left()) return;
      if (is_updated && cut > 0 && engine.num_updates() == cut) return;
    }
  };
  while (loop->engine.has_updates_left()) {
    train_epoch();
    if (cut == 0 || loop->engine.num_updates() != cut) continue;
    cut = 0;
    const StateDict state = loop->engine.state_dict();
    const auto numbers = at::detail::getDefaultCPUGenerator().get_state();
    loop.reset();
    parts = std::make_unique<Parts>(combination);
    parts->run.spoil();
    loop = std::make_unique<InitializedEngine>(start());
    loop->engine.load_state_dict(state);
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    generator.set_state(numbers);
  }
  Engine& engine = loop->engine;
  return {parts->run.tensors(), engine.num_updates(), scale_of(engine.accelerator()),
          engine.accelerator().optimizer_state_dict(engine.optimizer()).to_ivalue()};
}

/// The scale of Python's GradScaler with a growth interval of 2.
struct ScaleByHand {
  /// Divides the gradients by the scale and returns whether they are finite.
  bool unscale(const std::vector<torch::Tensor>& gradients) {
    bool is_finite = true;
    for (const auto& gradient : gradients) {
      gradient.div_(value);
      is_finite = is_finite && torch::isfinite(gradient).all().item<bool>();
    }
    return is_finite;
  }
  void update(bool was_finite) {
    growth = was_finite ? growth + 1 : 0;
    if (!was_finite) value *= 0.5;
    if (growth < 2) return;
    value *= 2.0;
    growth = 0;
  }

  double value;
  int64_t growth = 0;
};

void clip(const CombinationRun& run, const std::vector<torch::Tensor>& gradients) {
  if (const auto value = run.options.gradient_clip_value) {
    for (const auto& gradient : gradients) gradient.clamp_(-*value, *value);
  }
  const auto max_norm = run.options.gradient_clip_norm;
  if (!max_norm || std::isinf(*max_norm)) return;
  std::vector<torch::Tensor> norms;
  for (const auto& gradient : gradients) norms.push_back(gradient.norm());
  const auto norm = torch::stack(norms).norm();
  const auto coefficient = ((norm + 1e-6).reciprocal() * *max_norm).clamp_max(1.0);
  for (const auto& gradient : gradients) gradient.mul_(coefficient);
}

/// Trains with LibTorch alone, apart from the kernel of the optimizer.
Left by_hand(const Combination& combination) {
  Parts parts(combination);
  CombinationRun& run = parts.run;
  const auto optimizer = run.make_optimizer();
  const bool is_fp16 = combination.is("precision", "fp16");
  const auto dtype = is_fp16                               ? std::optional(torch::kHalf)
                     : combination.is("precision", "bf16") ? std::optional(torch::kBFloat16)
                                                           : std::nullopt;
  ScaleByHand scale{is_fp16 ? std::stod(combination["scale"]) : 1.0};
  const int64_t limit = run.options.max_num_updates.value_or(1'000'000);
  const int64_t accumulation = run.options.gradient_accumulation_steps;
  const int64_t num_batches = parts.loader->size();
  RunConfig config{.num_updates_per_epoch = (num_batches + accumulation - 1) / accumulation,
                   .num_train_batches_per_epoch = num_batches,
                   .gradient_accumulation_steps = accumulation};
  config.max_num_updates =
      run.options.max_num_updates.value_or(*run.options.num_epochs * config.num_updates_per_epoch);
  config.num_epochs = run.options.max_num_updates
                          ? (config.max_num_updates + config.num_updates_per_epoch - 1) /
                                config.num_updates_per_epoch
                          : *run.options.num_epochs;
  const auto schedule =
      combination.has("schedule") ? schedule_of(combination)(*optimizer, config) : nullptr;
  if (schedule) schedule->start();
  int64_t updates = 0;
  run.model->train();
  const bool has_epoch_limit = !run.options.max_num_updates;
  for (int64_t epoch = 1; updates < limit && (!has_epoch_limit || epoch <= *run.options.num_epochs);
       ++epoch) {
    for (int64_t i = 0; const Batch& batch : parts.loader->batches(epoch)) {
      const int64_t first = i / accumulation * accumulation;
      const int64_t window = std::min(accumulation, num_batches - first);
      torch::Tensor loss;
      {
        const AutocastScope autocast(torch::kCPU, dtype);
        loss = run.loss()(run.model->forward(batch.input()), batch.target());
      }
      (loss / window * scale.value).backward();
      if (++i < first + window) continue;
      std::vector<torch::Tensor> gradients;
      for (const auto& group : optimizer->param_groups()) {
        for (const auto& parameter : group.params()) {
          if (parameter.grad().defined()) gradients.push_back(parameter.grad());
        }
      }
      const bool is_finite = scale.unscale(gradients);
      const bool is_skipped = combination.has("skipped_window") && epoch == 2 && first == 0 &&
                              accumulation < num_batches;
      if (!is_skipped) {
        clip(run, gradients);
        if (is_finite || !is_fp16) {
          if (fused_step(*optimizer) == FusedGradients::none) optimizer->step();
          ++updates;
          if (schedule) schedule->step();
        }
      }
      if (is_fp16) scale.update(is_finite);
      optimizer->zero_grad();
      if (updates == limit) break;
    }
  }
  return {run.tensors(), updates, is_fp16 ? scale.value : 0.0, {}};
}

std::string failure_of_engine(const Combination& combination) {
  const Left trainer = by_trainer(combination);
  if (auto text = difference(trainer, by_engine(combination, 0)); !text.empty()) {
    return "Trainer and Engine: " + text;
  }
  const int64_t cut = 1 + combination.number("cut_at") % std::max<int64_t>(trainer.num_updates, 1);
  if (auto text = difference(trainer, by_engine(combination, cut)); !text.empty()) {
    return c10::str("Trainer and Engine that was cut at update ", cut, ": ", text);
  }
  return "";
}

std::string failure_of_hand(const Combination& combination) {
  Left trainer = by_trainer(combination);
  trainer.optimizer = {};
  const auto text = difference(trainer, by_hand(combination));
  return text.empty() ? "" : "Trainer and hand-written loop: " + text;
}

void try_one(const Combination& combination, const std::string& name,
             std::string (*check)(const Combination&)) {
  const auto failure_of = [check](const Combination& tried) -> std::string {
    try {
      return check(tried);
    } catch (const OptionError&) {
      return "";
    } catch (const std::exception& error) {
      return error.what();
    }
  };
  const std::string failure = failure_of(combination);
  if (failure.empty()) return;
  const Combination smallest =
      combination.shrunk([&](const Combination& smaller) { return !failure_of(smaller).empty(); });
  ADD_FAILURE() << name << ": " << failure.substr(0, 400) << "\n  " << combination.text()
                << "\n  smallest: " << smallest.text() << "\n  "
                << failure_of(smallest).substr(0, 600);
}

Combination for_engine(const Combination& drawn) { return for_loop(drawn, "channels_last"); }

Combination for_hand(const Combination& drawn) {
  Combination loop = for_loop(drawn, "skipped_window");
  // It does not count epochs for the schedule.
  if (loop.matches("schedule=by_epoch|timm")) loop.reset("schedule");
  return loop;
}

TEST(CombinationsTest, AnEngineAndAHandWrittenLoopEqualATrainer) {
  const SingleThread one_thread;
  const auto try_both = [](const Combination& drawn, const std::string& name) {
    try_one(for_engine(drawn), name, &failure_of_engine);
    try_one(for_hand(drawn), name, &failure_of_hand);
  };
  if (const char* text = std::getenv("LINKBOY_COMBINATION")) {
    return try_both(Combination::parse(text), "given");
  }
  try_both(Combination::parse("precision=fp16 skipped_window=yes accumulation=2"), "known");
  const auto [from, to] = seeds_of_combinations(0, 40);
  for (int64_t seed = from; seed < to; ++seed) {
    try_both(Combination::draw(static_cast<uint64_t>(seed)), c10::str("seed ", seed));
  }
}

/// Combinations that the random ones may miss.
constexpr const char* kKnown[] = {
    "optimizer=lbfgs cut_at=5",
    "loss_module=yes second_optimizer=yes cut_at=5",
    "second_optimizer=with_schedule schedule=linear precision=fp16 clip_norm=0.5 cut_at=5",
    "data=one_stream workers=1 limit_batches=train cut_at=3",
    "data=one_stream workers=1 limit_batches=repeat step_evaluation=2 cut=request_evaluation",
    "data=epoch_stream_with_state workers=2 cut_at=8",
    "max_num_updates=5 samples=8 cut_at=4",
    "cut=fewer_epochs save_best=yes model_ema=yes",
    "cut=fewer_updates cut_at=3"};

TEST(CombinationsTest, ACutAndResumedRunEqualsTheWholeRun) {
  const SingleThread one_thread;
  CombinationChecks checks;
  if (const char* text = std::getenv("LINKBOY_COMBINATION")) {
    return checks.check(Combination::parse(text), "given");
  }
  for (const char* text : kKnown) checks.check(Combination::parse(text), "known");
  EXPECT_EQ(checks.resumed_from_a_state, std::ssize(kKnown));
  const auto [from, to] = seeds_of_combinations(0, 40);
  for (int64_t seed = from; seed < to; ++seed) {
    checks.check(Combination::draw(static_cast<uint64_t>(seed)), c10::str("seed ", seed));
  }
  EXPECT_GE(checks.resumed_from_a_state, (to - from) / 2);
  EXPECT_GE(checks.left_no_trace, (to - from) / 40);
}

}  // namespace
}  // namespace linkboy::testing::combinations_test

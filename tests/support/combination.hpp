// Random combinations of the options of a run, as text: "optimizer=adam cut=exception cut_at=5".

#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace linkboy::testing {

/// A setting of a run and its values. The first value is the default.
struct Setting {
  std::string name;
  std::vector<std::string> values;
};

inline const std::vector<Setting>& all_settings() {
  static const std::vector<Setting> all{
      {"cut",
       {"request_update", "request_evaluation", "request_epoch_end", "throw_update",
        "throw_backward", "throw_evaluation", "exception", "fewer_epochs", "fewer_updates"}},
      {"cut_at", {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"}},
      {"save", {"at_end", "every_update", "every_epoch", "asynchronous", "by_hand"}},
      {"cut_again", {"no", "yes"}},
      {"earlier_run", {"no", "yes", "continued", "fast_dev_run"}},
      {"before", {"nothing", "evaluate", "predict", "find_batch_size", "find_learning_rate"}},
      {"optimizer", {"momentum", "sgd", "adam", "adamw", "adagrad", "rmsprop", "lbfgs"}},
      {"param_groups", {"1", "2"}},
      {"model", {"linear", "batch_norm", "dropout", "conv"}},
      {"data",
       {"dataset", "epoch_stream", "epoch_stream_with_state", "one_stream", "one_stream_with_state",
        "reused_memory"}},
      {"order", {"shuffled", "in_order", "sampler", "batch_sampler"}},
      {"drop_last", {"no", "yes"}},
      {"even_batches", {"default", "no"}},
      {"transform", {"no", "yes"}},
      {"prefetch_factor", {"2", "1"}},
      {"schedule", {"none",         "cosine",   "step",        "wsd",        "one_cycle",
                    "plateau",      "restarts", "exponential", "warmup",     "inverse_sqrt",
                    "multi_step",   "constant", "linear",      "polynomial", "tanh",
                    "cyclic",       "by_epoch", "timm",        "timm_steps", "sequential",
                    "chained",      "lambda",   "product",     "torch",      "sequential_plateau",
                    "epoch_plateau"}},
      {"precision", {"no", "bf16", "fp16"}},
      {"scale", {"64", "1048576"}},
      {"samples", {"14", "8", "15", "5"}},
      {"batch_size", {"2", "3", "4"}},
      {"accumulation", {"1", "2", "3"}},
      {"clip_norm", {"no", "0.5", "inf"}},
      {"clip_value", {"no", "0.05"}},
      {"workers", {"0", "1", "2"}},
      {"num_epochs", {"3", "1", "2"}},
      {"max_num_updates", {"no", "5", "7"}},
      {"evaluation", {"one_set", "none", "two_sets", "loader", "stream"}},
      {"evaluate_every", {"1", "2"}},
      {"evaluate_before", {"no", "yes"}},
      {"evaluate_now", {"no", "epoch_start", "update_end", "epoch_end"}},
      {"predict_in", {"no", "update_end", "epoch_end"}},
      {"execution", {"eager", "graph", "compiled"}},
      {"channels_last", {"no", "yes"}},
      {"activation_checkpoint", {"no", "yes"}},
      {"weight_by_batch_size", {"no", "yes"}},
      {"frozen", {"no", "first_layer", "until_epoch_2"}},
      {"second_optimizer", {"no", "yes", "with_schedule"}},
      {"loss_module", {"no", "yes"}},
      {"skipped_window", {"no", "yes"}},
      {"model_ema", {"no", "yes", "apply_at_end", "saved"}},
      {"swa", {"no", "yes", "every_update", "swa_lr", "annealed"}},
      {"precise_batch_norm", {"no", "yes"}},
      {"step_evaluation", {"no", "1", "2"}},
      {"early_stopping", {"no", "yes"}},
      {"save_best", {"no", "yes", "top_2", "of_all_runs"}},
      {"save_checkpoint", {"no", "every_epoch", "every_update", "keep_last"}},
      {"save_predictions", {"no", "yes"}},
      {"track", {"no", "every_update", "every_2_updates", "histograms"}},
      {"gradient_norm", {"no", "yes"}},
      {"learning_rates", {"no", "yes"}},
      {"event_storage", {"no", "yes"}},
      {"metrics", {"no", "yes", "in_training"}},
      {"observers", {"no", "yes"}},
      {"measurements", {"no", "yes"}},
      {"limit_batches", {"no", "train", "evaluation", "intermediate", "repeat"}},
      // These matter only with several ranks.
      {"mesh", {"line", "pairs"}},
      {"zero_stage", {"0", "1", "2", "3"}},
      {"local_sgd", {"0", "2"}},
      {"compression", {"none", "bf16"}},
      {"communication_hook", {"no", "yes"}},
      {"bucket_cap_mb", {"25", "0.0001"}},
      {"bucket_view", {"default", "no"}},
      {"find_unused", {"no", "yes"}},
      {"static_graph", {"no", "yes"}},
      {"broadcast_buffers", {"yes", "no"}},
      {"sync_batch_norm", {"no", "yes"}},
  };
  return all;
}

/// The values of all settings.
class Combination {
 public:
  Combination() {
    for (const Setting& setting : all_settings()) values_[setting.name] = setting.values.front();
  }

  /// Draws a combination that a run accepts. A fifth of the settings or so are not defaults.
  static Combination draw(uint64_t seed) {
    std::mt19937_64 engine(seed * 0x9e3779b97f4a7c15 + 1);
    Combination drawn;
    for (const Setting& setting : all_settings()) {
      const auto value = engine() % setting.values.size();
      const bool is_changed = setting.name.starts_with("cut") || engine() % 4 == 0;
      if (is_changed) drawn.values_[setting.name] = setting.values[value];
    }
    drawn.make_valid();
    return drawn;
  }

  /// Returns the combination that `text` describes.
  static Combination parse(const std::string& text) {
    Combination parsed;
    std::istringstream words(text);
    for (std::string word; words >> word;) {
      const auto equals = word.find('=');
      parsed.set(word.substr(0, equals), word.substr(std::min(equals, word.size() - 1) + 1));
    }
    return parsed;
  }

  /// Returns the settings that are not defaults.
  std::string text() const {
    std::string text;
    for (const Setting& setting : all_settings()) {
      if (has(setting.name)) text += setting.name + '=' + values_.at(setting.name) + ' ';
    }
    return text;
  }

  const std::string& operator[](const std::string& name) const { return values_.at(name); }
  int64_t number(const std::string& name) const { return std::stoll(values_.at(name)); }
  bool is(const std::string& name, const std::string& value) const {
    const auto& values = of(name).values;
    TORCH_CHECK(std::count(values.begin(), values.end(), value) > 0, name, " is never ", value);
    return values_.at(name) == value;
  }
  /// Whether the value is not the default.
  bool has(const std::string& name) const { return values_.at(name) != of(name).values.front(); }

  void set(const std::string& name, const std::string& value) {
    values_.at(name) = value;
    is(name, value);
  }
  void reset(const std::string& name) { set(name, of(name).values.front()); }

  /// Whether all conditions in `text` hold: "name=value", "name=value|value", or "name" for any
  /// value that is not the default.
  bool matches(const std::string& text) const {
    std::istringstream words(text);
    for (std::string word; words >> word;) {
      const auto equals = word.find('=');
      const std::string name = word.substr(0, equals);
      if (equals == std::string::npos && !has(name)) return false;
      if (equals == std::string::npos) continue;
      std::istringstream values(word.substr(equals + 1));
      bool is_one = false;
      for (std::string value; std::getline(values, value, '|');) is_one |= is(name, value);
      if (!is_one) return false;
    }
    return true;
  }

  bool has_single_stream() const {
    return is("data", "one_stream") || is("data", "one_stream_with_state");
  }
  bool is_extended() const { return is("cut", "fewer_epochs") || is("cut", "fewer_updates"); }

  /// Returns the smallest combination that still fails: resets each setting that can be reset.
  Combination shrunk(const std::function<bool(const Combination&)>& fails) const {
    Combination smallest = *this;
    for (bool has_shrunk = true; has_shrunk;) {
      has_shrunk = false;
      for (const Setting& setting : all_settings()) {
        if (!smallest.has(setting.name)) continue;
        Combination smaller = smallest;
        smaller.reset(setting.name);
        smaller.make_valid();
        if (!fails(smaller)) continue;
        smallest = smaller;
        has_shrunk = true;
      }
    }
    return smallest;
  }

 private:
  static const Setting& of(const std::string& name) {
    for (const Setting& setting : all_settings()) {
      if (setting.name == name) return setting;
    }
    TORCH_CHECK(false, "there is no setting ", name);
  }

  /// Resets settings that a run rejects, or that make no sense, together with others.
  void make_valid() {
    struct Rule {
      const char* condition;
      const char* reset;
    };
    // The order matters: a rule sees what the rules before it have reset.
    static constexpr Rule kRules[] = {
        {"optimizer=lbfgs",
         "clip_norm clip_value weight_by_batch_size zero_stage second_optimizer "
         "local_sgd skipped_window param_groups"},
        {"optimizer=lbfgs execution=graph", "execution"},
        {"optimizer=lbfgs precision=fp16", "precision"},
        {"communication_hook", "zero_stage local_sgd compression weight_by_batch_size"},
        {"local_sgd", "zero_stage compression weight_by_batch_size"},
        // A static graph uses the same parameters in each update.
        {"static_graph", "frozen skipped_window"},
        // Buffers that differ between ranks are not saved.
        {"model=batch_norm|conv", "broadcast_buffers"},
        {"zero_stage=2|3", "compression"},
        {"zero_stage=3 execution=compiled", "execution"},
        {"zero_stage=2 precision=fp16", "precision"},
        {"execution=graph",
         "weight_by_batch_size second_optimizer activation_checkpoint frozen skipped_window"},
        {"execution=graph order=batch_sampler", "order"},
        {"second_optimizer", "weight_by_batch_size"},
        {"precision=no|bf16", "scale"},
        {"model=linear|batch_norm|dropout", "channels_last"},
        {"model=linear|dropout", "precise_batch_norm"},
        // Batch norm does not accept a batch of one sample.
        {"model=batch_norm samples=15|5 batch_size=2", "samples"},
        {"model=batch_norm samples=5 batch_size=4", "samples"},
        {"evaluation=none",
         "evaluate_every evaluate_before evaluate_now step_evaluation early_stopping save_best "
         "save_predictions"},
        {"evaluation=none schedule=plateau|sequential_plateau|epoch_plateau", "schedule"},
        {"evaluation=none limit_batches=evaluation", "limit_batches"},
        // After a run, the model has the best weights, and so has a state that is saved by hand.
        {"save=by_hand", "save_best"},
        {"step_evaluation=no limit_batches=intermediate", "limit_batches"},
        // Only a callback with a state can repeat an interrupted evaluation.
        {"cut=request_evaluation|throw_evaluation evaluate_now=epoch_start|update_end",
         "evaluate_now"},
        {"data", "order"},
        {"data=reused_memory", "drop_last transform workers"},
        {"data before=find_batch_size", "before"},
        {"order=batch_sampler", "drop_last"},
        // Batch norm does not accept a batch of one sample.
        {"order=batch_sampler model=batch_norm batch_size=2", "order"},
        {"workers=0", "prefetch_factor"},
        // A search or another run reads from a single stream, and a new stream begins elsewhere.
        {"data=one_stream|one_stream_with_state", "before earlier_run"},
        // A shorter run has an evaluation after its last epoch, which the longer one may not have.
        {"cut=fewer_epochs|fewer_updates", "max_num_updates evaluate_every cut_again"},
        // That evaluation may have found the best model.
        {"cut=fewer_updates", "save_best"},
        {"cut=fewer_updates model_ema=saved", "model_ema"},
        {"cut=fewer_epochs|fewer_updates "
         "schedule=cosine|wsd|one_cycle|restarts|linear|tanh|timm",
         "schedule"},
    };
    for (const Rule& rule : kRules) {
      if (!matches(rule.condition)) continue;
      std::istringstream names(rule.reset);
      for (std::string name; names >> name;) reset(name);
    }
  }

  std::map<std::string, std::string> values_;
};

/// Returns the first seed, and the seed after the last one, that LINKBOY_COMBINATIONS asks for.
inline std::pair<int64_t, int64_t> seeds_of_combinations(int64_t from, int64_t to) {
  if (const char* range = std::getenv("LINKBOY_COMBINATIONS")) {
    std::istringstream(range) >> from >> to;
  }
  return {from, to};
}

}  // namespace linkboy::testing

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "support/toy.hpp"

namespace linkboy::testing {

/// Lists the virtual methods of Trainer: X(result, name, parameters, arguments, qualifier).
// clang-format off
#define LINKBOY_FOR_EACH_METHOD(X)                                                                 \
  X(void, print, (std::string_view line), (line), )                                                \
  X(DataLoaderOptions, default_train_dataloader_options, (int64_t size), (size), )                 \
  X(DataLoaderOptions, default_eval_dataloader_options, (int64_t size), (size), )                  \
  X(std::shared_ptr<DataLoader>, create_train_dataloader, (const TrainOptions& options),           \
    (options), )                                                                                   \
  X(std::shared_ptr<DataLoader>, create_eval_dataloader, (const EvaluateOptions& options),         \
    (options), )                                                                                   \
  X(void, prepare_model_optimizer_and_dataloaders, (), (), )                                       \
  X(RunConfig, create_run_config, (const TrainOptions& options), (options), )                      \
  X(std::unique_ptr<Scheduler>, create_scheduler, (const TrainOptions& options), (options), )      \
  X(StateDict, state_dict, (), (), const)                                                          \
  X(void, load_state_dict, (const StateDict& state), (state), )                                    \
  X(void, training_run_start, (), (), )                                                            \
  X(void, run_training, (), (), )                                                                  \
  X(void, run_train_epoch, (DataLoader& loader), (loader), )                                       \
  X(void, train_epoch_start, (), (), )                                                             \
  X(void, train_step, (const Batch& batch), (batch), )                                             \
  X(StepOutput, calculate_train_batch_loss, (const Batch& batch), (batch), )                       \
  X(void, backward_step, (const at::Tensor& loss), (loss), )                                       \
  X(void, clip_gradients, (), (), )                                                                \
  X(void, optimizer_step, (), (), )                                                                \
  X(bool, needs_closure, (), (), const)                                                            \
  X(void, scheduler_step, (), (), )                                                                \
  X(void, optimizer_zero_grad, (), (), )                                                           \
  X(void, train_epoch_end, (), (), )                                                               \
  X(void, evaluation_run_start, (), (), )                                                          \
  X(void, run_eval_epoch, (DataLoader& loader, std::string_view metric), (loader, metric), )       \
  X(void, eval_epoch_start, (), (), )                                                              \
  X(void, eval_step, (const Batch& batch), (batch), )                                              \
  X(StepOutput, calculate_eval_batch_loss, (const Batch& batch), (batch), )                        \
  X(c10::IValue, predict_step, (const Batch& batch), (batch), )                                    \
  X(void, eval_epoch_end, (), (), )                                                                \
  X(void, evaluation_run_end, (), (), )                                                            \
  X(void, scheduler_epoch_end, (), (), )                                                           \
  X(void, training_run_epoch_end, (), (), )                                                        \
  X(void, training_run_end, (), (), )
// clang-format on

inline const std::vector<std::string>& trainer_methods() {
#define LINKBOY_METHOD_NAME(result, name, parameters, arguments, qualifier) #name,
  static const std::vector<std::string> all{LINKBOY_FOR_EACH_METHOD(LINKBOY_METHOD_NAME)};
#undef LINKBOY_METHOD_NAME
  return all;
}

/// Calls `before` with the name of each virtual method of Trainer.
class InEveryMethod : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;

  /// How often the method is then called: never, with an empty result, once or twice.
  enum class Act { skip, call, repeat };

#define LINKBOY_IN_METHOD(result, name, parameters, arguments, qualifier)    \
  result name parameters qualifier override {                                \
    const Act act = const_cast<InEveryMethod*>(this)->before(#name);         \
    if (act == Act::skip) return result();                                   \
    if (act == Act::repeat) static_cast<void>(QuietTrainer::name arguments); \
    return QuietTrainer::name arguments;                                     \
  }
  LINKBOY_FOR_EACH_METHOD(LINKBOY_IN_METHOD)
#undef LINKBOY_IN_METHOD

 protected:
  virtual Act before(const std::string& method) = 0;
};

}  // namespace linkboy::testing

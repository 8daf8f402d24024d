#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "linkboy/export.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// Why a run ended.
enum class StopReason { finished, max_steps, early_stop, nan, stop_request };
LINKBOY_ENUM_NAMES(StopReason, finished, max_steps, early_stop, nan, stop_request)

/// "finished", "max_steps", "early_stop", "nan" or "stop_request".
constexpr std::string_view to_string(StopReason reason) { return enum_name(reason); }

/// Thrown by a callback or an overridden step to leave the run at once: the update in progress is
/// dropped, so nothing of the current window reaches the weights. Trainer catches it; the run
/// ends in order (`on_stop_training_error`, `training_run_end`).
///
/// With several processes all of them leave, whichever throws it:
/// - thrown by a callback before the gradients are averaged, it has all drop the update;
/// - thrown by a callback elsewhere, it has all leave where nothing is half done: after the next
///   update, at the end of the epoch's training, or in the evaluation;
/// - thrown by a step, it is an Error on that process, because the others cannot be told in time.
///   Call `Trainer::request_stop` in a step.
///
/// It is a std::exception because autograd carries only these out of a backward pass; a step that
/// catches std::exception must throw it again. To leave after the update in progress, call
/// `Trainer::request_stop` instead.
class LINKBOY_API StopTraining : public std::exception {
 public:
  /// @param message  What the run prints when it ends.
  StopTraining(StopReason reason, std::string message)
      : reason_(reason), message_(std::move(message)) {}
  /// With the reason `stop_request`.
  explicit StopTraining(std::string message)
      : StopTraining(StopReason::stop_request, std::move(message)) {}

  /// For `TrainResult::reason`.
  StopReason reason() const { return reason_; }
  /// The message.
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  StopReason reason_;
  std::string message_;
};

}  // namespace linkboy

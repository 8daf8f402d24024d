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

/// Returns "finished", "max_steps", "early_stop", "nan" or "stop_request".
constexpr std::string_view to_string(StopReason reason) { return enum_name(reason); }

/// Thrown by a callback or an overridden step to leave the run immediately. The update in progress
/// is dropped, so nothing from the current accumulation window reaches the weights. Trainer catches
/// it and ends the run in an orderly way (`on_stop_training_error`, `training_run_end`).
///
/// With several processes, all of them leave, whichever throws it:
/// - If a callback throws it before the gradients are averaged, all processes drop the update.
/// - If a callback throws it elsewhere, all processes leave at a point where no work is half done:
///   after the next update, at the end of the epoch's training, or in the evaluation.
/// - If a step throws it, it is an Error on that process, because the others cannot be notified in
///   time. Call `Trainer::request_stop` in a step instead.
///
/// It derives from std::exception because autograd only lets these pass through a backward pass. A
/// step that catches std::exception must rethrow it. To leave after the update in progress, call
/// `Trainer::request_stop` instead.
class LINKBOY_API StopTraining : public std::exception {
 public:
  /// @param message  Text that the run prints when it ends.
  StopTraining(StopReason reason, std::string message)
      : reason_(reason), message_(std::move(message)) {}
  /// Makes one with the reason `stop_request`.
  explicit StopTraining(std::string message)
      : StopTraining(StopReason::stop_request, std::move(message)) {}

  /// The reason, which becomes `TrainResult::reason`.
  StopReason reason() const { return reason_; }
  /// The message.
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  StopReason reason_;
  std::string message_;
};

}  // namespace linkboy

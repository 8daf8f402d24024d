#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "linkboy/export.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// Why a run ended.
enum class StopReason { finished, max_num_updates, early_stop, nan, stop_request };
LINKBOY_ENUM_NAMES(StopReason, finished, max_num_updates, early_stop, nan, stop_request)

/// Returns "finished", "max_num_updates", "early_stop", "nan" or "stop_request".
constexpr std::string_view to_string(StopReason reason) { return enum_name(reason); }

/// Thrown by a callback or an overridden step to end the run immediately. The update in progress is
/// dropped, so the current accumulation window does not affect the weights. Trainer catches the
/// exception and ends the run in an orderly way (`on_stop_training_error`, `training_run_end`). To
/// end the run after the update in progress, call `Trainer::request_stop` instead.
///
/// With several processes, all of them end the run, regardless of which one throws:
/// - If a callback throws it before the gradients are averaged, all processes drop the update.
/// - If a callback throws it elsewhere, all processes end the run at the next point where they
///   agree: after the next update, at the end of the epoch's training, or in the evaluation.
/// - If a step throws it, it becomes an Error on that process, because the others cannot be
///   notified in time. In a step, call `Trainer::request_stop` instead.
///
/// It derives from std::exception because autograd lets only such exceptions pass through a
/// backward pass. A step that catches std::exception must rethrow it.
class LINKBOY_API StopTraining : public std::exception {
 public:
  /// @param message  Text that the run prints when it ends.
  StopTraining(StopReason reason, std::string message)
      : reason_(reason), message_(std::move(message)) {}
  /// Constructs one with the reason `stop_request`.
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

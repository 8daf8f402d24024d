#pragma once

#include <csignal>
#include <optional>
#include <utility>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// Ends the run in order when the process gets SIGINT (Ctrl-C), SIGTERM or SIGUSR1: after the
/// update in progress, as `Trainer::request_stop`; SaveTrainingState then saves the state. A second
/// signal of the same kind ends the process at once. A program that was stopped so should exit with
/// 128 + `signal()`, as if the signal had killed it.
/// The handlers are there only while a run is on, and what was there before comes back; one run of
/// a process at a time can have them.
class LINKBOY_API StopOnSignal : public Callback {
 public:
  ~StopOnSignal() override;

  /// The first signal that came during the present or the last run.
  std::optional<int> signal() const;

  /// @throws Error if another run of this process has the handlers.
  void on_training_run_start(Trainer& trainer) override { install(trainer); }
  void on_evaluation_run_start(Trainer& trainer) override { install(trainer); }
  void on_training_run_end(Trainer&) override { remove(); }
  void on_evaluation_run_end(Trainer&) override { remove(); }
  void on_exception(Trainer&, std::exception_ptr) override { remove(); }

 private:
  void install(Trainer& trainer);
  void remove() noexcept;

  std::vector<std::pair<int, struct sigaction>> replaced_;
};

}  // namespace linkboy

#pragma once

#include <csignal>
#include <optional>
#include <utility>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// Ends the run in order when the process gets SIGINT (Ctrl-C), SIGTERM, SIGUSR1 or SIGHUP: after
/// the update in progress, as `Trainer::request_stop`; SaveTrainingState then saves the state. A
/// program that was stopped so should exit with 128 + `signal()`, as if the signal had killed it.
///
/// Launchers and service managers often send a signal to a whole group, so that a process gets it
/// several times: further signals change nothing. Only a second SIGINT, one second or more after
/// the first, ends the process immediately. Use SIGKILL to end it in any case.
///
/// A signal that its run did not heed stops the next run or evaluation of the process that has a
/// StopOnSignal: it came while SaveTrainingState saved the end of a finished run, for example, or
/// an exception ended the run first.
///
/// While a run is on, SIGPIPE and SIGXFSZ are ignored if the program does not handle them: output
/// that nobody reads any more, or a file that reached its size limit, is an error of that output.
///
/// The handlers are there while a run is on, and what was there before comes back after it. After a
/// run in which a signal came, they stay until this object is destroyed or another run begins, and
/// keep for one second from the first signal on what the program does then, like saving a last
/// checkpoint; a later signal ends the process as if there were none. A signal
/// that the program ignores (SIGHUP under nohup) stays ignored. One run of a process at a time can
/// have the handlers. Called after all other callbacks, so that what these do at the end of a run
/// is protected.
class LINKBOY_API StopOnSignal : public Callback {
 public:
  ~StopOnSignal() override;

  /// The first signal that came during the present or the last run.
  std::optional<int> signal() const;

  /// @throws Error if another run of this process has the handlers.
  void on_training_run_start(Trainer& trainer) override { install(trainer); }
  void on_evaluation_run_start(Trainer& trainer) override { install(trainer); }
  void on_prediction_run_start(Trainer& trainer) override {
    if (!is_installed_) install(trainer);  // a prediction within a run is a part of it
  }
  void on_run_exit(Trainer& trainer) override { end_run(trainer); }

 protected:
  Phase default_phase() const override { return Phase::last; }

 private:
  void install(Trainer& trainer);
  void end_run(Trainer& trainer);
  void release() noexcept;
  void restore_handlers() noexcept;
  void remove() noexcept;

  std::vector<std::pair<int, struct sigaction>> replaced_;
  bool is_installed_ = false;
};

}  // namespace linkboy

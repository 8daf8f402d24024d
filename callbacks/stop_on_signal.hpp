#pragma once

#include <csignal>
#include <optional>
#include <utility>
#include <vector>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

/// Ends the run in an orderly way when the process receives SIGINT (Ctrl-C), SIGTERM, SIGUSR1 or
/// SIGHUP: after the update in progress, as `Trainer::request_stop` does. SaveTrainingState then
/// saves the state. A program that was stopped this way should exit with 128 + `signal()`, as if
/// the signal had killed it.
///
/// Launchers and service managers often send a signal to a whole process group, so that a process
/// receives it several times. Further signals therefore have no effect. Only a second SIGINT, one
/// second or more after the first, ends the process immediately. SIGKILL always ends the process.
///
/// If a signal did not stop its run, it stops the next run, evaluation or prediction of the process
/// that has a StopOnSignal. For example, the signal may have arrived while SaveTrainingState saved
/// the end of a finished run, or an exception may have ended the run first.
///
/// During a run, SIGPIPE and SIGXFSZ are ignored if the program does not handle them. Output to a
/// closed pipe, or to a file that has reached its size limit, then fails with an error instead of
/// ending the process.
///
/// The handlers are installed during a run and replaced by the previous ones after it. If a signal
/// arrived during the run, the handlers stay until this object is destroyed or another run begins.
/// Until one second after the first signal, they protect the program's work after the run, such as
/// saving a last checkpoint; a later signal ends the process with the signal's default action. A
/// signal that the program ignores (SIGHUP under nohup) stays ignored. Only one run of a process at
/// a time can use the handlers. The callback is called after all others, so that their work at the
/// end of a run is protected.
class LINKBOY_API StopOnSignal : public Callback {
 public:
  ~StopOnSignal() override;

  /// Returns the first signal that this process received during the current or last run. If it
  /// received none, returns the signal of another rank that ended the last training run, or nullopt
  /// if there was none. So all ranks end with the same status, and a launcher that restarts failed
  /// processes does not take some of them for finished.
  std::optional<int> signal() const;

  /// @throws Error if another run of this process uses the handlers.
  /// @{
  void on_training_run_start(Trainer& trainer) override { install(trainer); }
  void on_evaluation_run_start(Trainer& trainer) override { install(trainer); }
  void on_prediction_run_start(Trainer& trainer) override {
    if (!is_installed_) install(trainer);  // a prediction within a run is a part of it
  }
  /// @}
  void on_training_run_end(Trainer& trainer) override;
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
  int signal_of_any_rank_ = 0;  // that ended the run; 0 if there is none
};
/// Makes a StopOnSignal.
inline constexpr Maker<StopOnSignal> stop_on_signal{};

}  // namespace linkboy

// Converts a position in an epoch if a run resumes with other batch sizes or numbers of ranks.

#include "accelerator/resume_position.hpp"

#include "linkboy/error.hpp"

namespace linkboy {
namespace {

constexpr const char* kSamples = "samples_per_micro_step";
constexpr const char* kMicroSteps = "micro_steps_per_epoch";

}  // namespace

void save_resume_position(StateDict& state, const DataLoader& loader, int64_t num_processes) {
  state.set(kSamples, loader.batch_size() * num_processes);
  state.set(kMicroSteps, loader.size());
}

int64_t micro_step_in_this_run(const StateDict& state, const DataLoader& loader,
                               const Accelerator& accelerator, int64_t accumulation_steps,
                               const std::string& whose) {
  const int64_t saved = state.get_int("micro_step");
  if (saved == 0 || !state.contains(kSamples)) return saved;
  // The last batch may be short; the number of samples is then not a multiple of the batch size.
  const int64_t num_here = loader.size();
  if (state.contains(kMicroSteps) && saved == state.get_int(kMicroSteps)) return num_here;
  int64_t num_samples = 0;
  const int64_t samples_then = state.get_int(kSamples);
  LINKBOY_CHECK(
      saved > 0 && samples_then > 0 && !__builtin_mul_overflow(saved, samples_then, &num_samples),
      whose, " was saved after ", saved, " micro-steps of ", samples_then,
      " samples; both must be positive and within the range of a run. Use another state.");
  const int64_t here = loader.batch_size() * accelerator.num_processes();
  const int64_t micro_steps = num_samples / here;
  if (micro_steps >= num_here) return num_here;
  // A run that resumed inside an accumulation window would lack the gradients of the window's first
  // micro-steps.
  const int64_t micro_step = micro_steps - micro_steps % accumulation_steps;
  const int64_t num_repeated = num_samples - micro_step * here;
  if (num_repeated > 0) {
    accelerator.log(
        LogLevel::warning,
        c10::str(whose, " was saved in mid-epoch, after ", num_samples,
                 " samples, where no update of this run ends: one has ", accumulation_steps, " x ",
                 loader.batch_size(), " samples on each of ", accelerator.num_processes(),
                 " ranks. The last ", num_repeated, " samples are trained a second time."));
  }
  return micro_step;
}

}  // namespace linkboy

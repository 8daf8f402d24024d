// Converts a position in an epoch if a run resumes with other batch sizes or numbers of ranks.

#include "accelerator/resume_position.hpp"

#include <algorithm>

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
                               int64_t num_processes, int64_t accumulation_steps,
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
  const int64_t here = loader.batch_size() * num_processes;
  LINKBOY_CHECK(num_samples % here == 0, whose, " was saved in mid-epoch, after ", num_samples,
                " samples, but batches of ", loader.batch_size(), " on ", num_processes,
                " processes do not end there. Resume with ", samples_then,
                " samples per micro-step on all processes together, or a divisor of that.");
  const int64_t micro_step = std::min(num_samples / here, num_here);
  // A run that resumed inside an accumulation window would lack the gradients of the window's first
  // micro-steps.
  LINKBOY_CHECK(micro_step % accumulation_steps == 0 || micro_step == num_here, whose,
                " was saved in mid-epoch, after ", micro_step,
                " batches of this run, where no accumulation window of ", accumulation_steps,
                " batches ends. Set gradient_accumulation_steps to a divisor of ", micro_step, ".");
  return micro_step;
}

}  // namespace linkboy

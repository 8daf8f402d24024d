#pragma once

#include <cstdint>
#include <string>

#include "linkboy/accelerator.hpp"
#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/data/data_loader.hpp"

namespace linkboy {

/// Adds the number of samples per micro-step (over all processes) and the number of micro-steps per
/// epoch to a state, for `micro_step_in_this_run`.
void save_resume_position(StateDict& state, const DataLoader& loader, int64_t num_processes);

/// Returns the saved "micro_step" of `state`, converted to micro-steps of this run, which may have
/// more processes, larger batches or longer accumulation windows than the run that saved it. If
/// none of this run's accumulation windows ends at that position, this run starts at the end of the
/// last one before it, and rank 0 warns that some samples are trained a second time.
/// @param whose  The name of the state in messages.
/// @throws Error if the saved position is outside of the range of a run.
int64_t micro_step_in_this_run(const StateDict& state, const DataLoader& loader,
                               const Accelerator& accelerator, int64_t accumulation_steps,
                               const std::string& whose);

}  // namespace linkboy

#pragma once

#include "linkboy/run/run_config.hpp"

namespace linkboy::testing {

/// Returns the configuration of a run of ten epochs with ten updates each, without evaluation.
inline RunConfig ten_by_ten() {
  RunConfig config;
  config.num_epochs = 10;
  config.num_updates_per_epoch = 10;
  config.max_num_updates = 100;
  config.num_train_batches_per_epoch = 20;
  return config;
}

}  // namespace linkboy::testing

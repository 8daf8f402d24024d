#pragma once

#include <linkboy/callback.hpp>
#include <linkboy/callbacks/stop_on_signal.hpp>
#include <linkboy/model.hpp>
#include <memory>
#include <string>

#include "options.hpp"
#include "report.hpp"

namespace fashion_mnist {

/// What watches and steers the run: linkboy's default callbacks, with the progress asked for, the
/// accuracy, and what the options name.
///
/// @param report  Null for none.
/// @throws linkboy::cli::UsageError if an option names what is not there.
linkboy::CallbackList make_callbacks(const Options& options, const linkboy::Model& model,
                                     std::shared_ptr<Report> report,
                                     std::shared_ptr<linkboy::StopOnSignal> stop_on_signal);

/// The callbacks of `--callbacks`, each with its options and their defaults below it.
std::string list_callbacks();

/// Finds out whether `make_callbacks` would understand the texts of `--callbacks`, and whether they
/// name what the program has already.
/// @throws linkboy::cli::UsageError if not.
void check_callbacks(const Options& options);

}  // namespace fashion_mnist

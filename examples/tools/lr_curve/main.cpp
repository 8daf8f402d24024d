// Prints and draws a schedule, without a training run.

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/optim/adamw.h>

#include <cstdio>
#include <fstream>

#include <linkboy/cli.hpp>
#include <linkboy/error.hpp>
#include <linkboy/run/run_config.hpp>
#include <linkboy/schedulers/curves.hpp>
#include <linkboy/schedulers/scheduler_factory.hpp>

#include "chart.hpp"
#include "curve.hpp"

namespace lr_curve {
namespace {

namespace cli = linkboy::cli;

struct Options {
  cli::NamedSettings scheduler = linkboy::cosine();
  double lr = 0.1;
  double weight_decay = 0.01;
  int64_t epochs = 10;
  int64_t updates_per_epoch = 100;
  std::optional<std::filesystem::path> svg;
  int64_t width = 72;
  int64_t height = 16;
};

std::optional<Options> parse_options(const cli::Arguments& arguments) {
  constexpr int64_t kMaxWidth = 1000;
  Options options;
  cli::CommandLine command_line("lr_curve",
                                "Draws a chart of a schedule's values, update by update.\n"
                                "Exit status: 0 success, 1 error, 2 usage error.");
  command_line.add_group("Schedule")
      .add_named("scheduler", &options.scheduler,
                 {linkboy::scheduler_names(), linkboy::scheduler_options},
                 "The schedule. A plateau schedule stays constant here, since it needs metrics.")
      .add("lr", "X", &options.lr, "Base learning rate.", cli::not_negative())
      .add("weight-decay", "X", &options.weight_decay, "Base weight decay, for field=weight_decay.",
           cli::not_negative())
      .add("epochs", "N", &options.epochs, "Epochs of the run.", cli::at_least(1))
      .add("updates-per-epoch", "N", &options.updates_per_epoch, "Updates in each epoch.",
           cli::at_least(1));
  command_line.add_group("Output")
      .add("svg", "FILE", &options.svg, "Also draws an SVG image.")
      .add("width", "N", &options.width, "Columns of the chart.", cli::in_range(2, kMaxWidth))
      .add("height", "N", &options.height, "Lines of the chart.", cli::in_range(2, kMaxWidth));
  if (!command_line.parse(arguments)) return std::nullopt;
  return options;
}

void run(const Options& options) {
  torch::optim::AdamW optimizer(
      {at::zeros({1})}, torch::optim::AdamWOptions(options.lr).weight_decay(options.weight_decay));
  constexpr int64_t kMaxUpdates = 100'000'000;
  if (options.epochs > kMaxUpdates / options.updates_per_epoch) {
    throw cli::UsageError(fmt::format(
        "{} epochs of {} updates are more than the {} updates that lr_curve can draw. Lower "
        "--epochs or --updates-per-epoch.",
        options.epochs, options.updates_per_epoch, kMaxUpdates));
  }
  linkboy::RunConfig config;
  config.num_epochs = options.epochs;
  config.num_updates_per_epoch = options.updates_per_epoch;
  config.max_num_updates = options.epochs * options.updates_per_epoch;
  config.num_train_batches_per_epoch = options.updates_per_epoch;

  std::vector<Curve> curves;
  try {
    const auto& [name, settings] = options.scheduler;
    const auto scheduler = linkboy::make_scheduler_fn(name, settings)(optimizer, config);
    curves = sample(*scheduler, config.max_num_updates);
  } catch (const linkboy::Error& error) {
    throw cli::UsageError(error.what());
  }
  if (options.svg) {
    std::ofstream file(*options.svg);
    file << svg_chart(curves, options.scheduler.name);
    file.close();
    LINKBOY_CHECK(file, "cannot write ", *options.svg, ". Check the folder and the free space.");
  }
  for (const Curve& curve : curves) {
    std::printf("%s\n", terminal_chart(curve, options.width, options.height).c_str());
  }
  for (auto curve = curves.rbegin(); curve != curves.rend(); ++curve) {
    std::printf("%s\n", summary(*curve).c_str());
  }
}

}  // namespace
}  // namespace lr_curve

int main(int argc, char** argv) {
  return linkboy::cli::run_main(argc, argv, [](const linkboy::cli::Arguments& arguments) {
    if (const auto options = lr_curve::parse_options(arguments)) lr_curve::run(*options);
  });
}

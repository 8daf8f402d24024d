// Trains a network on Fashion-MNIST and tests it. The command line has options for most features of
// linkboy.

#include <torch/nn/modules/loss.h>

#include <linkboy/callbacks/freeze_layers.hpp>
#include <linkboy/callbacks/lambda_callback.hpp>
#include <linkboy/checkpoint/checkpoint.hpp>
#include <linkboy/cli/run.hpp>
#include <linkboy/data/image_transforms.hpp>
#include <linkboy/metrics/classification.hpp>
#include <linkboy/run/optimizers.hpp>
#include <linkboy/run/placeholders.hpp>
#include <linkboy/schedulers/curves.hpp>

#include "idx.hpp"
#include "models.hpp"
#include "report.hpp"

namespace fashion_mnist {
namespace {

namespace cli = linkboy::cli;

struct ModelOptions {
  std::string name = "cnn";
  LINKBOY_FIELDS(name);
  static constexpr cli::FieldHelp kFieldHelp[] = {{"name", "Network: mlp, cnn or resnet18."}};
};

struct DataOptions {
  std::filesystem::path folder = "/usr/share/datasets/fashion-mnist";
  std::optional<int64_t> limit_train;
  std::optional<int64_t> limit_eval;
  bool augment = false;
  LINKBOY_FIELDS(folder, limit_train, limit_eval, augment);
  static constexpr cli::FieldHelp kFieldHelp[] = {
      {"folder", "Folder with the four idx files, gzipped or not."},
      {"limit_train", "Uses only the first N training images."},
      {"limit_eval", "Uses only the first N test images."},
      {"augment", "Whether training images are cropped and mirrored."}};
};

/// Options that this program adds to those of linkboy::cli::run.
struct OwnOptions {
  ReportOptions report;
  std::optional<std::filesystem::path> save_init;
  std::optional<int64_t> freeze_to;
};

linkboy::TensorDataset dataset(const Split& split) { return {split.images, split.labels}; }

cli::RunData make_data(const DataOptions& options) {
  const linkboy::TensorDataset test =
      dataset(load_split(options.folder, "t10k", options.limit_eval));
  cli::RunData data{
      .train_dataset = dataset(load_split(options.folder, "train", options.limit_train)),
      .eval_dataset = test,
      .test_dataset = test};
  if (options.augment) {
    constexpr double kBlack = -kPixelMean / kPixelDeviation;
    data.train_transform =
        linkboy::compose({linkboy::random_crop(kImageSize, {.padding = 2, .fill = {kBlack}}),
                          linkboy::random_horizontal_flip()});
  }
  return data;
}

cli::RunSettings make_defaults() {
  cli::RunSettings defaults;
  defaults.train.num_epochs = 5;
  defaults.train.per_device_batch_size = 128;
  defaults.eval_dataloader.batch_size = 1000;
  defaults.optimizer = linkboy::adamw({.lr = 0.003});
  // Warms up for half an epoch, but for at most half of the run.
  using namespace linkboy::placeholders;
  defaults.scheduler =
      linkboy::cosine({.warmup_updates = min(0.5 * num_updates_per_epoch, num_updates / 2)});
  defaults.metrics = {linkboy::accuracy({.num_classes = kNumClasses})};
  defaults.track_run.name = "fashion_mnist";
  defaults.checkpoint = "fashion_mnist.pt";
  return defaults;
}

void add_options(cli::CommandLine& command_line, OwnOptions& options) {
  command_line.add_group("Report, initial weights and frozen layers")
      .add("report", "FILE", &options.report.path,
           "Writes a report of the run, one JSON object per line.")
      .add_switch("report-updates", &options.report.with_updates,
                  "Also reports each update. To report its gradient norm, set "
                  "--train.gradient_clip_norm, which may be inf.")
      .add("save-init", "FILE", &options.save_init,
           "Writes the model's state dict before the first update.")
      .add("freeze-to", "N", &options.freeze_to,
           "Freezes the network's layers 0 to N, including N.", cli::at_least(0));
  command_line.add_alias("model", "model.name").add_alias("data", "data.folder");
}

linkboy::CallbackList make_callbacks(const OwnOptions& options, const linkboy::Model& model) {
  linkboy::CallbackList callbacks;
  if (options.save_init) {
    const auto write = [path = *options.save_init, model](linkboy::Trainer& trainer) {
      linkboy::run_on_main_process(trainer.accelerator(),
                                   [&] { linkboy::write_checkpoint(path, model.state_dict()); });
    };
    callbacks.push_back(linkboy::lambda_callback({.on_training_run_claim = write}));
  }
  if (options.freeze_to) {
    auto freezer = std::make_shared<linkboy::ModelFreezer>(model);
    freezer->freeze({.to_index = *options.freeze_to});
    callbacks.push_back(linkboy::freeze_layers(std::move(freezer)));
  }
  return callbacks;
}

}  // namespace
}  // namespace fashion_mnist

int main(int argc, char** argv) {
  using namespace fashion_mnist;
  OwnOptions options;
  std::shared_ptr<Report> report;
  cli::RunProgram program{
      .description =
          "Trains a network (mlp, cnn or resnet18) on the 60,000 images of Fashion-MNIST and tests "
          "it on\n10,000 others. Several processes share the work if torchrun, mpirun or srun "
          "starts them.",
      .defaults = make_defaults(),
      .loss_function = torch::nn::CrossEntropyLoss(),
      .add_options = [&](cli::CommandLine& command_line) { add_options(command_line, options); },
      .make_callbacks =
          [&](const cli::RunSettings& settings, const linkboy::Model& model) {
            linkboy::CallbackList callbacks = make_callbacks(options, model);
            if (options.report.path) {
              report = std::make_shared<Report>(options.report,
                                                /*append=*/settings.resume_from.has_value());
              callbacks.push_back(report);
            }
            return callbacks;
          },
      .after_training =
          [&](linkboy::Trainer&, const cli::RunResult& result) {
            if (report) report->end(result);
          }};
  return cli::run(
      argc, argv, [](const ModelOptions& model) { return make_model(model.name); }, make_data,
      std::move(program));
}

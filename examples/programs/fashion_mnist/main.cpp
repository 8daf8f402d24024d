// Trains a network on Fashion-MNIST and tests it: the whole of linkboy in one program.

#include <fmt/format.h>
#include <torch/nn/modules/loss.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <csignal>
#include <cstdlib>
#include <limits>
#include <linkboy/accelerator.hpp>
#include <linkboy/callbacks/fast_dev_run.hpp>
#include <linkboy/callbacks/stop_on_signal.hpp>
#include <linkboy/checkpoint/checkpoint.hpp>
#include <linkboy/cli.hpp>
#include <linkboy/data/image_transforms.hpp>
#include <linkboy/distributed/sync_batch_norm.hpp>
#include <linkboy/error.hpp>
#include <linkboy/trainer.hpp>

#include "callbacks.hpp"
#include "idx.hpp"
#include "models.hpp"
#include "options.hpp"
#include "report.hpp"

namespace fashion_mnist {
namespace {

using linkboy::StopReason;

std::shared_ptr<torch::optim::Optimizer> make_optimizer(std::vector<at::Tensor> parameters,
                                                        const Options& options) {
  using namespace torch::optim;
  if (options.optimizer == "sgd") {
    return std::make_shared<SGD>(parameters, SGDOptions(options.lr)
                                                 .momentum(options.momentum)
                                                 .weight_decay(options.weight_decay.value_or(0.0)));
  }
  if (options.optimizer == "adam") {
    return std::make_shared<Adam>(
        parameters, AdamOptions(options.lr).weight_decay(options.weight_decay.value_or(0.0)));
  }
  return std::make_shared<AdamW>(
      parameters, AdamWOptions(options.lr).weight_decay(options.weight_decay.value_or(0.01)));
}

linkboy::TrainOptions make_train_options(const Options& options, const Split& train,
                                         const Split& test) {
  linkboy::TrainOptions result{
      .train_dataset = linkboy::TensorDataset(train.images, train.labels),
      .num_epochs = options.epochs,
      .eval_dataset = linkboy::TensorDataset(test.images, test.labels),
      .per_device_batch_size = options.batch_size,
      .max_num_updates = options.max_steps,
      .gradient_accumulation_steps = options.gradient_accumulation_steps,
      .gradient_clip_value = options.clip_value,
      .gradient_clip_norm = options.clip_norm,
  };
  // An infinite limit clips nothing, but has the norm measured.
  if (options.report_updates && !options.clip_norm) {
    result.gradient_clip_norm = std::numeric_limits<double>::infinity();
  }
  result.create_scheduler_fn = make_scheduler_fn(options);
  result.allow_changed_schedule_length = options.allow_changed_schedule_length;
  if (options.resume) {
    result.resume_from =
        *options.resume == "latest" ? options.states() / "latest" : *options.resume;
  }
  result.train_dataloader_options.shuffle = !options.no_shuffle;
  result.train_dataloader_options.num_workers = options.workers;
  if (options.augment) {
    constexpr double kBlack = -kPixelMean / kPixelDeviation;
    result.train_dataloader_options.transform =
        linkboy::compose({linkboy::random_crop(28, {.padding = 2, .fill = {kBlack}}),
                          linkboy::random_horizontal_flip()});
  }
  if (options.graph) result.execution_mode = linkboy::ExecutionMode::graph;
  result.eval_dataloader_options.batch_size = options.eval_batch_size;
  result.eval_dataloader_options.num_workers = options.workers;
  return result;
}

/// Share of the test images that the model gets right, or nothing if a signal came.
std::optional<double> test_accuracy(linkboy::Trainer& trainer, const Split& test,
                                    const Options& options) {
  const linkboy::Metrics metrics =
      trainer.evaluate({.dataset = linkboy::TensorDataset(test.images, test.labels),
                        .per_device_batch_size = options.eval_batch_size,
                        .dataloader_options = {.num_workers = options.workers}});
  const auto accuracy = metrics.find("eval_accuracy");
  if (accuracy == metrics.end()) return std::nullopt;
  return accuracy->second;
}

/// Ends the program as if the signal that stopped it had killed it, so that a shell or a scheduler
/// sees why it ended. Of several processes, those end so that got it.
void exit_like(const linkboy::StopOnSignal& stop_on_signal) {
  constexpr int kKilledBySignal = 128;
  if (const auto signal = stop_on_signal.signal()) {
    throw linkboy::cli::ExitStatus{kKilledBySignal + *signal};
  }
}

void run(const Options& options) {
  // Whatever can be wrong should be found before the first update.
  const linkboy::Accelerator accelerator(options.accelerator());
  const bool is_main = accelerator.is_main_process();
  if (is_main) check_outputs(options);
  if (options.threads > 0) torch::set_num_threads(static_cast<int>(options.threads));
  accelerator.set_seed_per_process(options.seed);
  const Split train = load_split(options.data, "train", options.limit_train);
  const Split test = load_split(options.data, "t10k", options.limit_eval);

  linkboy::Model model = make_model(options.model);
  if (options.init) load_weights(model, *options.init, options.init_key);
  if (options.save_init && is_main) {
    linkboy::write_checkpoint(*options.save_init, model.state_dict());
  }
  linkboy::SyncBatchNormHandle synchronised;
  if (options.sync_batchnorm) {
    synchronised = linkboy::convert_sync_batchnorm(model, accelerator.shared_process_group());
  }

  std::shared_ptr<Report> report;
  if (options.report) {
    report =
        std::make_shared<Report>(is_main ? *options.report : "/dev/null", options.report_updates,
                                 /*append=*/options.resume.has_value());
  }
  auto end_report = [&](StopReason reason, std::optional<double> accuracy) {
    if (report) report->write_end(reason, accuracy);
  };

  auto stop_on_signal = std::make_shared<linkboy::StopOnSignal>();
  linkboy::Trainer trainer(model, torch::nn::CrossEntropyLoss(),
                           make_optimizer(model.parameters(), options),
                           {.callbacks = make_callbacks(options, model, report, stop_on_signal),
                            .accelerator = options.accelerator()});
  if (options.checkpoint_to_load) {
    trainer.load_checkpoint(*options.checkpoint_to_load, {.scheduler = false});
    linkboy::set_param_group_field(*trainer.optimizer(), linkboy::ParamGroupField::lr,
                                   {options.lr});
  }
  const linkboy::TrainResult result = trainer.train(make_train_options(options, train, test));
  if (result.reason == StopReason::nan) {
    end_report(result.reason, std::nullopt);
    throw linkboy::Error(c10::str("the loss became NaN or infinite after ", result.num_updates,
                                  " updates; no checkpoint was saved. Lower --lr, or limit the "
                                  "gradients with --clip-norm."));
  }
  if (trainer.callback_handler().find<linkboy::FastDevRun>()) {
    accelerator.print("checkpoint: none, since fast-dev-run has trained a few batches only");
  } else {
    trainer.save_checkpoint(options.checkpoint(), {{"model", options.model}});
    accelerator.print("checkpoint: " + options.checkpoint().string());
  }

  // Who asked for an end does not wait for a test.
  if (result.reason == StopReason::stop_request) {
    end_report(result.reason, std::nullopt);
    accelerator.print(c10::str("stopped on request after ", result.num_updates, " updates"));
  } else {
    const std::optional<double> accuracy = test_accuracy(trainer, test, options);
    end_report(accuracy ? result.reason : StopReason::stop_request, accuracy);
    if (accuracy) accelerator.print(fmt::format("test accuracy: {:.4f}", *accuracy));
  }
  // When one process has failed, launchers kill the others; none should be writing then.
  accelerator.wait_for_everyone();
  exit_like(*stop_on_signal);
  if (report) report->check();
}

/// The program's name in front of its errors, with the rank if it is one of several processes.
std::string name_in_errors(const std::string& name) {
  for (const char* variable : {"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"}) {
    if (const char* rank = std::getenv(variable)) return c10::str(name, " (rank ", rank, ")");
  }
  return name;
}

}  // namespace
}  // namespace fashion_mnist

int main(int argc, char** argv) {
  // Output that nobody reads any more, and a file that reached its limit, are errors of a write and
  // do not end the program without its state.
  for (const int number : {SIGPIPE, SIGXFSZ}) std::signal(number, SIG_IGN);
  const std::string name = fashion_mnist::name_in_errors("fashion_mnist");
  std::vector<const char*> words{name.c_str()};
  for (int i = 1; i < argc; ++i) words.push_back(argv[i]);
  const auto num_words = static_cast<int>(words.size());
  return linkboy::cli::run_main(num_words, words.data(), [](const auto& arguments) {
    if (const auto options = fashion_mnist::parse_options(arguments)) fashion_mnist::run(*options);
  });
}

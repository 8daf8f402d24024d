// Trains a small GPT on the bytes of a text, and samples a text at the end. The program shows
// batches of named tensors with a mask, a loss per byte, param groups without weight decay, and a
// warm-up.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adamw.h>

#include <cctype>
#include <cmath>

#include <linkboy/accelerator.hpp>
#include <linkboy/callbacks/metric_callback.hpp>
#include <linkboy/callbacks/save_training_state.hpp>
#include <linkboy/cli.hpp>
#include <linkboy/error.hpp>
#include <linkboy/fine_tuning/parameter_groups.hpp>
#include <linkboy/metrics/perplexity.hpp>
#include <linkboy/run/placeholders.hpp>
#include <linkboy/schedulers/curves.hpp>
#include <linkboy/trainer.hpp>

#include "model.hpp"
#include "text.hpp"

namespace byte_gpt {
namespace {

struct Options {
  std::filesystem::path text = "/usr/share/common-licenses/GPL-3";
  int64_t updates = 600;
  int64_t batch_size = 16;
  double lr = 3e-3;
  linkboy::Precision precision = linkboy::Precision::fp32;
  uint64_t seed = 0;
  GptOptions model;
  int64_t sample_bytes = 500;
  double temperature = 0.7;
  std::filesystem::path states = "output/byte_gpt";
  std::optional<int64_t> save_every_updates;
  bool resume = false;
};

class GptTrainer : public linkboy::Trainer {
 public:
  using Trainer::Trainer;

 protected:
  linkboy::StepOutput calculate_train_batch_loss(const linkboy::Batch& batch) override {
    return masked_loss(batch);
  }
  linkboy::StepOutput calculate_eval_batch_loss(const linkboy::Batch& batch) override {
    return masked_loss(batch);
  }

 private:
  linkboy::StepOutput masked_loss(const linkboy::Batch& batch) {
    const at::Tensor logits = model()(batch["tokens"]);
    const at::Tensor losses = torch::nn::functional::cross_entropy(
        logits.flatten(0, 1), batch["targets"].flatten(),
        torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
    const at::Tensor mask = batch["mask"].flatten();
    const at::Tensor num_bytes = mask.sum();
    // A batch's weight in the epoch's mean loss is its number of unmasked bytes, not of rows.
    return {.loss = (losses * mask).sum() / num_bytes,
            .model_outputs = logits,
            .batch_size = num_bytes.item<int64_t>()};
  }
};

/// Returns a callback that measures the perplexity over the unmasked bytes.
std::shared_ptr<linkboy::Callback> make_perplexity() {
  constexpr int64_t kIgnored = -1;
  auto perplexity = linkboy::perplexity({.ignore_index = kIgnored});
  return linkboy::metric_callback(
      linkboy::MetricCollection{{"perplexity", std::move(perplexity)}},
      {.target = [](const linkboy::Batch& batch, const linkboy::StepOutput&) {
        return batch["targets"].masked_fill(batch["mask"].logical_not(), kIgnored);
      }});
}

linkboy::TrainOptions make_train_options(const Options& options, Corpus corpus) {
  linkboy::TrainOptions result{
      .train_dataset = std::move(corpus.train),
      .eval_dataset = std::move(corpus.eval),
      .per_device_batch_size = options.batch_size,
      .collate_fn = pad,
      .max_num_updates = options.updates,
      .gradient_clip_norm = 1.0,
      .create_scheduler_fn = linkboy::cosine(
          {.min_lr_ratio = 0.1, .warmup_updates = 0.1 * linkboy::placeholders::num_updates})};
  if (options.resume) result.resume_from = options.states / "latest";
  return result;
}

/// Samples a text byte by byte. As in training, the context of a paragraph does not include earlier
/// paragraphs.
std::string write_text(linkboy::Trainer& trainer, const Options& options) {
  const at::NoGradGuard no_grad;
  trainer.model().eval();
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  std::string text;
  std::vector<int64_t> context{'\n'};
  while (std::ssize(text) < options.sample_bytes) {
    if (std::ssize(context) > options.model.length) context.erase(context.begin());
    const at::Tensor tokens =
        at::tensor(context, at::kLong).unsqueeze(0).to(trainer.accelerator().device());
    const at::Tensor logits = trainer.model()(tokens)[0][-1].to(at::kCPU, at::kDouble);
    // The largest logit is 0 before the division. Otherwise a low temperature could make several
    // logits infinite, and their softmax NaN.
    const at::Tensor next =
        options.temperature == 0.0
            ? logits.argmax()
            : at::multinomial(at::softmax((logits - logits.max()) / options.temperature, 0), 1,
                              /*replacement=*/false, generator);
    const auto byte = next.item<int64_t>();
    context.push_back(byte);
    // Do not send control codes or incomplete multi-byte characters to a terminal.
    const bool is_shown = byte == '\n' || std::isprint(static_cast<int>(byte)) != 0;
    text += is_shown ? static_cast<char>(byte) : '?';
    if (text.ends_with("\n\n")) context = {'\n'};
  }
  return text;
}

void run(const Options& options) {
  const Corpus corpus = load_corpus(options.text, options.model.length);
  linkboy::Accelerator::set_seed(options.seed);
  Gpt gpt(options.model);
  const auto adamw = torch::optim::AdamWOptions(options.lr).betas({0.9, 0.99});
  const auto optimizer = std::make_shared<torch::optim::AdamW>(
      linkboy::weight_decay_groups(gpt, adamw, {.weight_decay = 0.1}), adamw);

  linkboy::CallbackList callbacks = {make_perplexity()};
  if (options.save_every_updates) {
    callbacks.push_back(linkboy::save_training_state(
        {.directory = options.states, .every_n_updates = options.save_every_updates}));
  }
  GptTrainer trainer(
      gpt, nullptr, optimizer,
      {.callbacks = std::move(callbacks), .accelerator = {.precision = options.precision}});
  const linkboy::TrainResult result = trainer.train(make_train_options(options, corpus));
  LINKBOY_CHECK(result.reason != linkboy::StopReason::nan, "the loss became NaN or infinite after ",
                result.num_updates, " updates. Lower --lr.");

  trainer.print(write_text(trainer, options));
  const double perplexity = trainer.run_history().get_latest_metric("eval_perplexity");
  trainer.print(fmt::format("bits per byte: {:.2f}", std::log2(perplexity)));
}

/// Returns nullopt if `--help` was given.
std::optional<Options> parse_options(const linkboy::cli::Arguments& arguments) {
  namespace cli = linkboy::cli;
  constexpr int64_t kMost = 1 << 16;
  Options options;
  cli::CommandLine command_line("byte_gpt", "Trains a small GPT on the bytes of a text.");
  command_line.add_group("Training")
      .add("text", "FILE", &options.text, "Text to train on; a blank line ends a paragraph.")
      .add("updates", "N", &options.updates, "Number of updates.", cli::at_least(1))
      .add("batch-size", "N", &options.batch_size, "Pieces of text per update.",
           cli::in_range(1, kMost))
      .add("lr", "X", &options.lr, "Peak learning rate.", cli::not_negative())
      .add("precision", "fp32|bf16|fp16", &options.precision, "Mixed precision of the model.")
      .add("seed", "N", &options.seed, "Seed of the weights, the order of pieces and the sample.");
  command_line.add_group("Model")
      .add("length", "N", &options.model.length, "Length of the context in bytes.",
           cli::in_range(1, kMost))
      .add("layers", "N", &options.model.layers, "Transformer blocks.", cli::in_range(1, kMost))
      .add("width", "N", &options.model.width, "Size of the embedding.", cli::in_range(1, kMost))
      .add("heads", "N", &options.model.heads, "Attention heads; must divide the width.",
           cli::in_range(1, kMost));
  command_line.add_group("Output")
      .add("sample-bytes", "N", &options.sample_bytes, "Length of the sampled text in bytes.",
           cli::in_range(0, kMost))
      .add("temperature", "X", &options.temperature,
           "Sampling temperature; 0 always selects the most likely byte.", cli::not_negative())
      .add("save-every-updates", "N", &options.save_every_updates,
           "Saves a training state every N updates.", cli::at_least(1))
      .add("states", "DIR", &options.states, "Folder of the training states.")
      .add_switch("resume", &options.resume, "Resumes from the newest training state, if any.");
  if (!command_line.parse(arguments)) return std::nullopt;
  if (options.model.width % options.model.heads != 0) {
    throw cli::UsageError(c10::str("--heads is ", options.model.heads,
                                   ", which does not divide --width ", options.model.width,
                                   ". Choose a divisor."));
  }
  return options;
}

}  // namespace
}  // namespace byte_gpt

int main(int argc, char** argv) {
  return linkboy::cli::run_main(argc, argv, [](const linkboy::cli::Arguments& arguments) {
    if (const auto options = byte_gpt::parse_options(arguments)) byte_gpt::run(*options);
  });
}

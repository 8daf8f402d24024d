// Two networks that are trained against each other, with a loss and an optimizer each, in one
// Trainer: a GAN that learns eight Gaussians on a circle.

#include <fmt/format.h>
#include <torch/torch.h>

#include <linkboy/callbacks/save_training_state.hpp>
#include <linkboy/cli.hpp>
#include <linkboy/linkboy.hpp>
#include <numbers>
#include <sstream>

namespace gan {
namespace {

constexpr int64_t kNumModes = 8;
constexpr double kRadius = 2.0;
constexpr double kDeviation = 0.2;
constexpr int64_t kNumPoints = 1 << 16;
constexpr int64_t kNoiseSize = 8;

/// The means of the Gaussians, [kNumModes, 2].
at::Tensor mode_centres() {
  const at::Tensor angle = at::arange(kNumModes) * (2.0 * std::numbers::pi / kNumModes);
  return kRadius * at::stack({angle.cos(), angle.sin()}, 1);
}

linkboy::TensorDataset make_points() {
  const at::Tensor mode = at::randint(kNumModes, {kNumPoints}, at::kLong);
  const at::Tensor points = mode_centres().index_select(0, mode);
  return linkboy::TensorDataset({{"points", points + kDeviation * at::randn({kNumPoints, 2})}});
}

torch::nn::Sequential make_mlp(int64_t num_inputs, int64_t num_outputs) {
  constexpr int64_t kWidth = 128;
  return torch::nn::Sequential(torch::nn::Linear(num_inputs, kWidth), torch::nn::ReLU(),
                               torch::nn::Linear(kWidth, kWidth), torch::nn::ReLU(),
                               torch::nn::Linear(kWidth, num_outputs));
}

/// Both networks in one module, so that checkpoints hold both and both go to the device. As a model
/// it is what is wanted in the end: noise [N, kNoiseSize] becomes points [N, 2].
class GanImpl : public torch::nn::Module {
 public:
  GanImpl() {
    register_module("generator", generator);
    register_module("discriminator", discriminator);
  }
  at::Tensor forward(const at::Tensor& noise) { return generator->forward(noise); }

  torch::nn::Sequential generator = make_mlp(kNoiseSize, 2);
  /// Points [N, 2] become the logits [N, 1] of their being real.
  torch::nn::Sequential discriminator = make_mlp(2, 1);
};
TORCH_MODULE(Gan);

/// Keeps an optimizer's state in the training states: the Trainer saves only the optimizer that it
/// was given.
class SaveOptimizer : public linkboy::Callback {
 public:
  explicit SaveOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer)
      : optimizer_(std::move(optimizer)) {}

  linkboy::StateDict state_dict() const override {
    torch::serialize::OutputArchive archive;
    optimizer_->save(archive);
    std::ostringstream stream;
    archive.save_to(stream);
    std::string bytes = stream.str();
    return {{"archive", at::from_blob(bytes.data(), {std::ssize(bytes)}, at::kByte).clone()}};
  }

  void load_state_dict(const linkboy::StateDict& state) override {
    const at::Tensor bytes = state.get_tensor("archive").contiguous();
    torch::serialize::InputArchive archive;
    archive.load_from(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes());
    optimizer_->load(archive);
  }

 private:
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
};

/// `optimizer()` is the generator's; the discriminator's is this class's own business.
class GanTrainer : public linkboy::Trainer {
 public:
  GanTrainer(const Gan& gan, std::shared_ptr<torch::optim::Optimizer> generator_optimizer,
             std::shared_ptr<torch::optim::Optimizer> discriminator_optimizer,
             linkboy::CallbackList callbacks)
      : Trainer(gan, nullptr, std::move(generator_optimizer), {.callbacks = std::move(callbacks)}),
        gan_(gan),
        discriminator_optimizer_(std::move(discriminator_optimizer)) {
    track_loss("loss_discriminator");
    track_loss("loss_generator");
    callback_handler().add(std::make_shared<SaveOptimizer>(discriminator_optimizer_));
  }

 protected:
  linkboy::StepOutput calculate_train_batch_loss(const linkboy::Batch& batch) override {
    const at::Tensor& real = batch["points"];
    const at::Tensor fake = gan_(at::randn({real.size(0), kNoiseSize}, real.options()));

    // One backward pass of the sum gives each network the gradient of its own loss: detach() keeps
    // the generator out of the first, requires_grad the discriminator out of the second.
    const at::Tensor loss_discriminator =
        (at::softplus(-gan_->discriminator->forward(real)) +
         at::softplus(gan_->discriminator->forward(fake.detach())))
            .mean();
    set_discriminator_requires_grad(false);
    const at::Tensor loss_generator = at::softplus(-gan_->discriminator->forward(fake)).mean();
    set_discriminator_requires_grad(true);

    return {.loss = loss_discriminator + loss_generator,
            .model_outputs = fake,
            .batch_size = batch.size(),
            .extras = {{"loss_discriminator", loss_discriminator.detach()},
                       {"loss_generator", loss_generator.detach()}}};
  }

  void optimizer_step() override {
    Trainer::optimizer_step();
    accelerator().optimizer_step(*discriminator_optimizer_);
  }

  void optimizer_zero_grad() override {
    Trainer::optimizer_zero_grad();
    linkboy::Accelerator::zero_grad(*discriminator_optimizer_);
  }

 private:
  void set_discriminator_requires_grad(bool on) {
    for (at::Tensor& parameter : gan_->discriminator->parameters()) parameter.requires_grad_(on);
  }

  Gan gan_;
  std::shared_ptr<torch::optim::Optimizer> discriminator_optimizer_;
};

struct Options {
  int64_t updates = 2500;
  int64_t batch_size = 256;
  double lr = 1e-3;
  uint64_t seed = 0;
  std::optional<std::filesystem::path> states;
};

/// How well `points` [N, 2] cover the Gaussians, as a line of text.
std::string measure(const at::Tensor& points) {
  const auto [distance, mode] = at::cdist(points, mode_centres()).min(1);
  const at::Tensor is_near = distance < 3.0 * kDeviation;
  const at::Tensor counts = at::bincount(mode.masked_select(is_near), {}, kNumModes);
  // A mode counts as covered if it has a fifth of its share.
  const at::Tensor is_covered = counts * (5 * kNumModes) >= points.size(0);
  return fmt::format("modes covered: {} of {}, samples near a mode: {:.1f} %",
                     is_covered.sum().item<int64_t>(), kNumModes,
                     100.0 * is_near.to(at::kDouble).mean().item<double>());
}

void run(const Options& options) {
  linkboy::Accelerator::set_seed(options.seed);
  linkboy::CallbackList callbacks = linkboy::default_callbacks();
  linkboy::TrainOptions train_options{.train_dataset = make_points(),
                                      .per_device_batch_size = options.batch_size,
                                      .max_num_updates = options.updates};
  if (options.states) {
    callbacks.push_back(linkboy::make<linkboy::SaveTrainingState>(
        {.directory = *options.states, .every_n_epochs = 1}));
    train_options.resume_from = *options.states / "latest";
  }
  Gan gan;
  // With Adam's usual momentum of 0.9 the two networks chase each other in circles.
  const auto adam = torch::optim::AdamOptions(options.lr).betas({0.5, 0.999});
  GanTrainer trainer(gan, std::make_shared<torch::optim::Adam>(gan->generator->parameters(), adam),
                     std::make_shared<torch::optim::Adam>(gan->discriminator->parameters(), adam),
                     std::move(callbacks));
  const linkboy::TrainResult result = trainer.train(train_options);
  LINKBOY_CHECK(result.reason != linkboy::StopReason::nan,
                "a loss became NaN or infinite. Lower --lr.");
  const linkboy::TensorDataset noise({{"noise", at::randn({10'000, kNoiseSize})}});
  trainer.print(measure(trainer.predict({.dataset = noise, .per_device_batch_size = 1000})));
}

}  // namespace
}  // namespace gan

int main(int argc, char** argv) {
  return linkboy::cli::run_main(argc, argv, [](const linkboy::cli::Arguments& arguments) {
    namespace cli = linkboy::cli;
    gan::Options options;
    cli::CommandLine command_line("gan", "Trains a GAN on eight Gaussians on a circle.");
    command_line.add_group("Training")
        .add("updates", "N", &options.updates, "Updates of both networks.", cli::at_least(1))
        .add("batch-size", "N", &options.batch_size, "Points per update.", cli::at_least(1))
        .add("lr", "X", &options.lr, "Learning rate of both.", cli::not_negative())
        .add("seed", "N", &options.seed, "Seed of weights, points and noise.")
        .add("states", "DIR", &options.states, "Saves training states there, to go on from.");
    if (command_line.parse(arguments)) gan::run(options);
  });
}

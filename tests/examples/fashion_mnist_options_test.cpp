#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <fstream>
#include <string>
#include <vector>

#include <linkboy/run/run_config.hpp>
#include <linkboy/schedulers/scheduler_factory.hpp>

#include "options.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"

namespace fashion_mnist::fashion_mnist_options_test {
namespace {

TEST(FashionMnistOptionsTest, DefaultsAreTheQuickstart) {
  const Options options = parse_options({}).value();
  EXPECT_EQ(options.model, "cnn");
  EXPECT_EQ(options.optimizer, "adamw");
  EXPECT_EQ(options.lr, 3e-3);
  EXPECT_EQ(options.epochs, 5);
  EXPECT_EQ(options.batch_size, 128);
  EXPECT_EQ(options.scheduler, "cosine");
  EXPECT_EQ(options.warmup_epochs, std::nullopt);
  EXPECT_EQ(options.checkpoint(), "output/fashion_mnist.pt");
}

TEST(FashionMnistOptionsTest, SaveWinsOverOutputDir) {
  EXPECT_EQ(parse_options({"--output-dir", "a"})->checkpoint(), "a/fashion_mnist.pt");
  EXPECT_EQ(parse_options({"--output-dir", "a", "--save", "b.pt"})->checkpoint(), "b.pt");
}

TEST(FashionMnistOptionsTest, RefusesValuesOutOfRange) {
  using linkboy::cli::UsageError;
  for (const char* name : {"--epochs", "--max-steps", "--batch-size", "--eval-batch-size",
                           "--gradient-accumulation-steps", "--limit-train", "--limit-eval"}) {
    EXPECT_EQ(parse_options({name, "1"}).has_value(), true) << name;
    EXPECT_ERROR(parse_options({name, "0"}), std::string(name) + " is '0'; it must be at least 1");
    EXPECT_THROW(parse_options({name, "-1"}), UsageError) << name;
  }
  for (const char* name : {"--lr", "--momentum", "--weight-decay", "--warmup-epochs"}) {
    for (const char* value : {"-0.1", "nan", "inf"}) {
      EXPECT_THROW(parse_options({name, value}), UsageError) << name << value;
    }
  }
  for (const char* name : {"--clip-value", "--clip-norm"}) {
    for (const char* value : {"0", "-1", "nan"}) {
      EXPECT_THROW(parse_options({name, value}), UsageError) << name << value;
    }
  }
  EXPECT_THROW(parse_options({"--threads", "100000"}), UsageError);
  EXPECT_THROW(parse_options({"--model", "vgg"}), UsageError);
}

TEST(FashionMnistOptionsTest, RefusesContradictions) {
  EXPECT_ERROR(parse_options({"--momentum", "0.9"}), "--momentum is 0.9, but adamw has none");
  EXPECT_TRUE(parse_options({"--momentum", "0.9", "--optimizer", "sgd"}).has_value());
  EXPECT_ERROR(parse_options({"--momentum", "5", "--optimizer", "sgd"}), "it must be below 1");
  EXPECT_ERROR(parse_options({"--device", "tpu"}), "it must be auto, cpu, cuda or cuda:N");
  EXPECT_TRUE(parse_options({"--device", "cuda:1"}).has_value());
  EXPECT_ERROR(parse_options({"--callbacks", "freeze:to_index=abc"}), "it must be a whole number");
  EXPECT_ERROR(parse_options({"--keep", "3"}), "none are saved; give --save-every-updates N");
  EXPECT_ERROR(parse_options({"--async-save"}), "none are saved");
  EXPECT_TRUE(parse_options({"--keep", "3", "--save-every-epochs", "1"}).has_value());
  EXPECT_ERROR(parse_options({"--track-every-updates", "3"}), "needs a tracker");
  EXPECT_ERROR(parse_options({"--low-overhead", "--progress", "plain"}), "shows no progress");
  EXPECT_TRUE(parse_options({"--low-overhead", "--progress", "none"}).has_value());
  EXPECT_TRUE(parse_options({"--csv", "/dev/null", "--report", "/dev/null"}).has_value());
  EXPECT_ERROR(parse_options({"--report-updates"}), "--report-updates needs a report");
  EXPECT_ERROR(parse_options({"--report", "a", "--save", "./a"}), "is to be written twice");
}

TEST(FashionMnistOptionsTest, OptionsOfSeveralProcessesReachTheAccelerator) {
  const linkboy::DistributedOptions defaults = parse_options({})->accelerator().distributed;
  EXPECT_EQ(defaults.backend, linkboy::Backend::automatic);
  EXPECT_EQ(defaults.timeout, linkboy::DistributedOptions().timeout);
  EXPECT_EQ(defaults.compression, linkboy::Compression::none);
  EXPECT_FALSE(defaults.find_unused_parameters);
  EXPECT_EQ(defaults.local_sgd_interval, 0);
  const auto chosen = parse_options({"--backend", "gloo", "--timeout", "10", "--compression",
                                     "bf16", "--find-unused-parameters"})
                          ->accelerator()
                          .distributed;
  EXPECT_EQ(chosen.backend, linkboy::Backend::gloo);
  EXPECT_EQ(chosen.timeout, std::chrono::seconds(10));
  EXPECT_EQ(chosen.compression, linkboy::Compression::bf16);
  EXPECT_TRUE(chosen.find_unused_parameters);
  EXPECT_EQ(parse_options({"--local-sgd", "8"})->accelerator().distributed.local_sgd_interval, 8);
  EXPECT_TRUE(parse_options({"--sync-batchnorm"})->sync_batchnorm);

  EXPECT_ERROR(parse_options({"--timeout", "0"}), "--timeout is '0'; it must be 1 to 1000000");
  EXPECT_ERROR(parse_options({"--backend", "mpi"}), "--backend is 'mpi'");
  EXPECT_EQ(parse_options({"--zero", "2"})->accelerator().distributed.zero_stage, 2);
  EXPECT_ERROR(parse_options({"--local-sgd", "8", "--compression", "fp16"}), "are both given");
}

std::vector<double> learning_rates(const linkboy::cli::Arguments& arguments) {
  linkboy::RunConfig config;
  config.num_epochs = 2;
  config.num_updates_per_epoch = 10;
  config.max_num_updates = 20;
  torch::optim::SGD optimizer({torch::zeros({1})}, torch::optim::SGDOptions(1.0));
  const auto scheduler = make_scheduler_fn(*parse_options(arguments))(optimizer, config);
  std::vector<double> values;
  for (int64_t n : {0, 5, 10, 19}) values.push_back(scheduler->values_at(n)[0]);
  return values;
}

TEST(FashionMnistOptionsTest, EverySchedulerIsReachedWithItsOptions) {
  EXPECT_FALSE(make_scheduler_fn(*parse_options({"--scheduler", "none"})));
  for (const std::string& name : linkboy::scheduler_names()) {
    linkboy::cli::Arguments arguments{"--scheduler", name};
    if (name == "multi-step")
      arguments.insert(arguments.end(), {"--scheduler-option", "milestones=3,7"});
    if (name == "exponential")
      arguments.insert(arguments.end(), {"--scheduler-option", "gamma=0.5"});
    EXPECT_EQ(learning_rates(arguments).size(), 4U) << name;
  }
  EXPECT_EQ(learning_rates({"--scheduler", "step", "--scheduler-option", "gamma=0.5",
                            "--scheduler-option", "step_size=num_updates_per_epoch"}),
            (std::vector<double>{1.0, 1.0, 0.5, 0.5}));
}

TEST(FashionMnistOptionsTest, WarmUpGoesWithEveryScheduler) {
  EXPECT_EQ(learning_rates({"--scheduler", "step", "--warmup-epochs", "1"}),
            (std::vector<double>{0.0, 0.5, 1.0, 1.0}));
  EXPECT_EQ(learning_rates({"--scheduler", "none", "--warmup-epochs", "1"}),
            (std::vector<double>{0.0, 0.5, 1.0, 1.0}));
  EXPECT_EQ(learning_rates({})[1], 1.0) << "the cosine warms up for half an epoch";
  EXPECT_LT(learning_rates({"--warmup-epochs", "1"})[1], 0.6);
  EXPECT_EQ(learning_rates({"--scheduler-option", "warmup_updates=0"})[0], 1.0);
}

TEST(FashionMnistOptionsTest, WrongSchedulerOptionsAreWrongUsage) {
  using linkboy::cli::UsageError;
  EXPECT_THROW(parse_options({"--scheduler", "stepp"}), UsageError);
  EXPECT_ERROR(parse_options({"--scheduler", "stepp"}), "one of none, step, multi-step");
  EXPECT_THROW(parse_options({"--scheduler-option", "gamma=1"}), UsageError);
  EXPECT_ERROR(parse_options({"--scheduler-option", "gamma=1"}), "it has num_updates, ");
  EXPECT_ERROR(parse_options({"--scheduler-option", "gamma"}), "it must be key=value");
  EXPECT_ERROR(parse_options({"--scheduler", "none", "--scheduler-option", "a=1"}), "name one");
  EXPECT_ERROR(parse_options({"--warmup-epochs", "1", "--scheduler-option", "warmup_updates=1"}),
               "are both given");
  EXPECT_THROW(learning_rates({"--scheduler", "exponential"}), UsageError);
}

TEST(FashionMnistOptionsTest, FindsOutputsThatCannotBeWritten) {
  const linkboy::TemporaryFolder folder;
  std::ofstream(folder / "file") << "not a folder";
  const std::string bad = (folder / "file" / "x").string();
  const std::string good = (folder / "good.pt").string();
  using Arguments = linkboy::cli::Arguments;
  for (const Arguments& arguments : {Arguments{"--save", bad}, Arguments{"--output-dir", bad},
                                     Arguments{"--save", good, "--save-init", bad},
                                     Arguments{"--save", good, "--report", bad}}) {
    EXPECT_ERROR(check_outputs(*parse_options(arguments)), "file/x");
  }
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"file"}));
}

}  // namespace
}  // namespace fashion_mnist::fashion_mnist_options_test

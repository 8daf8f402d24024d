#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "options.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"

namespace fashion_mnist {
namespace {

TEST(FashionMnistOptionsTest, DefaultsAreTheQuickstart) {
  const Options options = parse_options({}).value();
  EXPECT_EQ(options.model, "cnn");
  EXPECT_EQ(options.optimizer, "adamw");
  EXPECT_EQ(options.lr, 3e-3);
  EXPECT_EQ(options.epochs, 5);
  EXPECT_EQ(options.batch_size, 128);
  EXPECT_EQ(options.scheduler, "cosine");
  EXPECT_EQ(options.warmup_epochs, 0.5);
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
  EXPECT_ERROR(parse_options({"--report-updates"}), "--report-updates needs a report");
  EXPECT_ERROR(parse_options({"--report", "a", "--save", "./a"}), "is to be written twice");
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
}  // namespace fashion_mnist

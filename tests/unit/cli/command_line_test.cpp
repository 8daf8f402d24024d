#include "linkboy/cli/command_line.hpp"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::cli::command_line_test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

/// Has a command line with an option of each kind.
struct CliTest : ::testing::Test {
  CliTest() {
    command_line.add_group("Training")
        .add("epochs", "N", &epochs, "Passes over the data.", at_least(1))
        .add("max-steps", "N", &max_steps, "Updates.", at_least(1))
        .add("lr", "X", &lr, "Learning rate.", not_negative())
        .add("clip", "X", &clip, "Largest norm.", positive())
        .add("threads", "N", &threads, "Threads.", in_range(0, 8))
        .add("seed", "N", &seed, "Seed.")
        .add_switch("no-shuffle", &no_shuffle, "Keeps the order.")
        .add_list("set", "KEY=VALUE", &set, "Settings.")
        .add_choice("model", &model, {"mlp", "cnn"}, "The network.");
    command_line.add_group("Output").add("save", "FILE", &save, "Where to write.");
  }

  bool parse(const Arguments& arguments) { return command_line.parse(arguments, out); }

  /// Parses `arguments`, followed by a config file that contains `text`.
  bool parse_config(const std::string& text, Arguments arguments = {}) {
    std::ofstream(folder / "run.conf") << text;
    arguments.insert(arguments.end(), {"--config", (folder / "run.conf").string()});
    return parse(arguments);
  }

  TemporaryFolder folder;
  std::ostringstream out;
  int64_t epochs = 5;
  std::optional<int64_t> max_steps;
  double lr = 0.25;
  std::optional<double> clip;
  int64_t threads = 0;
  uint64_t seed = 0;
  bool no_shuffle = false;
  std::vector<std::string> set;
  std::string model = "cnn";
  std::optional<std::filesystem::path> save;
  CommandLine command_line{"train", "Trains a model."};
};

#define EXPECT_USAGE_ERROR(statement, substring) EXPECT_ERROR_AS(UsageError, statement, substring)

TEST_F(CliTest, KeepsTheDefaultsOfMissingOptions) {
  EXPECT_TRUE(parse({}));
  EXPECT_EQ(epochs, 5);
  EXPECT_FALSE(max_steps.has_value());
  EXPECT_FALSE(no_shuffle);
}

TEST_F(CliTest, ReadsOptionsOfAllKinds) {
  EXPECT_TRUE(parse({"--epochs", "7", "--max-steps=9", "--lr", "1e-3", "--no-shuffle", "--model",
                     "mlp", "--save", "a b.pt", "--seed", "18446744073709551615"}));
  EXPECT_EQ(epochs, 7);
  EXPECT_EQ(max_steps, 9);
  EXPECT_EQ(lr, 1e-3);
  EXPECT_TRUE(no_shuffle);
  EXPECT_EQ(model, "mlp");
  EXPECT_EQ(save, "a b.pt");
  EXPECT_EQ(seed, 18446744073709551615U);
}

TEST_F(CliTest, HelpShowsGroupsDefaultsAndChoices) {
  EXPECT_FALSE(parse({"--epochs", "7", "--help"}));
  EXPECT_EQ(epochs, 5);
  EXPECT_THAT(out.str(), AllOf(HasSubstr("Trains a model."), HasSubstr("Training:"),
                               HasSubstr("Output:"), HasSubstr("--epochs N (=5)"),
                               HasSubstr("--lr X (=0.25)"), HasSubstr("--model mlp|cnn (=cnn)"),
                               HasSubstr("--save FILE "), HasSubstr("--config FILE")));
}

TEST_F(CliTest, ErrorsSuggestTheClosestOptionOrListAll) {
  EXPECT_USAGE_ERROR(parse({"--epoch", "3"}),
                     "--epoch is not an option of train. Did you mean "
                     "--epochs?");
  EXPECT_USAGE_ERROR(parse({"--something", "3"}),
                     "The options are: --help, --config, --print-config, --epochs");
  EXPECT_USAGE_ERROR(parse({"3"}), "'3' is not an option");
  EXPECT_USAGE_ERROR(parse({"-e"}), "'-e' is not an option");
  EXPECT_USAGE_ERROR(parse({"--", "--epochs"}), "is not an option");
}

TEST_F(CliTest, RefusesAMissingOrUnwantedValue) {
  EXPECT_USAGE_ERROR(parse({"--epochs"}), "--epochs needs a value");
  EXPECT_USAGE_ERROR(parse({"--epochs="}), "--epochs needs a value");
  EXPECT_USAGE_ERROR(parse({"--save", ""}), "--save needs a value");
  EXPECT_USAGE_ERROR(parse({"--save", "--epochs", "3"}), "--save needs a value");
  EXPECT_USAGE_ERROR(parse({"--save", "--epohcs"}), "--save needs a value");
  EXPECT_USAGE_ERROR(parse({"--no-shuffle=true"}), "--no-shuffle does not accept a value");
  EXPECT_USAGE_ERROR(parse({"--lr", "1", "--lr", "2"}), "--lr is set twice");
}

TEST_F(CliTest, RefusesAnInvalidValue) {
  EXPECT_USAGE_ERROR(parse({"--epochs", "abc"}), "--epochs is 'abc'; it must be an integer");
  EXPECT_USAGE_ERROR(parse({"--epochs", "1.5"}), "it must be an integer");
  EXPECT_USAGE_ERROR(parse({"--epochs", "99999999999999999999"}), "it must be an integer");
  EXPECT_USAGE_ERROR(parse({"--seed", "-1"}), "it must be a non-negative integer");
  EXPECT_USAGE_ERROR(parse({"--epochs", "0"}), "--epochs is '0'; it must be at least 1");
  EXPECT_USAGE_ERROR(parse({"--max-steps", "-3"}), "--max-steps is '-3'; it must be at least 1");
  EXPECT_USAGE_ERROR(parse({"--threads", "9"}), "--threads is '9'; it must be 0 to 8");
  EXPECT_USAGE_ERROR(parse({"--lr", "0.1x"}), "--lr is '0.1x'; it must be a number");
  EXPECT_USAGE_ERROR(parse({"--lr", "-1"}), "--lr is '-1'");
  EXPECT_USAGE_ERROR(parse({"--lr", "nan"}), "--lr is 'nan'");
  EXPECT_USAGE_ERROR(parse({"--lr", "inf"}), "it must be a finite number of 0 or more");
  EXPECT_USAGE_ERROR(parse({"--clip", "0"}), "it must be greater than 0");
  EXPECT_USAGE_ERROR(parse({"--clip", "nan"}), "it must be greater than 0");
  EXPECT_USAGE_ERROR(parse({"--model", "vgg"}), "it must be one of mlp, cnn");
}

TEST_F(CliTest, ReadsAConfigFile) {
  EXPECT_TRUE(
      parse_config("# a comment\n\nepochs=7\r\n  lr = 0.5  # another\nno-shuffle=true\n"
                   "save=dir/#1.pt"));
  EXPECT_EQ(epochs, 7);
  EXPECT_EQ(lr, 0.5);
  EXPECT_TRUE(no_shuffle);
  EXPECT_EQ(save, "dir/#1.pt");
}

TEST_F(CliTest, SkipsAByteOrderMark) {
  EXPECT_TRUE(
      parse_config("\xEF\xBB\xBF"
                   "epochs=7\n"));
  EXPECT_EQ(epochs, 7);
}

TEST_F(CliTest, AnAliasSetsItsOptionAndIsShownInTheHelp) {
  command_line.add_alias("passes", "epochs");
  EXPECT_TRUE(parse({"--passes", "7"}));
  EXPECT_EQ(epochs, 7);
  EXPECT_TRUE(parse_config("passes=8\n"));
  EXPECT_EQ(epochs, 8);
  EXPECT_THAT(command_line.help(), HasSubstr("Passes over the data. Also --passes."));
  EXPECT_USAGE_ERROR(parse({"--passes", "1", "--epochs", "2"}), "is set twice");
  EXPECT_ERROR(command_line.add_alias("x", "epoch"),
               "the alias --x refers to --epoch, which is not");
}

struct Inner {
  int64_t width = 1;
  int64_t height = 2;
  LINKBOY_FIELDS(width, height);
};

enum class Kind { small, large };
LINKBOY_ENUM_NAMES(Kind, small, large)

struct Described {
  bool is_deep = true;
  Kind kind = Kind::large;
  std::optional<double> rate{};
  std::chrono::milliseconds wait{5};
  std::filesystem::path folder = "data";
  std::string name = "net";
  LINKBOY_FIELDS(is_deep, kind, rate, wait, folder, name);
  static constexpr FieldHelp kFieldHelp[] = {{"rate", "Share of the samples."},
                                             {"kind", "Kind of the net."}};
};

TEST_F(CliTest, HelpShowsTheKindOfValueOfEachFieldAndItsText) {
  Described options;
  command_line.add_group("Net").add_fields("net", &options);
  EXPECT_THAT(command_line.help(),
              AllOf(HasSubstr("--net.is_deep true|false (=true)"),
                    ContainsRegex("--net.kind small\\|large \\(=large\\) +Kind of the net\\."),
                    ContainsRegex("--net.rate X \\(=none\\) +Share of the samples\\."),
                    HasSubstr("--net.wait TIME (=5ms)"), HasSubstr("--net.folder PATH (=data)"),
                    HasSubstr("--net.name VALUE (=net)")));
}

TEST_F(CliTest, RefusesAHelpTextForAFieldThatDoesNotExist) {
  Inner options;
  const FieldHelp help[] = {{"depth", "Number of layers."}};
  EXPECT_ERROR(command_line.add_group("Net").add_fields("net", &options, help),
               "describe \"net.depth\", which is not an option");
}

TEST_F(CliTest, TheEndOfANameIsEnoughIfItIsUnique) {
  Inner first;
  Inner second;
  command_line.add_group("Inner").add_fields("a.first_one", &first).add_fields("b", &second);
  int64_t depth = 0;
  command_line.add_group("Depth").add("c.depth", "N", &depth, "Depth.");
  EXPECT_TRUE(parse({"--first-one.width=5", "--b.width", "6", "--depth", "7", "--max_steps", "8"}));
  EXPECT_EQ(first.width, 5);
  EXPECT_EQ(second.width, 6);
  EXPECT_EQ(depth, 7);
  EXPECT_EQ(max_steps, 8);
  EXPECT_TRUE(parse_config(R"({"first_one": {"height": 9}})"));
  EXPECT_EQ(first.height, 9);
  EXPECT_USAGE_ERROR(parse({"--width", "1"}),
                     "--width is ambiguous; it may be --a.first_one.width, --b.width.");
  EXPECT_USAGE_ERROR(parse({"--first_on", "1"}),
                     "Options that contain this name: --a.first_one.width, "
                     "--a.first_one.height.");
  EXPECT_USAGE_ERROR(parse({"--depth", "1", "--c.depth", "2"}), "is set twice");
}

TEST_F(CliTest, RefusesTwoDashesWithoutAName) {
  EXPECT_USAGE_ERROR(parse({"--epochs", "3", "--"}), "'--' is not an option");
}

TEST_F(CliTest, TheCommandLineOverridesTheFile) {
  EXPECT_TRUE(parse_config("epochs=7\nlr=0.5\n", {"--epochs", "2"}));
  EXPECT_EQ(epochs, 2);
  EXPECT_EQ(lr, 0.5);
}

TEST_F(CliTest, ErrorsNameTheLineOfAnInvalidConfigFile) {
  EXPECT_USAGE_ERROR(parse_config("lr=1\n\nepochs\n"), "run.conf:3: 'epochs' is not name=value");
  EXPECT_USAGE_ERROR(parse_config("=3\n"), "run.conf:1: '=3' is not name=value");
  EXPECT_USAGE_ERROR(parse_config("lr=1\nepoch=3\n"),
                     "run.conf:2: 'epoch' is not an option of "
                     "train. Did you mean epochs?");
  EXPECT_USAGE_ERROR(parse_config("# c\nepochs=x\n"), "run.conf:2: epochs is 'x'; it must be");
  EXPECT_USAGE_ERROR(parse_config("epochs=0\n"), "run.conf:1: epochs is '0'; it must be at least");
  EXPECT_USAGE_ERROR(parse_config("epochs=0\n", {"--epochs", "1"}), "run.conf:1: epochs is '0'");
  EXPECT_USAGE_ERROR(parse_config("lr=\n"), "run.conf:1: 'lr' needs a value");
  EXPECT_USAGE_ERROR(parse_config("no-shuffle=maybe\n"), "it must be true or false");
  EXPECT_USAGE_ERROR(parse_config("lr=1\nlr=2\n"), "run.conf:2: lr is set twice");
  EXPECT_USAGE_ERROR(parse_config("config=other\n"),
                     "'config' is allowed only on the command line");
}

TEST_F(CliTest, ReadsAConfigFileInJson) {
  EXPECT_TRUE(parse_config(R"(  {"epochs": 7, "lr": 0.5, "no-shuffle": true, "save": "a b.pt",
                             "seed": 18446744073709551615, "set": ["a=1", "b=2"]})",
                           {"--lr", "0.25"}));
  EXPECT_EQ(epochs, 7);
  EXPECT_EQ(lr, 0.25);
  EXPECT_TRUE(no_shuffle);
  EXPECT_EQ(save, "a b.pt");
  EXPECT_EQ(seed, 18446744073709551615U);
  EXPECT_EQ(set, (std::vector<std::string>{"a=1", "b=2"}));
}

TEST_F(CliTest, ErrorsNameTheInvalidOptionOfAJsonConfigFile) {
  EXPECT_USAGE_ERROR(parse_config("{epochs: 7}"),
                     "run.conf: it begins with '{' but is not a JSON object: line 1 is not JSON");
  EXPECT_USAGE_ERROR(parse_config("{\n  \"epochs\": 7,\n  lr: 1\n}"), "line 3 is not JSON");
  EXPECT_USAGE_ERROR(parse_config("{\"epochs\": 7,\n"), "line 2 is not JSON");
  EXPECT_USAGE_ERROR(parse_config("{\"lr\": 1e999}"), "run.conf: it begins with '{' but is not");
  EXPECT_USAGE_ERROR(parse_config(R"({"epoch": 7})"), "Did you mean epochs?");
  EXPECT_USAGE_ERROR(parse_config(R"({"epochs": "x"})"), "run.conf: epochs is 'x'; it must be");
  EXPECT_USAGE_ERROR(parse_config(R"({"epochs": [7, 8]})"), "epochs is '7,8'; it must be");
  EXPECT_USAGE_ERROR(parse_config(R"({"epochs": ""})"), "run.conf: 'epochs' needs a value");
}

TEST_F(CliTest, RefusesAnUnreadableConfigFile) {
  EXPECT_USAGE_ERROR(parse({"--config", (folder / "none").string()}),
                     "cannot read the config file");
  EXPECT_USAGE_ERROR(parse({"--config", folder.path().string()}), "cannot read the config file");
}

struct Outcome {
  int status;
  std::string errors;
};

Outcome run(const std::function<void(const Arguments&)>& body) {
  const char* argv[] = {"/usr/bin/train", "--lr", "1"};
  ::testing::internal::CaptureStderr();
  const int status = run_main(3, argv, body);
  return {status, ::testing::internal::GetCapturedStderr()};
}

TEST(RunMainTest, ReturnsZeroSilentlyOnSuccess) {
  Arguments seen;
  const Outcome outcome = run([&](const Arguments& arguments) { seen = arguments; });
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.errors, "");
  EXPECT_EQ(seen, (Arguments{"--lr", "1"}));
}

TEST(RunMainTest, WrongUsageReturnsTwo) {
  const Outcome outcome = run([](const Arguments&) { throw UsageError("no such option."); });
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.errors, "train: error: no such option.\nSee train --help.\n");
}

TEST(RunMainTest, ErrorsArePrintedWithoutControlCharacters) {
  const Outcome outcome = run([](const Arguments&) { throw Error("line\n\x1b]0;title\x07."); });
  EXPECT_EQ(outcome.errors, "train: error: line\n\\x1b]0;title\\x07.\n");
}

TEST(RunMainTest, AnyOtherExceptionReturnsOne) {
  Outcome outcome = run([](const Arguments&) { throw Error("bad data."); });
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(outcome.errors, "train: error: bad data.\n");
  EXPECT_EQ(run([](const Arguments&) { throw std::runtime_error("x"); }).status, 1);
  EXPECT_EQ(run([](const Arguments&) { throw 3; }).status, 1);
}

TEST(RunMainTest, ShowsNoBacktraceOfLibTorch) {
  const Outcome outcome = run([](const Arguments&) { TORCH_CHECK(false, "wrong shape"); });
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.errors, AllOf(HasSubstr("train: error: wrong shape"), Not(HasSubstr("#1"))));
}

TEST_F(CliTest, AListCollectsItsValuesInOrder) {
  ASSERT_TRUE(parse({"--set", "a=1", "--lr", "1", "--set=b=2=3"}));
  EXPECT_EQ(set, (std::vector<std::string>{"a=1", "b=2=3"}));
  const auto settings = split_settings("set", set);
  ASSERT_EQ(settings.size(), 2U);
  EXPECT_EQ(settings[1], (std::pair<std::string, std::string>("b", "2=3")));
}

TEST_F(CliTest, AListOnTheCommandLineReplacesThatOfTheFile) {
  ASSERT_TRUE(parse_config("set=a=1\nset=b=2\n"));
  EXPECT_EQ(set, (std::vector<std::string>{"a=1", "b=2"}));
  set.clear();
  ASSERT_TRUE(parse_config("set=a=1\nset=b=2\n", {"--set", "c=3"}));
  EXPECT_EQ(set, (std::vector<std::string>{"c=3"}));
}

TEST_F(CliTest, SettingsNeedAKeyAndAValue) {
  EXPECT_USAGE_ERROR(split_settings("set", {"gamma"}), "--set is 'gamma'; it must be key=value.");
  EXPECT_USAGE_ERROR(split_settings("set", {"=3"}), "--set is '=3'; it must be key=value.");
}

}  // namespace
}  // namespace linkboy::cli::command_line_test

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

  void expect_error(const Arguments& arguments, const std::string& message) {
    SCOPED_TRACE(::testing::PrintToString(arguments));
    EXPECT_ERROR_AS(UsageError, parse(arguments), message);
  }
  void expect_config_error(const std::string& text, const std::string& message) {
    SCOPED_TRACE(text);
    EXPECT_ERROR_AS(UsageError, parse_config(text), message);
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
  expect_error({"--epoch", "3"}, "--epoch is not an option of train. Did you mean --epochs?");
  expect_error({"--something", "3"}, "The options are: --help, --config, --print-config, --epochs");
  expect_error({"3"}, "'3' is not an option");
  expect_error({"-e"}, "'-e' is not an option");
  expect_error({"--", "--epochs"}, "is not an option");
  expect_error({"--epochs", "3", "--"}, "'--' is not an option");
}

TEST_F(CliTest, RefusesAMissingOrUnwantedValue) {
  expect_error({"--epochs"}, "--epochs needs a value");
  expect_error({"--epochs="}, "--epochs needs a value");
  expect_error({"--save", ""}, "--save needs a value");
  expect_error({"--save", "--epochs", "3"}, "--save needs a value");
  expect_error({"--save", "--epohcs"}, "--save needs a value");
  expect_error({"--no-shuffle=true"}, "--no-shuffle does not accept a value");
  expect_error({"--lr", "1", "--lr", "2"}, "--lr is set twice");
}

TEST_F(CliTest, RefusesAnInvalidValue) {
  expect_error({"--epochs", "abc"}, "--epochs is 'abc'; it must be an integer");
  expect_error({"--epochs", "1.5"}, "it must be an integer");
  expect_error({"--epochs", "99999999999999999999"}, "it must be an integer");
  expect_error({"--seed", "-1"}, "it must be a non-negative integer");
  expect_error({"--epochs", "0"}, "--epochs is '0'; it must be at least 1");
  expect_error({"--max-steps", "-3"}, "--max-steps is '-3'; it must be at least 1");
  expect_error({"--threads", "9"}, "--threads is '9'; it must be 0 to 8");
  expect_error({"--lr", "0.1x"}, "--lr is '0.1x'; it must be a number");
  expect_error({"--lr", "-1"}, "--lr is '-1'");
  expect_error({"--lr", "nan"}, "--lr is 'nan'");
  expect_error({"--lr", "inf"}, "it must be a finite number of 0 or more");
  expect_error({"--clip", "0"}, "it must be greater than 0");
  expect_error({"--clip", "nan"}, "it must be greater than 0");
  expect_error({"--model", "vgg"}, "it must be one of mlp, cnn");
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
  expect_error({"--passes", "1", "--epochs", "2"}, "is set twice");
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
  expect_error({"--width", "1"}, "--width is ambiguous; it may be --a.first_one.width, --b.width.");
  expect_error({"--first_on", "1"},
               "Options that contain this name: --a.first_one.width, --a.first_one.height.");
  expect_error({"--depth", "1", "--c.depth", "2"}, "is set twice");
}

TEST_F(CliTest, TheCommandLineOverridesTheFile) {
  EXPECT_TRUE(parse_config("epochs=7\nlr=0.5\n", {"--epochs", "2"}));
  EXPECT_EQ(epochs, 2);
  EXPECT_EQ(lr, 0.5);
}

TEST_F(CliTest, ErrorsNameTheLineOfAnInvalidConfigFile) {
  expect_config_error("lr=1\n\nepochs\n", "run.conf:3: 'epochs' is not name=value");
  expect_config_error("=3\n", "run.conf:1: '=3' is not name=value");
  expect_config_error("lr=1\nepoch=3\n",
                      "run.conf:2: 'epoch' is not an option of train. Did you mean epochs?");
  expect_config_error("# c\nepochs=x\n", "run.conf:2: epochs is 'x'; it must be");
  expect_config_error("epochs=0\n", "run.conf:1: epochs is '0'; it must be at least");
  EXPECT_ERROR_AS(UsageError, parse_config("epochs=0\n", {"--epochs", "1"}),
                  "run.conf:1: epochs is '0'");
  expect_config_error("lr=\n", "run.conf:1: 'lr' needs a value");
  expect_config_error("no-shuffle=maybe\n", "it must be true or false");
  expect_config_error("lr=1\nlr=2\n", "run.conf:2: lr is set twice");
  expect_config_error("config=other\n", "'config' is allowed only on the command line");
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
  expect_config_error("{epochs: 7}",
                      "run.conf: it begins with '{' but is not a JSON object: line 1 is not JSON");
  expect_config_error("{\n  \"epochs\": 7,\n  lr: 1\n}", "line 3 is not JSON");
  expect_config_error("{\"epochs\": 7,\n", "line 2 is not JSON");
  expect_config_error("{\"lr\": 1e999}", "run.conf: it begins with '{' but is not");
  expect_config_error(R"({"epoch": 7})", "Did you mean epochs?");
  expect_config_error(R"({"epochs": "x"})", "run.conf: epochs is 'x'; it must be");
  expect_config_error(R"({"epochs": [7, 8]})", "epochs is '7,8'; it must be");
  expect_config_error(R"({"epochs": ""})", "run.conf: 'epochs' needs a value");
  expect_config_error(R"({"epochs": 7, "epochs": 8})", "run.conf: 'epochs' is set twice");
  expect_config_error(R"({"a": {"b": {}, "c": 1}, "a": {}})", "run.conf: 'a' is set twice");
}

TEST(NamedSettingsTest, AJsonObjectHasEachKeyOnce) {
  EXPECT_EQ(NamedSettings::parse(R"({"name": "sgd", "lr": 1})").to_string(), "sgd:lr=1");
  EXPECT_ERROR(NamedSettings::parse(R"({"name": "sgd", "lr": 1, "lr": 2})"), "'lr' is set twice");
}

TEST_F(CliTest, RefusesAnUnreadableConfigFile) {
  expect_error({"--config", (folder / "none").string()}, "cannot read the config file");
  expect_error({"--config", folder.path().string()}, "cannot read the config file");
}

/// The exit status and the errors of a program.
using Outcome = std::pair<int, std::string>;

Outcome run(const std::function<void(const Arguments&)>& body) {
  const char* argv[] = {"/usr/bin/train", "--lr", "1"};
  ::testing::internal::CaptureStderr();
  const int status = run_main(3, argv, body);
  return {status, ::testing::internal::GetCapturedStderr()};
}

template <class Exception>
Outcome outcome_of(const Exception& exception) {
  return run([&](const Arguments&) { throw exception; });
}

TEST(RunMainTest, ReturnsZeroSilentlyOnSuccess) {
  Arguments seen;
  EXPECT_EQ(run([&](const Arguments& arguments) { seen = arguments; }), Outcome(0, ""));
  EXPECT_EQ(seen, (Arguments{"--lr", "1"}));
}

TEST(RunMainTest, WrongUsageReturnsTwo) {
  EXPECT_EQ(outcome_of(UsageError("no such option.")),
            Outcome(2, "train: error: no such option.\nSee train --help.\n"));
}

TEST(RunMainTest, AnyOtherExceptionReturnsOne) {
  EXPECT_EQ(outcome_of(Error("bad data.")), Outcome(1, "train: error: bad data.\n"));
  EXPECT_EQ(outcome_of(std::runtime_error("x")).first, 1);
  EXPECT_EQ(outcome_of(3).first, 1);
}

TEST(RunMainTest, ErrorsArePrintedWithoutControlCharacters) {
  EXPECT_EQ(outcome_of(Error("line\n\x1b]0;title\x07.")),
            Outcome(1, "train: error: line\n\\x1b]0;title\\x07.\n"));
}

TEST(RunMainTest, ShowsNoBacktraceOfLibTorch) {
  const auto [status, errors] = run([](const Arguments&) { TORCH_CHECK(false, "wrong shape"); });
  EXPECT_EQ(status, 1);
  EXPECT_THAT(errors, AllOf(HasSubstr("train: error: wrong shape"), Not(HasSubstr("#1"))));
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
  EXPECT_ERROR_AS(UsageError, split_settings("set", {"gamma"}),
                  "--set is 'gamma'; it must be key=value.");
  EXPECT_ERROR_AS(UsageError, split_settings("set", {"=3"}),
                  "--set is '=3'; it must be key=value.");
}

}  // namespace
}  // namespace linkboy::cli::command_line_test

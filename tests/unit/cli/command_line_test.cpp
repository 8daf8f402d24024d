#include "linkboy/cli/command_line.hpp"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "linkboy/callbacks/early_stopping.hpp"
#include "linkboy/callbacks/fast_dev_run.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/memory_monitor.hpp"
#include "linkboy/callbacks/time_limit.hpp"
#include "linkboy/metrics/classification.hpp"
#include "linkboy/run/optimizers.hpp"
#include "linkboy/schedulers/composite.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "linkboy/tracking/csv_tracker.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::cli::command_line_test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

enum class Size { small, large };
LINKBOY_ENUM_NAMES(Size, small, large)

using Errors = std::vector<std::pair<Arguments, std::string>>;

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
        .add("size", "small|large", &size, "The network.");
    command_line.add_group("Output").add("save", "FILE", &save, "Where to write.");
  }

  bool parse(const Arguments& arguments) { return command_line.parse(arguments, out); }

  /// Parses `arguments`, followed by a config file that contains `text`.
  bool parse_config(const std::string& text, Arguments arguments = {}) {
    std::ofstream(folder / "run.conf") << text;
    arguments.insert(arguments.end(), {"--config", (folder / "run.conf").string()});
    return parse(arguments);
  }

  void expect_errors(const Errors& errors) {
    for (const auto& [arguments, message] : errors) {
      SCOPED_TRACE(::testing::PrintToString(arguments));
      EXPECT_ERROR_AS(UsageError, parse(arguments), message);
    }
  }
  /// The first column contains config files.
  void expect_config_errors(const std::vector<std::pair<std::string, std::string>>& errors) {
    for (const auto& [text, message] : errors) {
      SCOPED_TRACE(text);
      EXPECT_ERROR_AS(UsageError, parse_config(text), "run.conf:" + message);
    }
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
  Size size = Size::large;
  std::optional<std::filesystem::path> save;
  CommandLine command_line{"train", "Trains a model."};
};

TEST_F(CliTest, ReadsOptionsOfAllKindsAndKeepsTheDefaultsOfTheOthers) {
  EXPECT_TRUE(parse({}));
  EXPECT_EQ(epochs, 5);
  EXPECT_FALSE(max_steps.has_value());
  EXPECT_FALSE(no_shuffle);
  EXPECT_TRUE(parse({"--epochs", "7", "--max-steps=9", "--lr", "1e-3", "--no-shuffle", "--size",
                     "small", "--save", "a b.pt", "--seed", "18446744073709551615", "--set", "a=1",
                     "--set=b=2=3", "--clip", "none"}));
  EXPECT_EQ(epochs, 7);
  EXPECT_EQ(max_steps, 9);
  EXPECT_EQ(lr, 1e-3);
  EXPECT_TRUE(no_shuffle);
  EXPECT_EQ(size, Size::small);
  EXPECT_EQ(save, "a b.pt");
  EXPECT_EQ(seed, 18446744073709551615U);
  EXPECT_EQ(set, (std::vector<std::string>{"a=1", "b=2=3"}));
}

TEST_F(CliTest, HelpShowsGroupsDefaultsAndChoices) {
  EXPECT_FALSE(parse({"--epochs", "7", "--help"}));
  EXPECT_EQ(epochs, 5);
  EXPECT_THAT(out.str(),
              AllOf(HasSubstr("Trains a model."), HasSubstr("Training:"), HasSubstr("Output:"),
                    HasSubstr("--epochs N (=5)"), HasSubstr("--lr X (=0.25)"),
                    HasSubstr("--size small|large (=large)"), HasSubstr("--save FILE (=none)"),
                    HasSubstr("--config FILE")));
  EXPECT_THAT(out.str(), Not(HasSubstr("--list"))) << "there is nothing to list";
}

TEST_F(CliTest, ErrorsSayWhatIsWrongAndWhatIsAllowed) {
  expect_errors({
      {{"--epoch", "3"}, "--epoch is not an option of train. Did you mean --epochs?"},
      {{"--something", "3"}, "--something is not an option of train."},
      {{"--shuffl", "3"}, "Options that contain this name: --no-shuffle."},
      {{"--list", "set"}, "--list is not an option of train."},
      {{"3"}, "'3' is not an option"},
      {{"-e"}, "'-e' is not an option"},
      {{"--", "--epochs"}, "'--' is not an option"},
      {{"--epochs", "3", "--"}, "'--' is not an option"},
      {{"--epochs"}, "--epochs needs a value"},
      {{"--epochs="}, "--epochs needs a value"},
      {{"--save", ""}, "--save needs a value"},
      {{"--save", "--epochs", "3"}, "--save needs a value"},
      {{"--save", "--epohcs"}, "--save needs a value"},
      {{"--no-shuffle=true"}, "--no-shuffle does not accept a value"},
      {{"--lr", "1", "--lr", "2"}, "--lr is set twice"},
      {{"--epochs", "abc"}, "--epochs is 'abc'; it must be an integer"},
      {{"--epochs", "1.5"}, "it must be an integer"},
      {{"--epochs", "99999999999999999999"}, "it must be an integer"},
      {{"--seed", "-1"}, "it must be a non-negative integer"},
      {{"--epochs", "0"}, "--epochs is '0'; it must be at least 1"},
      {{"--max-steps", "-3"}, "--max-steps is '-3'; it must be at least 1"},
      {{"--threads", "9"}, "--threads is '9'; it must be 0 to 8"},
      {{"--threads", "-1"}, "--threads is '-1'; it must be 0 to 8"},
      {{"--lr", "0.1x"}, "--lr is '0.1x'; it must be a number"},
      {{"--lr", "-1"}, "--lr is '-1'"},
      {{"--lr", "nan"}, "--lr is 'nan'"},
      {{"--lr", "inf"}, "it must be a finite number of 0 or more"},
      {{"--clip", "0"}, "it must be greater than 0"},
      {{"--clip", "nan"}, "it must be greater than 0"},
      {{"--size", "medium"}, "it must be one of small, large"},
      {{"--config", (folder / "none").string()}, "cannot read the config file"},
      {{"--config", folder.path().string()}, "cannot read the config file"},
  });
}

TEST_F(CliTest, ReadsAConfigFileOfNamesAndValues) {
  EXPECT_TRUE(
      parse_config("\xEF\xBB\xBF# a comment\n\nepochs=7\r\n  lr = 0.5  # another\n"
                   "no-shuffle=true\nsave=a b/#1.pt\nset=a=1\nset=b=2\n"));
  EXPECT_EQ(epochs, 7);
  EXPECT_EQ(lr, 0.5);
  EXPECT_TRUE(no_shuffle);
  EXPECT_EQ(save, "a b/#1.pt") << "a comment begins after a blank";
  EXPECT_EQ(set, (std::vector<std::string>{"a=1", "b=2"}));
}

TEST_F(CliTest, TheCommandLineOverridesTheFile) {
  EXPECT_TRUE(parse_config("epochs=7\nlr=0.5\nset=a=1\n", {"--epochs", "2", "--set", "c=3"}));
  EXPECT_EQ(epochs, 2);
  EXPECT_EQ(lr, 0.5);
  EXPECT_EQ(set, (std::vector<std::string>{"c=3"}));
  EXPECT_ERROR_AS(UsageError, parse_config("epochs=0\n", {"--epochs", "1"}), "epochs is '0'");
}

TEST_F(CliTest, AnAliasSetsItsOptionAndIsShownInTheHelp) {
  command_line.add_alias("passes", "epochs");
  EXPECT_TRUE(parse({"--passes", "7"}));
  EXPECT_EQ(epochs, 7);
  EXPECT_TRUE(parse_config("passes=8\n"));
  EXPECT_EQ(epochs, 8);
  EXPECT_THAT(command_line.help(), HasSubstr("Passes over the data. Also --passes."));
  expect_errors({{{"--passes", "1", "--epochs", "2"}, "is set twice"},
                 {{"--passs", "1"}, "Did you mean --passes?"}});
  EXPECT_ERROR(command_line.add_alias("x", "epoch"),
               "the alias --x refers to --epoch, which is not");
}

struct Inner {
  int64_t width = 1;
  int64_t height = 2;
  LINKBOY_FIELDS(width, height);
};

struct Described {
  bool is_deep = true;
  Size size = Size::large;
  std::optional<double> rate{};
  std::chrono::milliseconds wait{5};
  std::filesystem::path folder = "data";
  std::string name = "net";
  LINKBOY_FIELDS(is_deep, size, rate, wait, folder, name);
  static constexpr FieldHelp kFieldHelp[] = {{"rate", "Share of the samples."},
                                             {"size", "Size of the net."}};
};

struct Misspelt {
  int64_t width = 1;
  LINKBOY_FIELDS(width);
  static constexpr FieldHelp kFieldHelp[] = {{"widht", "Number of neurons."}};
};

TEST_F(CliTest, EachHelpTextBelongsToAField) {
  Misspelt options;
  EXPECT_ERROR_AS(OptionError, command_line.add_group("Net").add_fields("net", &options),
                  "kFieldHelp describes 1 fields, of which LINKBOY_FIELDS has 0");
}

TEST_F(CliTest, TwoOptionsCannotHaveTheSameName) {
  int64_t other = 0;
  command_line.add_group("Other").add("max_steps", "N", &other, "Again.");
  EXPECT_ERROR(parse({}), "there are two options --max_steps; give each its own name");
}

TEST_F(CliTest, HelpShowsTheKindOfValueOfEachFieldAndItsText) {
  Described options;
  command_line.add_group("Net").add_fields("net", &options);
  EXPECT_THAT(command_line.help(),
              AllOf(HasSubstr("--net.is_deep true|false (=true)"),
                    ContainsRegex("--net.size small\\|large \\(=large\\) +Size of the net\\."),
                    ContainsRegex("--net.rate X \\(=none\\) +Share of the samples\\."),
                    HasSubstr("--net.wait TIME (=5ms)"), HasSubstr("--net.folder PATH (=data)"),
                    HasSubstr("--net.name VALUE (=net)")));
}

TEST_F(CliTest, ABoolAloneIsTrue) {
  Described options{.is_deep = false};
  command_line.add_group("Net").add_fields("net", &options);
  EXPECT_TRUE(parse({"--net.is_deep", "--net.name", "a"}));
  EXPECT_TRUE(options.is_deep);
}

TEST_F(CliTest, ABoolMayHaveAValue) {
  Described options;
  command_line.add_group("Net").add_fields("net", &options);
  EXPECT_ERROR_AS(UsageError, parse({"--net.is_deep", "deep"}), "--net.is_deep is 'deep'");
  EXPECT_TRUE(parse({"--net.is_deep", "false"}));
  EXPECT_FALSE(options.is_deep);
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
  expect_errors(
      {{{"--width", "1"}, "--width is ambiguous; it may be --a.first_one.width, --b.width."},
       {{"--first_on", "1"},
        "Options that contain this name: --a.first_one.width, --a.first_one.height."},
       {{"--depth", "1", "--c.depth", "2"}, "is set twice"}});
}

TEST_F(CliTest, ReadsAConfigFileInJson) {
  max_steps = 3;
  EXPECT_TRUE(parse_config(R"(  {"epochs": 7, "lr": 0.5, "no-shuffle": true, "save": "a b.pt",
                             "seed": 18446744073709551615, "set": ["a=1", "b=2"], "max-steps": "none"})",
                           {"--lr", "0.25"}));
  EXPECT_EQ(epochs, 7);
  EXPECT_EQ(lr, 0.25);
  EXPECT_TRUE(no_shuffle);
  EXPECT_EQ(save, "a b.pt");
  EXPECT_EQ(seed, 18446744073709551615U);
  EXPECT_EQ(set, (std::vector<std::string>{"a=1", "b=2"}));
  EXPECT_EQ(max_steps, std::nullopt);
}

TEST_F(CliTest, ErrorsNameTheInvalidOptionOfAConfigFile) {
  expect_config_errors({
      {"lr=1\n\nepochs\n", "3: 'epochs' is not name=value."},
      {"lr=1\nepoch=3\n", "2: 'epoch' is not an option of train. Did you mean epochs?"},
      {"# c\nepochs=x\n", "2: epochs is 'x'; it must be"},
      {"epochs=0\n", "1: epochs is '0'; it must be at least"},
      {"lr=\n", "1: 'lr' needs a value"},
      {"no-shuffle=maybe\n", "1: no-shuffle is 'maybe'; it must be true or false"},
      {"lr=1\nlr=2\n", "2: lr is set twice"},
      {"config=other\n", "1: 'config' is allowed only on the command line"},
      {"[{\"epochs\": 7}]", "1: '[{\"epochs\": 7}]' is not name=value."},
      {"[section]\nepochs=7\n", "1: '[section]' is not name=value."},
      {"{epochs: 7}", " it is not a valid JSON object: "},
      {"{\"lr\": 1e999}", " it is not a valid JSON object: "},
      {R"({"epoch": 7})", " 'epoch' is not an option of train. Did you mean epochs?"},
      {R"({"epochs": "x"})", " epochs is 'x'; it must be"},
      {R"({"epochs": [7, 8]})", " epochs is '7,8'; it must be"},
      {R"({"epochs": ""})", " 'epochs' needs a value"},
      {R"({"epochs": 7, "epochs": 8})", " it is not a valid JSON object: 'epochs' is set twice"},
      {R"({"a": {"b": {}, "c": 1}, "a": {}})", " it is not a valid JSON object: 'a' is set twice"},
  });
  EXPECT_ERROR(parse_config("{\n  \"epochs\": 7,\n  lr: 1\n}"), "line 3");
}

TEST(NamedSettingsTest, AJsonObjectHasEachKeyOnce) {
  EXPECT_EQ(NamedSettings::parse(R"({"name": "sgd", "lr": 1})").to_string(), "sgd:lr=1");
  EXPECT_ERROR(NamedSettings::parse(R"({"name": "sgd", "lr": 1, "lr": 2})"), "'lr' is set twice");
}

TEST(NamedSettingsTest, TextIsSplitBeforeEachKey) {
  EXPECT_EQ(NamedSettings::parse("multi-step:milestones=3,5,gamma=0.5").settings,
            (TextSettings{{"milestones", "3,5"}, {"gamma", "0.5"}}));
  EXPECT_ERROR(NamedSettings::parse("sgd:lr"), "\"lr\" of \"sgd\" is not KEY=VALUE");
  EXPECT_ERROR(NamedSettings::parse("sgd:=1"), "\"=1\" of \"sgd\" is not KEY=VALUE");
  EXPECT_ERROR(NamedSettings::parse(":lr=1"), "it must be NAME[:KEY=VALUE,...]");
}

TEST(NamedSettingsTest, ObjectsOfTheLibraryHaveTheOptionsThatDifferFromTheDefaults) {
  const std::pair<NamedSettings, std::string> cases[] = {
      {adamw({.lr = 0.01, .betas = {0.9, 0.99}}), "adamw:lr=0.01,betas=0.9,0.99"},
      {lbfgs({}), "lbfgs"},
      {cosine({.warmup_updates = 2 * placeholders::num_epochs}),
       "cosine:warmup_updates=(2 * num_epochs)"},
      {by_epoch(step_decay({.gamma = 0.5})), "step:gamma=0.5,by_epoch=true"},
      {early_stopping({.patience = 3}), "early-stopping:patience=3"},
      {time_limit({.max_time = std::chrono::minutes(5)}), "time-limit:max_time=5min"},
      {memory_monitor(), "memory-monitor"},
      {recall_score({.num_classes = 2}), "recall:num_classes=2"},
      {csv_tracker("a.csv", {.append = true}), "csv:append=true,path=a.csv"},
  };
  for (const auto& [named, text] : cases) EXPECT_EQ(named.to_string(), text);
  const char* kNoName = "does not have a name in text";
  EXPECT_ERROR(NamedSettings(lambda_callback({})), kNoName);
  EXPECT_ERROR(NamedSettings(fast_dev_run(2)), kNoName);
  EXPECT_ERROR(NamedSettings{CreateSchedulerFn()}, kNoName);
}

/// The exit status and the errors of a program.
using Outcome = std::pair<int, std::string>;

Outcome run(const std::function<void(const Arguments&)>& body) {
  const char* argv[] = {"/usr/bin/train", "--lr", "1"};
  ::testing::internal::CaptureStderr();
  const int status = run_main(3, argv, body);
  return {status, ::testing::internal::GetCapturedStderr()};
}

TEST(RunMainTest, ReturnsZeroSilentlyOnSuccess) {
  Arguments seen;
  EXPECT_EQ(run([&](const Arguments& arguments) { seen = arguments; }), Outcome(0, ""));
  EXPECT_EQ(seen, (Arguments{"--lr", "1"}));
}

TEST(RunMainTest, TheStatusAndTheMessageDependOnTheException) {
  const auto outcome_of = [](const auto& exception) {
    return run([&](const Arguments&) { throw exception; });
  };
  EXPECT_EQ(outcome_of(UsageError("no such option.")),
            Outcome(2, "train: error: no such option.\nSee train --help.\n"));
  EXPECT_EQ(outcome_of(OptionError("num_epochs is 0.")),
            Outcome(2, "train: error: num_epochs is 0.\nSee train --help.\n"));
  EXPECT_EQ(outcome_of(Error("bad data.")), Outcome(1, "train: error: bad data.\n"));
  EXPECT_EQ(outcome_of(Error("line\n\x1b]0;title\x07.")),
            Outcome(1, "train: error: line\n\\x1b]0;title\\x07.\n"))
      << "control characters are escaped";
  EXPECT_EQ(outcome_of(ExitStatus{7}), Outcome(7, ""));
  EXPECT_EQ(outcome_of(std::runtime_error("x")).first, 1);
  EXPECT_EQ(outcome_of(3).first, 1);
}

TEST(RunMainTest, ShowsNoBacktraceOfLibTorch) {
  const auto [status, errors] = run([](const Arguments&) { TORCH_CHECK(false, "wrong shape"); });
  EXPECT_EQ(status, 1);
  EXPECT_THAT(errors, AllOf(HasSubstr("train: error: wrong shape"), Not(HasSubstr("#1"))));
}

}  // namespace
}  // namespace linkboy::cli::command_line_test

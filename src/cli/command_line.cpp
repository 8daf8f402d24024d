#include "linkboy/cli/command_line.hpp"

#include <algorithm>
#include <boost/program_options.hpp>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <string_view>

#include "linkboy/error.hpp"
#include "linkboy/util/printable.hpp"

namespace linkboy::cli {
namespace {

namespace po = boost::program_options;

constexpr unsigned kHelpWidth = 100;

/// Insertions, deletions and replacements that turn `a` into `b`.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({replaced, row[j] + 1, row[j - 1] + 1}));
    }
  }
  return row.back();
}

std::string strip(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1));
}

/// Only a `#` at the start or after a blank begins a comment, so that "data=/mnt/#1" is a path.
std::string without_comment(const std::string& line) {
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '#' && (i == 0 || line[i - 1] == ' ' || line[i - 1] == '\t')) {
      return line.substr(0, i);
    }
  }
  return line;
}

[[noreturn]] void throw_syntax_error(const po::invalid_command_line_syntax& error) {
  const std::string name = error.get_option_name();
  switch (error.kind()) {
    case po::invalid_syntax::missing_parameter:
    case po::invalid_syntax::empty_adjacent_parameter:
      throw UsageError(name + " needs a value: " + name + " VALUE.");
    case po::invalid_syntax::extra_parameter:
      throw UsageError(name + " takes no value; leave out what follows the '='.");
    default:
      throw UsageError(error.what());
  }
}

void print_error(const std::string& program, const std::string& message,
                 const std::string& advice = "") noexcept {
  std::cout.flush();  // what the program said so far comes first
  // A message may have names from files.
  std::fprintf(stderr, "%s: error: %s\n%s", program.c_str(), printable_message(message).c_str(),
               advice.c_str());
}

/// A program whose output is lost has failed, though it ended well.
void check_standard_output() {
  std::cout.flush();
  LINKBOY_CHECK(std::cout.good() && std::fflush(stdout) == 0 && std::ferror(stdout) == 0,
                "cannot write to standard output. Check where it goes, and the free space there.");
}

/// Returns the status with which `body` ended, if it was not an error.
int status_of(const std::function<void(const Arguments&)>& body, const Arguments& arguments) {
  try {
    body(arguments);
    return 0;
  } catch (const ExitStatus& exit) {
    return exit.status;
  }
}

}  // namespace

int run_main(int argc, const char* const* argv,
             const std::function<void(const Arguments&)>& body) noexcept {
  std::string program = "program";
  try {
    if (argc > 0) program = std::filesystem::path(argv[0]).filename().string();
    const int status = status_of(body, argc > 0 ? Arguments(argv + 1, argv + argc) : Arguments());
    constexpr int kKilledBySignal = 128;  // which may have killed the reader of the output, too
    if (status < kKilledBySignal) check_standard_output();
    return status;
  } catch (const UsageError& error) {
    print_error(program, error.what(), "See " + program + " --help.\n");
    return 2;
  } catch (...) {
    print_error(program, message_of(std::current_exception()));
  }
  return 1;
}

TextSettings split_settings(const std::string& name, const std::vector<std::string>& texts) {
  TextSettings settings;
  for (const std::string& text : texts) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw UsageError("--" + name + " is '" + text + "'; it must be key=value.");
    }
    settings.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return settings;
}

OptionGroup& OptionGroup::add_switch(std::string name, bool* target, std::string help) {
  return add_option(
      {.name = std::move(name),
       .help = std::move(help),
       .is_switch = true,
       .assign = [target](const std::string& text) { *target = from_text<bool>(text); }});
}

OptionGroup& OptionGroup::add_list(std::string name, std::string value_name,
                                   std::vector<std::string>* target, std::string help) {
  return add_option({.name = std::move(name),
                     .value_name = std::move(value_name),
                     .help = std::move(help),
                     .is_list = true,
                     .assign = [target](const std::string& text) { target->push_back(text); }});
}

OptionGroup& OptionGroup::add_choice(std::string name, std::string* target,
                                     std::vector<std::string> choices, std::string help) {
  std::string value_name = c10::Join("|", choices);
  auto check = [choices = std::move(choices)](const std::string& value) -> std::string {
    const bool known = std::find(choices.begin(), choices.end(), value) != choices.end();
    return known ? "" : "one of " + c10::Join(", ", choices);
  };
  return add(std::move(name), std::move(value_name), target, std::move(help), std::move(check));
}

OptionGroup& OptionGroup::add_option(Option option) {
  options_.push_back(std::move(option));
  return *this;
}

CommandLine::CommandLine(std::string program, std::string description)
    : program_(std::move(program)), description_(std::move(description)) {
  OptionGroup& general = add_group("General");
  general.add_switch("help", &help_, "Prints this and exits.");
  general.add("config", "FILE", &config_,
              "Reads further options from FILE: one name=value a line, '#' begins a comment; or a "
              "JSON object. The command line wins over the file.");
}

OptionGroup& CommandLine::add_group(std::string title) {
  return groups_.emplace_back(std::move(title));
}

const CommandLine::Option& CommandLine::find(const std::string& name, const std::string& shown,
                                             const std::string& dashes) const {
  const std::string bare = name.substr(std::min(name.find_first_not_of('-'), name.size()));
  std::size_t closest_distance = std::max<std::size_t>(2, bare.size() / 3) + 1;
  std::string closest;
  std::vector<std::string> all;
  for (const auto& group : groups_) {
    for (const auto& option : group.options_) {
      if (option.name == name) return option;
      all.push_back(dashes + option.name);
      const std::size_t distance = edit_distance(bare, option.name);
      if (distance < closest_distance) {
        closest = all.back();
        closest_distance = distance;
      }
    }
  }
  throw UsageError(shown + " is not an option of " + program_ + "." +
                   (closest.empty() ? " The options are: " + c10::Join(", ", all) + "."
                                    : " Did you mean " + closest + "?"));
}

std::vector<CommandLine::Setting> CommandLine::read_arguments(const Arguments& arguments) const {
  if (std::find(arguments.begin(), arguments.end(), "--") != arguments.end()) {
    throw UsageError("'--' is not an option; all options begin with '--' and a name.");
  }
  po::options_description description;
  for (const auto& group : groups_) {
    for (const auto& option : group.options_) {
      if (option.is_switch) {
        description.add_options()(option.name.c_str(), po::bool_switch());
      } else {
        description.add_options()(option.name.c_str(), po::value<std::string>());
      }
    }
  }

  using Style = po::command_line_style::style_t;
  po::command_line_parser parser(arguments);
  parser.options(description).allow_unregistered();
  parser.style(Style::allow_long | Style::long_allow_adjacent | Style::long_allow_next);
  std::vector<po::option> parsed;
  try {
    parsed = parser.run().options;
  } catch (const po::invalid_command_line_syntax& error) {
    throw_syntax_error(error);
  }

  std::vector<Setting> settings;
  for (const auto& item : parsed) {
    const std::string& name = item.string_key;
    if (name.empty() || item.position_key >= 0) {
      const std::string& token = item.original_tokens.at(0);
      throw UsageError("'" + token + "' is not an option; all options begin with '--'.");
    }
    const Option& option = find(name, "--" + name, "--");
    std::string text = option.is_switch ? "true" : item.value.at(0);
    // Boost lets an option swallow a misspelt one: "--save --reprot".
    const bool is_adjacent = item.original_tokens.at(0).find('=') != std::string::npos;
    if (text.empty() || (!is_adjacent && text.starts_with("--"))) {
      throw UsageError("--" + name + " needs a value: --" + name + " VALUE.");
    }
    settings.push_back({&option, std::move(text), "--" + name});
  }
  return settings;
}

CommandLine::Setting CommandLine::setting_from_file(const std::string& place,
                                                    const std::string& name,
                                                    const std::string& text) const {
  const Option& option = find(name, place + "'" + name + "'", "");
  if (name == "config" || name == "help") {
    throw UsageError(place + "'" + name + "' is for the command line only.");
  }
  if (text.empty()) throw UsageError(place + "'" + name + "' needs a value: " + name + "=VALUE.");
  return {&option, text, place + name};
}

std::vector<CommandLine::Setting> CommandLine::read_config_file(
    const std::filesystem::path& path) const {
  std::error_code ignored;
  std::ifstream file(path);
  if (!file || std::filesystem::is_directory(path, ignored)) {
    throw UsageError("cannot read the config file '" + path.string() +
                     "'; it must be a text file of name=value lines or a JSON object. Check the "
                     "path.");
  }
  std::string content{std::istreambuf_iterator<char>(file), {}};
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (content.starts_with(kByteOrderMark)) content.erase(0, kByteOrderMark.size());
  if (strip(content).starts_with('{')) return read_json(content, path.string() + ": ");

  std::vector<Setting> settings;
  std::istringstream lines(content);
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    const std::string text = strip(without_comment(line));
    if (text.empty()) continue;
    const std::string place = path.string() + ":" + std::to_string(number) + ": ";
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw UsageError(place + "'" + text + "' is not name=value.");
    }
    settings.push_back(
        setting_from_file(place, strip(text.substr(0, equals)), strip(text.substr(equals + 1))));
  }
  return settings;
}

std::vector<CommandLine::Setting> CommandLine::read_json(const std::string& content,
                                                         const std::string& place) const {
  nlohmann::json root;
  try {
    root = nlohmann::json::parse(content);
  } catch (const nlohmann::json::parse_error& error) {
    const auto end =
        content.begin() + static_cast<std::ptrdiff_t>(std::min(error.byte, content.size()));
    throw UsageError(c10::str(place, "its '{' does not begin a whole JSON object: line ",
                              std::count(content.begin(), end, '\n') + 1, " is not JSON."));
  } catch (const nlohmann::json::exception& error) {  // a number that no double holds
    throw UsageError(c10::str(place, "its '{' does not begin a whole JSON object: ", error.what()));
  }
  std::vector<Setting> settings;
  for (const auto& entry : root.items()) {
    const auto values =
        entry.value().is_array() ? entry.value() : nlohmann::json::array({entry.value()});
    for (const auto& value : values) {
      const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
      settings.push_back(setting_from_file(place, entry.key(), text));
    }
  }
  return settings;
}

bool CommandLine::parse(const Arguments& arguments) { return parse(arguments, std::cout); }

bool CommandLine::parse(const Arguments& arguments, std::ostream& out) {
  std::vector<Setting> settings = read_arguments(arguments);
  auto by_name = [](const std::string& name) {
    return [&name](const Setting& setting) { return setting.option->name == name; };
  };
  auto check_unique = [&](const std::vector<Setting>& list) {
    for (auto i = list.begin(); i != list.end(); ++i) {
      if (!i->option->is_list && std::any_of(list.begin(), i, by_name(i->option->name))) {
        throw UsageError(i->origin + " is given a second time; give each option once.");
      }
    }
  };

  if (std::any_of(settings.begin(), settings.end(), by_name("help"))) {
    out << help();
    return false;
  }
  check_unique(settings);
  const auto config = std::find_if(settings.begin(), settings.end(), by_name("config"));
  if (config != settings.end()) {
    std::vector<Setting> from_file = read_config_file(config->text);
    check_unique(from_file);
    std::erase_if(from_file, [&](const Setting& setting) {
      return setting.option->is_list &&
             std::any_of(settings.begin(), settings.end(), by_name(setting.option->name));
    });
    // Also those that lose against the command line, so that a bad line is always found.
    settings.insert(settings.begin(), from_file.begin(), from_file.end());
  }

  for (const auto& [option, text, origin] : settings) {
    try {
      option->assign(text);
    } catch (const Error& error) {
      throw UsageError(wrong_value(origin, text, error));
    }
  }
  return true;
}

std::string CommandLine::help() const {
  std::ostringstream text;
  text << "Usage: " << program_ << " [--name VALUE]...\n" << description_ << "\n";
  // "General" was added first and reads best last.
  std::vector<const OptionGroup*> order;
  for (const auto& group : groups_) order.push_back(&group);
  std::rotate(order.begin(), order.begin() + 1, order.end());
  po::options_description all("", kHelpWidth, kHelpWidth / 2);
  for (const OptionGroup* group : order) {
    po::options_description description(group->title_, kHelpWidth, kHelpWidth / 2);
    for (const auto& option : group->options_) {
      if (option.is_switch) {
        description.add_options()(option.name.c_str(), option.help.c_str());
        continue;
      }
      auto* value = po::value<std::string>()->value_name(option.value_name);
      if (!option.default_text.empty()) value->default_value(option.default_text);
      description.add_options()(option.name.c_str(), value, option.help.c_str());
    }
    all.add(description);
  }
  text << all;
  return text.str();
}

}  // namespace linkboy::cli

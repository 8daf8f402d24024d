// Parses arguments and config files, prints the help, and converts exceptions to exit statuses.

#include "linkboy/cli/command_line.hpp"

#include <algorithm>
#include <boost/program_options.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <sstream>
#include <string_view>

#include "cli/json_text.hpp"
#include "linkboy/error.hpp"
#include "linkboy/util/printable.hpp"

namespace linkboy::cli {
namespace {

namespace po = boost::program_options;

constexpr unsigned kHelpWidth = 100;

/// Returns the number of insertions, deletions and replacements that turn `a` into `b`.
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

/// Option names are equal if they differ only in '-' and '_'.
std::string with_underscores(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

/// Removes a comment. Only a `#` at the start of a line or after a blank begins one, so that
/// "data=/mnt/#1" is a path.
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
      throw UsageError(name + " does not accept a value; remove the '=' and the text after it.");
    default:
      throw UsageError(error.what());
  }
}

void print_error(const std::string& program, const std::string& message,
                 const std::string& advice = "") noexcept {
  std::cout.flush();  // earlier output of the program comes first
  // A message may contain names from files.
  std::fprintf(stderr, "%s: error: %s\n%s", program.c_str(), printable_message(message).c_str(),
               advice.c_str());
}

/// Returns the name with the rank if there are several processes: "train (rank 1)".
std::string name_in_errors(const std::string& program) {
  for (const char* variable : {"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"}) {
    if (const char* rank = std::getenv(variable)) return program + " (rank " + rank + ")";
  }
  return program;
}

/// A program whose output was lost has failed, even if its work succeeded.
void check_standard_output() {
  std::cout.flush();
  LINKBOY_CHECK(std::cout.good() && std::fflush(stdout) == 0 && std::ferror(stdout) == 0,
                "cannot write to standard output. Check its destination and the free space there.");
}

/// Returns the exit status of `body`, unless it throws an error.
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
    constexpr int kKilledBySignal = 128;  // the signal may also have ended the reader of the output
    if (status < kKilledBySignal) check_standard_output();
    return status;
  } catch (const UsageError& error) {
    print_error(name_in_errors(program), error.what(), "See " + program + " --help.\n");
    return 2;
  } catch (...) {
    print_error(name_in_errors(program), message_of(std::current_exception()));
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

std::string text_of_json(const nlohmann::ordered_json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_null()) return "none";
  if (!value.is_array()) return value.dump();
  std::vector<std::string> items;
  for (const auto& item : value) items.push_back(text_of_json(item));
  return c10::Join(",", items);
}

nlohmann::ordered_json parse_json(const std::string& text) {
  std::vector<std::set<std::string>> keys;  // of the objects around the position
  const auto check_keys = [&](int, nlohmann::ordered_json::parse_event_t event,
                              nlohmann::ordered_json& parsed) {
    using Event = nlohmann::ordered_json::parse_event_t;
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key) {
      const auto key = parsed.get<std::string>();
      LINKBOY_CHECK_OPTION(keys.back().insert(key).second, "'", key,
                           "' is set twice in a JSON object; set each key only once.");
    }
    return true;
  };
  return nlohmann::ordered_json::parse(text, check_keys);
}

nlohmann::ordered_json json_of_text(const std::string& text) {
  auto value = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  const bool is_same = (value.is_number() || value.is_boolean()) && value.dump() == text;
  return is_same ? value : nlohmann::ordered_json(text);
}

CommandLine::CommandLine(std::string program, std::string description)
    : program_(std::move(program)), description_(std::move(description)) {
  OptionGroup& general = add_group("General");
  general.add_switch("help", &help_, "Prints this help and exits.");
  general.add("config", "FILE", &config_,
              "File with further options: one name=value per line, with comments after '#', or a "
              "JSON object. The command line overrides it.");
  general.add("list", "OPTION", &list_,
              "Prints the names that OPTION accepts, with their options and defaults, and exits.");
  general.add_switch("print-config", &print_config_,
                     "Prints all options and their values as JSON for --config, and exits.");
}

OptionGroup& CommandLine::add_group(std::string title) {
  return groups_.emplace_back(std::move(title));
}

/// Calls `visit(name, option, key)` for each name of each option.
template <class Visit>
void CommandLine::for_each_option(const Visit& visit) const {
  const bool has_list = names_anything();
  for (const auto& group : groups_) {
    for (const auto& option : group.options_) {
      if (&group == &groups_.front() && option.name == "list" && !has_list) continue;
      visit(option.name, option, "");
      for (const auto& key : option.keys) visit(option.name + "." + key, option, key);
    }
  }
}

CommandLine& CommandLine::add_alias(std::string alias, const std::string& name) {
  bool is_there = false;
  for_each_option([&](const std::string& own, const Option&, const std::string&) {
    is_there = is_there || own == name;
  });
  LINKBOY_CHECK(is_there, "the alias --", alias, " refers to --", name,
                ", which is not an option; add that option first.");
  aliases_.push_back({std::move(alias), name});
  return *this;
}

std::vector<std::string> CommandLine::names_ending_in(const std::string& name) const {
  const std::string end = "." + with_underscores(name);
  std::vector<std::string> names;
  for_each_option([&](const std::string& own, const Option&, const std::string&) {
    if (with_underscores(own).ends_with(end)) names.push_back(own);
  });
  return names;
}

CommandLine::Found CommandLine::find(const std::string& name) const {
  std::string wanted = with_underscores(name);
  for (const auto& [alias, own] : aliases_) {
    if (with_underscores(alias) == wanted) wanted = with_underscores(own);
  }
  const auto find_whole = [&] {
    Found found;
    for_each_option([&](const std::string& own, const Option& option, const std::string& key) {
      if (with_underscores(own) == wanted) found = {&option, key};
    });
    return found;
  };
  Found found = find_whole();
  if (found.option != nullptr) return found;
  const auto names = names_ending_in(name);
  if (names.size() != 1) return {};
  wanted = with_underscores(names[0]);
  return find_whole();
}

CommandLine::Found CommandLine::find(const std::string& name, const std::string& shown,
                                     const std::string& dashes) const {
  if (Found found = find(name); found.option != nullptr) return found;
  if (const auto names = names_ending_in(name); !names.empty()) {
    throw UsageError(shown + " is ambiguous; it may be " + dashes +
                     c10::Join(", " + dashes, names) + ". Use the full name.");
  }
  const std::string bare = name.substr(std::min(name.find_first_not_of('-'), name.size()));
  std::size_t closest_distance = std::max<std::size_t>(2, bare.size() / 3) + 1;
  std::string closest;
  std::vector<std::string> all;
  std::vector<std::string> with_name;
  const auto compare = [&](const std::string& own) {
    const std::size_t distance = edit_distance(bare, own);
    if (distance >= closest_distance) return;
    closest = dashes + own;
    closest_distance = distance;
  };
  for_each_option([&](const std::string& own, const Option&, const std::string& key) {
    compare(own);
    const bool has_name = with_underscores(own).find(with_underscores(bare)) != std::string::npos;
    if (has_name && !bare.empty()) with_name.push_back(dashes + own);
    if (key.empty()) all.push_back(dashes + own);
  });
  for (const auto& alias : aliases_) compare(alias.alias);
  const std::string what = shown + " is not an option of " + program_ + ".";
  if (!closest.empty()) throw UsageError(what + " Did you mean " + closest + "?");
  if (!with_name.empty()) {
    throw UsageError(what + " Options that contain this name: " + c10::Join(", ", with_name) + ".");
  }
  constexpr std::size_t kMostListed = 20;  // more would hide the message
  throw UsageError(
      what + (all.size() > kMostListed ? "" : " The options are: " + c10::Join(", ", all) + "."));
}

std::vector<CommandLine::Setting> CommandLine::read_arguments(const Arguments& arguments) const {
  if (std::find(arguments.begin(), arguments.end(), "--") != arguments.end()) {
    throw UsageError("'--' is not an option; all options begin with '--' and a name.");
  }
  po::options_description description;
  std::set<std::string> described;
  for (const std::string& argument : arguments) {
    if (!argument.starts_with("--")) continue;
    const std::string name = argument.substr(2, argument.find('=') - 2);
    const Option* const option = find(name).option;
    if (option == nullptr || !described.insert(name).second) continue;
    if (option->is_switch) {
      description.add_options()(name.c_str(), po::bool_switch());
    } else {
      description.add_options()(name.c_str(), po::value<std::string>());
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
    const auto [option, key] = find(name, "--" + name, "--");
    std::string text = option->is_switch ? "true" : item.value.at(0);
    // Boost accepts a misspelt option as the value of the previous one: "--save --reprot".
    const bool is_adjacent = item.original_tokens.at(0).find('=') != std::string::npos;
    if (text.empty() || (!is_adjacent && text.starts_with("--"))) {
      throw UsageError("--" + name + " needs a value: --" + name + " VALUE.");
    }
    settings.push_back({option, key, std::move(text), "--" + name});
  }
  return settings;
}

CommandLine::Setting CommandLine::setting_from_file(const std::string& place,
                                                    const std::string& name,
                                                    const std::string& text) const {
  const Found found = find(name, place + "'" + name + "'", "");
  const auto& general = groups_.front().options_;
  if (std::any_of(general.begin(), general.end(),
                  [&](const auto& own) { return &own == found.option; })) {
    throw UsageError(place + "'" + name + "' is allowed only on the command line.");
  }
  if (text.empty()) throw UsageError(place + "'" + name + "' needs a value: " + name + "=VALUE.");
  return {found.option, found.key, text, place + name};
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
  nlohmann::ordered_json root;
  try {
    root = parse_json(content);
  } catch (const OptionError& error) {
    throw UsageError(place + error.what());
  } catch (const nlohmann::json::parse_error& error) {
    const auto end =
        content.begin() + static_cast<std::ptrdiff_t>(std::min(error.byte, content.size()));
    throw UsageError(c10::str(place, "it begins with '{' but is not a JSON object: line ",
                              std::count(content.begin(), end, '\n') + 1, " is not JSON."));
  } catch (const nlohmann::json::exception& error) {  // a number outside of the range of double
    throw UsageError(
        c10::str(place, "it begins with '{' but is not a JSON object: ", error.what()));
  }
  std::vector<Setting> settings;
  const auto read = [&](const auto& self, const std::string& prefix,
                        const nlohmann::ordered_json& object) -> void {
    for (const auto& [member, value] : object.items()) {
      const std::string name = prefix + member;
      const Option* option = find(name).option;
      const bool is_group = value.is_object() && (option == nullptr || !option->is_named);
      if (is_group) {
        self(self, name + ".", value);
      } else if (value.is_array() && (option == nullptr || option->is_list)) {
        for (const auto& item : value) {
          settings.push_back(setting_from_file(place, name, text_of_json(item)));
        }
        if (value.empty()) {
          settings.push_back({find(name, place + "'" + name + "'", "").option, "", "", place + name,
                              /*is_empty_list=*/true});
        }
      } else {
        settings.push_back(setting_from_file(place, name, text_of_json(value)));
      }
    }
  };
  read(read, "", root);
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
      const auto is_same = [&](const Setting& other) {
        return other.option == i->option && other.key == i->key;
      };
      if (!i->option->is_list && std::any_of(list.begin(), i, is_same)) {
        throw UsageError(i->origin + " is set twice; set each option only once.");
      }
    }
  };

  if (std::any_of(settings.begin(), settings.end(), by_name("help"))) {
    out << help();
    return false;
  }
  const auto listed = std::find_if(settings.begin(), settings.end(), by_name("list"));
  if (listed != settings.end() && names_anything()) {
    out << list(listed->text);
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
    // Includes settings that the command line overrides, so that an invalid line is always found.
    settings.insert(settings.begin(), from_file.begin(), from_file.end());
  }

  // Named objects are set before their keys, regardless of their order.
  std::stable_sort(settings.begin(), settings.end(), [](const Setting& a, const Setting& b) {
    return a.key.empty() && !b.key.empty();
  });
  for (const Setting& setting : settings) {
    if (setting.option->is_list) setting.option->clear();
  }
  for (const auto& [option, key, text, origin, is_empty_list] : settings) {
    if (is_empty_list) continue;
    try {
      key.empty() ? option->assign(text) : option->assign_key(key, text);
    } catch (const UsageError&) {
      throw;
    } catch (const Error& error) {
      throw UsageError(wrong_value(origin, text, error));
    }
  }
  for (const auto& group : groups_) {
    for (const auto& option : group.options_) option.check();
  }
  if (!print_config_) return true;
  out << this->config();
  return false;
}

/// Whether `--list` has something to list; otherwise it is not an option.
bool CommandLine::names_anything() const {
  return std::any_of(groups_.begin(), groups_.end(), [](const OptionGroup& group) {
    return std::any_of(group.options_.begin(), group.options_.end(),
                       [](const Option& option) { return option.is_named; });
  });
}

std::string CommandLine::list(const std::string& name) const {
  std::vector<std::string> names;
  for (const auto& group : groups_) {
    for (const auto& option : group.options_) {
      if (!option.choices) continue;
      if (option.name == name) return option.choices();
      names.push_back(option.name);
    }
  }
  throw UsageError("--list is '" + name + "'; it must be one of " + c10::Join(", ", names) + ".");
}

std::string CommandLine::config() const {
  nlohmann::ordered_json root = nlohmann::ordered_json::object();
  for (auto group = groups_.begin() + 1; group != groups_.end(); ++group) {  // not "General"
    for (const auto& option : group->options_) {
      const std::vector<std::string> values = option.values();
      if (!option.is_list && values.at(0).empty()) continue;  // a file cannot set an empty text
      nlohmann::ordered_json* place = &root;
      for (const std::string& part : split_at('.', option.name)) place = &(*place)[part];
      const auto json_of = [&](const std::string& text) {
        return option.is_named ? nlohmann::ordered_json::parse(text) : json_of_text(text);
      };
      if (option.is_list) {
        *place = nlohmann::ordered_json::array();
        for (const std::string& text : values) place->push_back(json_of(text));
      } else {
        *place = json_of(values[0]);
      }
    }
  }
  return root.dump(2) + "\n";
}

/// Returns the option's help with its other names.
std::string CommandLine::help_of(const Option& option) const {
  std::string help = option.help;
  for (const auto& [alias, name] : aliases_) {
    const bool is_key = name.starts_with(option.name + ".") && option.is_named;
    if (name != option.name && !is_key) continue;
    if (!help.empty()) help += ' ';
    help += is_key ? "--" + alias + " is --" + name + "." : "Also --" + alias + ".";
  }
  return help;
}

std::string CommandLine::help() const {
  std::ostringstream text;
  text << "Usage: " << program_ << " [--name VALUE]...\n" << description_ << "\n";
  // "General" was added first but is shown last.
  std::vector<const OptionGroup*> order;
  for (const auto& group : groups_) order.push_back(&group);
  std::rotate(order.begin(), order.begin() + 1, order.end());
  po::options_description all("", kHelpWidth, kHelpWidth / 2);
  for (const OptionGroup* group : order) {
    po::options_description description(group->title_, kHelpWidth, kHelpWidth / 2);
    for (const auto& option : group->options_) {
      if (group == &groups_.front() && option.name == "list" && !names_anything()) continue;
      const std::string help = help_of(option);
      if (option.is_switch) {
        description.add_options()(option.name.c_str(), help.c_str());
        continue;
      }
      auto* value = po::value<std::string>()->value_name(option.value_name);
      if (!option.default_text.empty()) value->default_value(option.default_text);
      description.add_options()(option.name.c_str(), value, help.c_str());
    }
    all.add(description);
  }
  text << all;
  return text.str();
}

}  // namespace linkboy::cli

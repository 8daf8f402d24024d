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
#include <regex>
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

/// Option names are equal if they differ only in '-' and '_'.
std::string with_underscores(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

/// Returns the text without the blanks around it.
std::string stripped(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  return std::string(text.substr(0, text.find_last_not_of(kBlanks) + 1));
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
  for (const char* variable :
       {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK",
        "FLUX_TASK_RANK", "PALS_RANKID", "MV2_COMM_WORLD_RANK", "PMIX_RANK"}) {
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

}  // namespace

int run_main(int argc, const char* const* argv,
             const std::function<void(const Arguments&)>& body) noexcept {
  std::string program = "program";
  const auto end_with_advice = [&](const Error& error) {
    print_error(name_in_errors(program), error.what(), "See " + program + " --help.\n");
    return 2;
  };
  try {
    if (argc > 0) program = std::filesystem::path(argv[0]).filename().string();
    int status = 0;
    try {
      body(argc > 0 ? Arguments(argv + 1, argv + argc) : Arguments());
    } catch (const ExitStatus& exit) {
      status = exit.status;
    }
    constexpr int kKilledBySignal = 128;  // the signal may also have ended the reader of the output
    if (status < kKilledBySignal) check_standard_output();
    return status;
  } catch (const UsageError& error) {
    return end_with_advice(error);
  } catch (const OptionError& error) {
    return end_with_advice(error);
  } catch (...) {
    print_error(name_in_errors(program), message_of(std::current_exception()));
  }
  return 1;
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
              "File with further options: a JSON object, or one name=value per line with comments "
              "after '#'. The command line overrides it.");
  general.add("list", "OPTION", &list_,
              "Prints the names that OPTION accepts, with their options and defaults, and exits.");
  general.add_switch("print-config", &print_config_,
                     "Prints all options and their values as JSON for --config, and exits.");
  for (Option& option : general.options_) option.is_general = true;
}

OptionGroup& CommandLine::add_group(std::string title) {
  return groups_.emplace_back(std::move(title));
}

CommandLine& CommandLine::add_alias(std::string alias, const std::string& name) {
  const auto all = names(/*in_file=*/false);
  LINKBOY_CHECK(
      std::any_of(all.begin(), all.end(), [&](const Name& own) { return own.name == name; }),
      "the alias --", alias, " refers to --", name,
      ", which is not an option; add that option first.");
  aliases_.emplace_back(std::move(alias), name);
  return *this;
}

/// Whether the option is `--list`, but there is nothing to list.
bool CommandLine::is_hidden(const Option& option) const {
  const auto has_names = [](const OptionGroup& group) {
    return std::any_of(group.options_.begin(), group.options_.end(),
                       [](const Option& other) { return other.is_named; });
  };
  return option.is_general && option.name == "list" &&
         std::none_of(groups_.begin(), groups_.end(), has_names);
}

/// Returns the names of all options and keys, without the aliases. "General" is not for files.
std::vector<CommandLine::Name> CommandLine::names(bool in_file) const {
  std::vector<Name> all;
  for (const OptionGroup& group : groups_) {
    for (const Option& option : group.options_) {
      if (option.is_general && (in_file || is_hidden(option))) continue;
      all.push_back({option.name, &option});
      for (const std::string& key : option.keys) {
        all.push_back({option.name + "." + key, &option, key});
      }
    }
  }
  return all;
}

/// Returns the option with this name or alias, or otherwise all whose names end with it.
std::vector<CommandLine::Name> CommandLine::find(std::string name, bool in_file) const {
  name = with_underscores(name);
  for (const auto& [alias, own] : aliases_) {
    if (with_underscores(alias) == name) name = with_underscores(own);
  }
  std::vector<Name> endings;
  for (Name& each : names(in_file)) {
    const std::string own = with_underscores(each.name);
    if (own == name) return {each};
    if (own.ends_with("." + name)) endings.push_back(each);
  }
  return endings;
}

/// Finds the only option that `name` can mean.
/// @param place  The file and ": "; empty for the command line.
/// @throws UsageError that suggests other names if there is no such option.
CommandLine::Name CommandLine::find_one(const std::string& name, const std::string& place) const {
  const bool in_file = !place.empty();
  std::vector<Name> found = find(name, in_file);
  if (found.size() == 1) return found[0];
  const auto shown = [&](const std::string& own) { return (in_file ? "" : "--") + own; };
  const auto listed = [&](const std::vector<Name>& names) {
    std::string text;
    for (const Name& each : names) text += (text.empty() ? "" : ", ") + shown(each.name);
    return text;
  };
  const std::string what = place + (in_file ? "'" + name + "'" : "--" + name) + " is ";
  if (!found.empty()) {
    throw UsageError(what + "ambiguous; it may be " + listed(found) + ". Use the full name.");
  }
  LINKBOY_CHECK_AS(UsageError, !in_file || find(name, /*in_file=*/false).size() != 1, place, "'",
                   name, "' is allowed only on the command line.");
  std::vector<Name> all = names(in_file);
  for (const auto& [alias, own] : aliases_) all.push_back({alias});
  const auto distance = [&](const Name& each) { return edit_distance(name, each.name); };
  const auto closest = std::min_element(all.begin(), all.end(), [&](const Name& a, const Name& b) {
    return distance(a) < distance(b);
  });
  std::string advice;
  if (closest != all.end() && distance(*closest) <= std::max<std::size_t>(2, name.size() / 3)) {
    advice = " Did you mean " + shown(closest->name) + "?";
  } else {
    std::erase_if(all, [&](const Name& each) {
      return with_underscores(each.name).find(with_underscores(name)) == std::string::npos;
    });
    if (!all.empty()) advice = " Options that contain this name: " + listed(all) + ".";
  }
  throw UsageError(what + "not an option of " + program_ + "." + advice);
}

std::vector<CommandLine::Setting> CommandLine::read_arguments(const Arguments& arguments) const {
  std::vector<Setting> settings;
  // cppcheck-suppress StlMissingComparison; the loop compares std::next
  for (auto argument = arguments.begin(); argument != arguments.end(); ++argument) {
    LINKBOY_CHECK_AS(UsageError, argument->starts_with("--") && argument->size() > 2, "'",
                     *argument, "' is not an option; all options begin with '--' and a name.");
    const std::size_t equals = argument->find('=');
    const std::string shown = argument->substr(0, equals);
    const Name name = find_one(shown.substr(2), "");
    std::string text;
    if (name.option->is_switch) {
      LINKBOY_CHECK_AS(UsageError, equals == std::string::npos, shown,
                       " does not accept a value; remove the '=' and the text after it.");
      text = "true";
    } else if (equals != std::string::npos) {
      text = argument->substr(equals + 1);
    } else if (std::next(argument) != arguments.end() && !std::next(argument)->starts_with("--")) {
      text = *++argument;
    } else if (name.option->is_bool) {
      text = "true";
    }
    LINKBOY_CHECK_AS(UsageError, !text.empty(), shown, " needs a value: ", shown, " VALUE.");
    settings.push_back({name, std::move(text), shown});
  }
  return settings;
}

CommandLine::Setting CommandLine::setting_from_file(const std::string& place,
                                                    const std::string& name,
                                                    const std::string& text) const {
  LINKBOY_CHECK_AS(UsageError, !text.empty(), place, "'", name, "' needs a value: ", name,
                   "=VALUE.");
  return {find_one(name, place), text, place + name};
}

std::vector<CommandLine::Setting> CommandLine::read_config_file(
    const std::filesystem::path& path) const {
  std::error_code ignored;
  std::ifstream file(path);
  LINKBOY_CHECK_AS(UsageError, file && !std::filesystem::is_directory(path, ignored),
                   "cannot read the config file '", path.string(),
                   "'; it must be a JSON object or a text file of name=value lines. Check the "
                   "path.");
  std::string content{std::istreambuf_iterator<char>(file), {}};
  if (content.starts_with("\xEF\xBB\xBF")) content.erase(0, 3);  // a byte order mark
  if (path.extension() == ".json" || stripped(content).starts_with('{'))
    return read_json(content, path.string() + ": ");
  // Boost's parser would cut "out/#1" and take a line that begins with "[" for a heading.
  std::vector<Setting> settings;
  std::istringstream lines(content);
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    const std::string text = stripped(std::regex_replace(line, std::regex("(^|\\s)#.*"), ""));
    if (text.empty()) continue;
    const std::string place = c10::str(path.string(), ":", number, ": ");
    const std::size_t equals = text.find('=');
    LINKBOY_CHECK_AS(UsageError, equals != std::string::npos && equals > 0, place, "'", text,
                     "' is not name=value. Each line must be name=value or a comment after '#', or "
                     "the whole file must be a JSON object.");
    settings.push_back(setting_from_file(place, stripped(text.substr(0, equals)),
                                         stripped(text.substr(equals + 1))));
  }
  return settings;
}

std::vector<CommandLine::Setting> CommandLine::read_json(const std::string& content,
                                                         const std::string& place) const {
  nlohmann::ordered_json root;
  try {
    root = parse_json(content);
  } catch (const std::exception& error) {
    throw UsageError(place + "it is not a valid JSON object: " + error.what());
  }
  std::vector<Setting> settings;
  const auto read = [&](const auto& self, const std::string& prefix,
                        const nlohmann::ordered_json& object) -> void {
    for (const auto& [member, value] : object.items()) {
      const std::string name = prefix + member;
      const auto found = find(name, /*in_file=*/true);
      const Option* option = found.size() == 1 ? found[0].option : nullptr;
      if (value.is_object() && (option == nullptr || !option->is_named)) {
        self(self, name + ".", value);
      } else if (value.is_array() && (option == nullptr || option->is_list)) {
        if (value.empty()) settings.push_back({find_one(name, place), std::nullopt, place + name});
        for (const auto& item : value) {
          settings.push_back(setting_from_file(place, name, text_of_json(item)));
        }
      } else {
        settings.push_back(setting_from_file(place, name, text_of_json(value)));
      }
    }
  };
  read(read, "", root);
  return settings;
}

/// Returns whether another setting is of the same option or key.
auto CommandLine::same_as(const Setting& setting) {
  return [&setting](const Setting& other) {
    return other.name.option == setting.name.option && other.name.key == setting.name.key;
  };
}

void CommandLine::check_unique(const std::vector<Setting>& settings) {
  for (auto i = settings.begin(); i != settings.end(); ++i) {
    LINKBOY_CHECK_AS(UsageError,
                     i->name.option->is_list || std::none_of(settings.begin(), i, same_as(*i)),
                     i->origin, " is set twice; set each option only once.");
  }
}

bool CommandLine::parse(const Arguments& arguments) { return parse(arguments, std::cout); }

bool CommandLine::parse(const Arguments& arguments, std::ostream& out) {
  std::set<std::string> taken;
  for (const Name& each : names(/*in_file=*/false)) {
    LINKBOY_CHECK(taken.insert(with_underscores(each.name)).second, "there are two options --",
                  each.name, "; give each its own name.");
  }
  std::vector<Setting> settings = read_arguments(arguments);
  const auto given = [&](const char* name) {
    const auto is_it = [&](const Setting& setting) {
      return setting.name.option->is_general && setting.name.option->name == name;
    };
    const auto found = std::find_if(settings.begin(), settings.end(), is_it);
    return found == settings.end() ? std::nullopt : found->text;
  };
  if (given("help")) {
    out << help();
    return false;
  }
  if (const auto listed = given("list")) {
    out << list(*listed);
    return false;
  }
  check_unique(settings);
  if (const auto path = given("config")) {
    std::vector<Setting> from_file = read_config_file(*path);
    check_unique(from_file);
    std::erase_if(from_file, [&](const Setting& setting) {
      return setting.name.option->is_list &&
             std::any_of(settings.begin(), settings.end(), same_as(setting));
    });
    // Includes settings that the command line overrides, so that an invalid line is always found.
    settings.insert(settings.begin(), from_file.begin(), from_file.end());
  }

  // Named objects are set before their keys, regardless of their order.
  std::stable_partition(settings.begin(), settings.end(),
                        [](const Setting& setting) { return setting.name.key.empty(); });
  for (const Setting& setting : settings) {
    if (setting.name.option->is_list) setting.name.option->clear();
  }
  for (const auto& [name, text, origin] : settings) {
    if (!text) continue;
    try {
      name.key.empty() ? name.option->assign(*text) : name.option->assign_key(name.key, *text);
    } catch (const UsageError&) {
      throw;
    } catch (const Error& error) {
      throw UsageError(wrong_value(origin, *text, error));
    }
  }
  for (const auto& group : groups_) {
    for (const auto& option : group.options_) option.check();
  }
  if (!print_config_) return true;
  out << this->config();
  return false;
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
  for (const auto& group : groups_) {
    for (const auto& option : group.options_) {
      if (option.is_general) continue;
      auto values = nlohmann::ordered_json::array();
      for (const std::string& text : option.values()) {
        values.push_back(option.is_named ? nlohmann::ordered_json::parse(text)
                                         : json_of_text(text));
      }
      if (!option.is_list && values == nlohmann::ordered_json{""}) continue;  // not valid in a file
      nlohmann::ordered_json* place = &root;
      for (const std::string& part : split_at('.', option.name)) place = &(*place)[part];
      *place = option.is_list ? values : values.empty() ? "none" : values[0];
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
  const auto print = [&](const OptionGroup& group) {
    po::options_description description(group.title_, kHelpWidth, kHelpWidth / 2);
    for (const auto& option : group.options_) {
      if (is_hidden(option)) continue;
      if (option.is_switch) {
        description.add_options()(option.name.c_str(), help_of(option).c_str());
        continue;
      }
      auto* value = po::value<std::string>()->value_name(option.value_name);
      if (!option.default_text.empty()) value->default_value(option.default_text);
      description.add_options()(option.name.c_str(), value, help_of(option).c_str());
    }
    text << "\n" << description;
  };
  std::for_each(groups_.begin() + 1, groups_.end(), print);
  print(groups_.front());  // "General"
  return text.str();
}

}  // namespace linkboy::cli

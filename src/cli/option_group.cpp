// Adds options to a command line, including those that select an object by name and set its keys.

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/json_text.hpp"
#include "linkboy/cli/command_line.hpp"
#include "linkboy/error.hpp"

namespace linkboy::cli {
namespace {

bool is_key(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return c == '_' || c == '-' || c == '.' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
           (c >= 'A' && c <= 'Z');
  });
}

/// Splits "milestones=10,20,gamma=0.5" before "gamma". A part that does not begin with KEY= belongs
/// to the previous value.
TextSettings split_named(const std::string& name, const std::string& text) {
  std::vector<std::string> parts;
  for (const std::string& part : split_at(',', text)) {
    const bool begins = is_key(part.substr(0, part.find('='))) && part.find('=') != part.npos;
    if (begins || parts.empty()) {
      parts.push_back(part);
    } else {
      parts.back() += "," + part;
    }
  }
  TextSettings settings;
  for (const std::string& part : parts) {
    const std::size_t equals = part.find('=');
    LINKBOY_CHECK_OPTION(equals != std::string::npos && equals > 0,
                         "it must be NAME:KEY=VALUE,..., "
                         "but \"",
                         part, "\" of \"", name, "\" is not KEY=VALUE");
    settings.emplace_back(part.substr(0, equals), part.substr(equals + 1));
  }
  return settings;
}

NamedSettings named_of(const nlohmann::ordered_json& object) {
  NamedSettings named;
  for (const auto& [key, value] : object.items()) {
    if (key == "name") {
      named.name = text_of_json(value);
    } else {
      named.settings.emplace_back(key, text_of_json(value));
    }
  }
  LINKBOY_CHECK_OPTION(!named.name.empty(), "it must have a member \"name\"");
  return named;
}

/// Returns all options of a named object: the given ones, and the defaults of the others.
nlohmann::ordered_json resolve(const NamedSettings& named, const NamedChoices& choices) {
  nlohmann::ordered_json object{{"name", named.name}};
  for (const auto& [key, value] : choices.options(named.name)) object[key] = json_of_text(value);
  for (const auto& [key, value] : named.settings) object[key] = json_of_text(value);
  return object;
}

void set_key(NamedSettings& named, const std::string& key, const std::string& text) {
  std::erase_if(named.settings, [&](const auto& setting) { return setting.first == key; });
  named.settings.emplace_back(key, text);
}

std::vector<std::string> all_keys(const NamedChoices& choices) {
  std::set<std::string> keys;
  for (const std::string& name : choices.names) {
    for (const auto& [key, value] : choices.options(name)) keys.insert(key);
  }
  return {keys.begin(), keys.end()};
}

std::string list_choices(const NamedChoices& choices) {
  std::string text;
  for (const std::string& name : choices.names) text += list_fields(name, choices.options(name));
  return text;
}

/// Checks that the name and its keys exist.
/// @throws UsageError if the name or a key does not exist.
void check_named(const std::string& option, const NamedSettings& named,
                 const NamedChoices& choices) {
  try {
    const bool is_plural = option.ends_with('s');
    const std::string kind = option.substr(0, option.size() - (is_plural ? 1 : 0));
    check_keys(kind + " " + named.name, choices.options(named.name), named.settings);
  } catch (const Error& error) {
    throw UsageError("--" + option + ": " + error.what());
  }
}

}  // namespace

NamedSettings NamedSettings::parse(const std::string& text) {
  if (text.starts_with('{')) {
    try {
      return named_of(parse_json(text));
    } catch (const nlohmann::json::exception&) {
      throw OptionError("it must be NAME[:KEY=VALUE,...] or a JSON object");
    }
  }
  const std::size_t colon = text.find(':');
  NamedSettings named{.name = text.substr(0, colon)};
  LINKBOY_CHECK_OPTION(!named.name.empty(), "it must be NAME[:KEY=VALUE,...]");
  if (colon != std::string::npos) named.settings = split_named(named.name, text.substr(colon + 1));
  return named;
}

std::string NamedSettings::to_string() const {
  std::string text = name;
  for (const auto& [key, value] : settings) {
    text += (text.size() == name.size() ? ":" : ",") + key + "=" + value;
  }
  return text;
}

OptionGroup& OptionGroup::add_switch(std::string name, bool* target, std::string help) {
  return add_option(
      {.name = std::move(name),
       .help = std::move(help),
       .is_switch = true,
       .assign = [target](const std::string& text) { *target = from_text<bool>(text); },
       .values = text_of(target)});
}

OptionGroup& OptionGroup::add_list(std::string name, std::string value_name,
                                   std::vector<std::string>* target, std::string help) {
  return add_option({.name = std::move(name),
                     .value_name = std::move(value_name),
                     .help = std::move(help),
                     .is_list = true,
                     .assign = [target](const std::string& text) { target->push_back(text); },
                     .clear = [target] { target->clear(); },
                     .values = [target] { return *target; }});
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

OptionGroup& OptionGroup::add_named(std::string name, NamedSettings* target, NamedChoices choices,
                                    std::string help) {
  return add_option(
      {.name = name,
       .value_name = "NAME[:KEY=VALUE,...]",
       .default_text = target->to_string(),
       .help = std::move(help),
       .is_named = true,
       .keys = all_keys(choices),
       .assign = [target](const std::string& text) { *target = NamedSettings::parse(text); },
       .assign_key = [target](const std::string& key,
                              const std::string& text) { set_key(*target, key, text); },
       .values = [=] { return std::vector<std::string>{resolve(*target, choices).dump()}; },
       .check = [=] { check_named(name, *target, choices); },
       .choices = [=] { return list_choices(choices); }});
}

OptionGroup& OptionGroup::add_named(std::string name, std::optional<NamedSettings>* target,
                                    NamedChoices choices, std::string help) {
  return add_option({.name = name,
                     .value_name = "NAME[:KEY=VALUE,...]",
                     .default_text = to_text(*target),
                     .help = std::move(help),
                     .is_named = true,
                     .keys = all_keys(choices),
                     .assign =
                         [target](const std::string& text) {
                           *target = from_text<std::optional<NamedSettings>>(text);
                         },
                     .assign_key =
                         [=](const std::string& key, const std::string& text) {
                           if (!*target) {
                             throw UsageError("--" + name + "." + key + " is given, but --" + name +
                                              " is none; set both.");
                           }
                           set_key(**target, key, text);
                         },
                     .values =
                         [=] {
                           return std::vector<std::string>{
                               *target ? resolve(**target, choices).dump() : "\"none\""};
                         },
                     .check =
                         [=] {
                           if (*target) check_named(name, **target, choices);
                         },
                     .choices = [=] { return list_choices(choices); }});
}

OptionGroup& OptionGroup::add_named_list(std::string name, std::vector<NamedSettings>* target,
                                         NamedChoices choices, std::string help) {
  return add_option(
      {.name = name,
       .value_name = "NAME[:KEY=VALUE,...]",
       .help = std::move(help) + " May be given several times.",
       .is_list = true,
       .is_named = true,
       .assign =
           [target](const std::string& text) { target->push_back(NamedSettings::parse(text)); },
       .clear = [target] { target->clear(); },
       .values =
           [=] {
             std::vector<std::string> values;
             for (const NamedSettings& named : *target) {
               values.push_back(resolve(named, choices).dump());
             }
             return values;
           },
       .check =
           [=] {
             for (const NamedSettings& named : *target) {
               check_named(name, named, choices);
             }
           },
       .choices = [=] { return list_choices(choices); }});
}

std::string OptionGroup::alternatives(std::string_view names) {
  std::string text;
  for (const char c : names) {
    if (c != ' ') text += c == ',' ? '|' : c;
  }
  return text;
}

void OptionGroup::describe_fields(const std::string& prefix, std::span<const FieldHelp> help) {
  for (const auto& [field, text] : help) {
    const std::string name = field_name(prefix, field);
    const auto option =
        std::find_if(options_.begin(), options_.end(),
                     [&](const Option& candidate) { return candidate.name == name; });
    LINKBOY_CHECK_OPTION(option != options_.end(), "the help texts describe \"", name,
                         "\", which is not an option. Use the name of a field.");
    option->help = text;
  }
}

OptionGroup& OptionGroup::add_option(Option option) {
  options_.push_back(std::move(option));
  return *this;
}

}  // namespace linkboy::cli

// Adds options to a command line, including those that select an object by name and set its keys.

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "cli/json_text.hpp"
#include "linkboy/cli/command_line.hpp"
#include "linkboy/error.hpp"

namespace linkboy::cli {
namespace {

/// Splits "milestones=10,20,gamma=0.5" before "gamma". A part that does not begin with KEY= belongs
/// to the previous value.
TextSettings split_named(const std::string& name, const std::string& text) {
  static const std::regex begin("[\\w.-]+=[^]*");
  TextSettings settings;
  for (const std::string& part : split_at(',', text)) {
    if (std::regex_match(part, begin)) {
      const std::size_t equals = part.find('=');
      settings.emplace_back(part.substr(0, equals), part.substr(equals + 1));
    } else {
      LINKBOY_CHECK_OPTION(!settings.empty(), "it must be NAME:KEY=VALUE,..., but \"", part,
                           "\" of \"", name, "\" is not KEY=VALUE");
      settings.back().second += "," + part;
    }
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

std::vector<std::string> all_keys(const NamedChoices& choices) {
  std::set<std::string> keys;
  for (const std::string& name : choices.names) {
    for (const auto& [key, value] : choices.options(name)) keys.insert(key);
  }
  return {keys.begin(), keys.end()};
}

std::string list_choices(const NamedChoices& choices) {
  std::string text;
  for (const std::string& name : choices.names) {
    text += name + "\n";
    for (const auto& [key, value] : choices.options(name))
      text += "    " + key + "=" + value + "\n";
  }
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

/// Returns the objects that an option has selected.
template <class Target>
std::vector<NamedSettings*> selected(Target& target) {
  if constexpr (std::is_same_v<Target, NamedSettings>) {
    return {&target};
  } else if constexpr (std::is_same_v<Target, std::optional<NamedSettings>>) {
    return target ? std::vector{&*target} : std::vector<NamedSettings*>();
  } else {
    std::vector<NamedSettings*> all;
    all.reserve(target.size());
    for (NamedSettings& named : target) all.push_back(&named);
    return all;
  }
}

/// Adds the options of an object of the same name that are not given.
NamedSettings over(const NamedSettings& base, NamedSettings given) {
  if (base.name != given.name) return given;
  for (const auto& setting : base.settings) {
    const bool is_given = std::any_of(given.settings.begin(), given.settings.end(),
                                      [&](const auto& own) { return own.first == setting.first; });
    if (!is_given) given.settings.push_back(setting);
  }
  return given;
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
  NamedSettings named(text.substr(0, colon), {});
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

template <class Target>
OptionGroup& OptionGroup::add_named(std::string name, Target* target, NamedChoices choices,
                                    std::string help) {
  Option option{.name = name, .value_name = "NAME[:KEY=VALUE,...]", .help = std::move(help)};
  option.is_named = true;
  if constexpr (std::is_same_v<Target, std::vector<NamedSettings>>) {
    option.help += " May be given several times; none removes all.";
    option.is_list = true;
    for (const NamedSettings& named : *target) {
      if (!option.default_text.empty()) option.default_text += ' ';
      option.default_text += named.to_string();
    }
    option.clear = [target] { target->clear(); };
    option.assign = [target, defaults = *target](const std::string& text) {
      if (text == "none") return target->clear();
      NamedSettings named = NamedSettings::parse(text);
      const auto base = std::find_if(defaults.begin(), defaults.end(),
                                     [&](const auto& each) { return each.name == named.name; });
      target->push_back(base == defaults.end() ? named : over(*base, std::move(named)));
    };
  } else {
    option.default_text = to_text(*target);
    option.keys = all_keys(choices);
    option.assign = [target](const std::string& text) {
      Target given = from_text<Target>(text);
      const auto objects = selected(given);
      if (!objects.empty() && !selected(*target).empty()) {
        *objects[0] = over(*selected(*target)[0], *objects[0]);
      }
      *target = std::move(given);
    };
    option.assign_key = [=](const std::string& key, const std::string& text) {
      const auto objects = selected(*target);
      LINKBOY_CHECK_AS(UsageError, !objects.empty(), "--", name, ".", key, " is given, but --",
                       name, " is none; set both.");
      TextSettings& settings = objects[0]->settings;
      std::erase_if(settings, [&](const auto& setting) { return setting.first == key; });
      settings.emplace_back(key, text);
    };
  }
  option.values = [=] {
    std::vector<std::string> values;
    for (const auto* named : selected(*target)) values.push_back(resolve(*named, choices).dump());
    return values;
  };
  option.check = [=] {
    for (const auto* named : selected(*target)) check_named(name, *named, choices);
  };
  option.choices = [=] { return list_choices(choices); };
  return add_option(std::move(option));
}

template OptionGroup& OptionGroup::add_named(std::string, NamedSettings*, NamedChoices,
                                             std::string);
template OptionGroup& OptionGroup::add_named(std::string, std::optional<NamedSettings>*,
                                             NamedChoices, std::string);
template OptionGroup& OptionGroup::add_named(std::string, std::vector<NamedSettings>*, NamedChoices,
                                             std::string);

OptionGroup& OptionGroup::add_switch(std::string name, bool* target, std::string help) {
  add(std::move(name), "", target, std::move(help));
  options_.back().is_switch = true;
  return *this;
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

std::string OptionGroup::alternatives(std::string_view names) {
  std::string text;
  for (const char c : names) {
    if (c != ' ') text += c == ',' ? '|' : c;
  }
  return text;
}

OptionGroup& OptionGroup::add_option(Option option) {
  options_.push_back(std::move(option));
  return *this;
}

}  // namespace linkboy::cli

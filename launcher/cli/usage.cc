#include <palimpsest/launcher/cli/usage.h>

#include <palimpsest/core/config/nearest.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>
#include <string>
#include <vector>

namespace palimpsest {
namespace {

/// The verb that was being read, and how it is called.
struct Verb {
  const CLI::App* app = nullptr;
  std::string command;
};

/// CLI11 begins its sentence with the option's name. Null where the verb has none of that name.
const CLI::Option* option_of(const CLI::App& verb, const std::string& sentence) {
  const std::string name = sentence.substr(0, sentence.find_first_of(": "));
  return name.empty() ? nullptr : verb.get_option_no_throw(name);
}

/// The one that has the option of CLI11's sentence, else the last.
Verb find_verb(const CLI::App& program, const std::string& sentence) {
  Verb verb{&program, program.get_name()};
  while (!verb.app->get_subcommands().empty() && option_of(*verb.app, sentence) == nullptr) {
    verb.app = verb.app->get_subcommands().front();
    verb.command += " " + verb.app->get_name();
  }
  return verb;
}

/// Those that help shows, as they are written.
std::vector<std::string> option_names(const CLI::App& verb) {
  std::vector<std::string> names;
  for (const CLI::Option* option : verb.get_options()) {
    if (option->get_group().empty()) {
      continue;
    }
    for (const std::string& name : option->get_lnames()) {
      names.push_back("--" + name);
    }
    for (const std::string& name : option->get_snames()) {
      names.push_back("-" + name);
    }
  }
  return names;
}

/// The first word that no argument of the verb takes, options first.
std::string surplus(const CLI::App& program) {
  const std::vector<std::string> words = program.remaining(true);
  for (const std::string& word : words) {
    if (word.starts_with('-')) {
      return word;
    }
  }
  return words.empty() ? "" : words.front();
}

/// Those of a group of which the verb takes exactly one; none where it has no such group.
std::vector<std::string> alternatives(const CLI::App& verb) {
  std::vector<std::string> names;
  for (const CLI::App* group : verb.get_subcommands([](const CLI::App*) { return true; })) {
    for (const CLI::Option* option : group->get_options()) {
      const bool ours = option != group->get_help_ptr();
      if (ours && group->get_name().empty() && group->get_require_option_max() == 1) {
        names.push_back(option->get_name());
      }
    }
  }
  return names;
}

/// "a whole number in [1 - 4096]"; of CLI11's "INT:INT in [1 - 4096]".
std::string allowed(const CLI::Option& option) {
  const std::string text = option.get_type_name();
  const size_t colon = text.find(':');
  const std::string type = text.substr(0, colon);
  std::string check = colon == std::string::npos ? "" : text.substr(colon + 1);
  if (type == "TEXT") {
    return check.empty() ? "text that is not empty" : check;
  }
  if (type != "INT" && type != "UINT" && type != "FLOAT") {
    return text;
  }
  const std::string number = type == "FLOAT" ? "a number" : "a whole number";
  if (check == "POSITIVE" || check == "NONNEGATIVE") {
    return number + (check == "POSITIVE" ? " above 0" : " of at least 0");
  }
  if (check.starts_with(type)) {
    check.erase(0, type.size());
  }
  return number + check;
}

std::string sentence(const CLI::App& program, const Verb& verb, const CLI::ParseError& error) {
  // Words that nobody took are told before an argument that is missing: one may be meant as it.
  const bool surplus_matters = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr ||
      dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  const std::string word = surplus_matters ? surplus(program) : "";
  if (word.starts_with('-') && word != "-") {
    const std::string name = word.substr(0, word.find('='));
    return fmt::format("unknown option {}{}", name, did_you_mean(name, option_names(*verb.app)));
  } else if (!word.empty()) {
    return fmt::format("'{}' is one argument too many", word);
  }
  const bool about_others = dynamic_cast<const CLI::RequiresError*>(&error) != nullptr ||
      dynamic_cast<const CLI::ExcludesError*>(&error) != nullptr;
  if (about_others) { // "--json requires --chain", "--text excludes --html"
    return error.what();
  }
  const CLI::Option* option = option_of(*verb.app, error.what());
  if (option == nullptr && verb.app->get_require_subcommand_min() > 0) {
    std::vector<std::string> names;
    for (const CLI::App* each : verb.app->get_subcommands({})) {
      names.push_back(each->get_name());
    }
    return fmt::format("what shall be done? Give one of {}", fmt::join(names, ", "));
  }
  const bool required = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  if (const auto names = alternatives(*verb.app); option == nullptr && required && !names.empty()) {
    return fmt::format("give exactly one of {}", fmt::join(names, ", "));
  }
  if (option == nullptr) {
    return error.what();
  }
  const std::string name = option->get_name();
  if (required) {
    return fmt::format("{} is missing: {}", name, option->get_description());
  }
  const std::vector<std::string>& given = option->results();
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    return given.size() > 1 ? fmt::format("{} is given more than once; give it once", name)
                            : fmt::format("{} needs a value: {}", name, option->get_description());
  }
  return fmt::format(
      "{}: '{}' is not allowed; give {}",
      name,
      given.empty() ? "" : given.back(),
      allowed(*option));
}

} // namespace

void refuse_empty_values(CLI::App& program, const std::set<std::string>& but) {
  for (CLI::Option* option : program.get_options()) {
    if (option->get_expected_max() > 0 && !but.contains(option->get_name())) {
      option->check([](const std::string& value) {
        return value.empty() ? std::string("it is empty") : std::string();
      });
    }
  }
  for (CLI::App* part : program.get_subcommands({})) { // verbs, and groups of options
    refuse_empty_values(*part, but);
  }
}

UserError usage_error(const CLI::App& program, const CLI::ParseError& error) {
  const Verb verb = find_verb(program, error.what());
  return UserError(
      "{}{}; {} --help shows what there is",
      verb.app == &program ? "" : verb.command.substr(verb.command.find(' ') + 1) + ": ",
      sentence(program, verb, error),
      verb.command);
}

} // namespace palimpsest

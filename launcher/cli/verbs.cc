#include <palimpsest/launcher/cli/config_verb.h>
#include <palimpsest/launcher/cli/eval_verb.h>
#include <palimpsest/launcher/cli/export_verb.h>
#include <palimpsest/launcher/cli/generate_verb.h>
#include <palimpsest/launcher/cli/inspect_verb.h>
#include <palimpsest/launcher/cli/launch_verb.h>
#include <palimpsest/launcher/cli/plan_verb.h>
#include <palimpsest/launcher/cli/stack_verb.h>
#include <palimpsest/launcher/cli/tokenize_verb.h>
#include <palimpsest/launcher/cli/train_verb.h>
#include <palimpsest/launcher/cli/usage.h>
#include <palimpsest/launcher/cli/verb.h>

namespace palimpsest {

void register_verbs(CLI::App& program) {
  add_train_verb(program);
  add_plan_verb(program);
  add_stack_verb(program);
  add_eval_verb(program);
  add_generate_verb(program);
  add_tokenize_verb(program);
  add_export_verb(program);
  add_inspect_verb(program);
  add_config_verb(program);
  add_launch_verb(program);
  // A tokenizer may begin texts by itself; a budget says what it must be.
  refuse_empty_values(program, /*but=*/{"--prompt", "--budget"});
}

std::string examples(const std::string& lines) {
  std::string text = "Examples:\n  ";
  for (const char c : lines) {
    text += c == '\n' ? std::string("\n  ") : std::string(1, c);
  }
  return text;
}

} // namespace palimpsest

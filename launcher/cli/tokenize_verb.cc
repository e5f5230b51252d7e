#include <palimpsest/launcher/cli/tokenize_verb.h>

#include <palimpsest/core/base/bytes.h>
#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/words.h>
#include <palimpsest/launcher/cli/text_bar.h>
#include <palimpsest/launcher/cli/verb.h>
#include <palimpsest/launcher/compose/tokenize.h>
#include <palimpsest/launcher/launch/threads.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace palimpsest {
namespace {

struct TokenizeOptions {
  TokenizeSettings tokens;
  std::vector<std::string> files;
  std::string tokenizer;
  std::string output;
  int threads = 0;
  bool train = false;
  int64_t vocabulary_size = 0;
  std::vector<std::string> special;
  std::string words;
};

int64_t bytes_of(const std::vector<std::filesystem::path>& files) {
  int64_t bytes = 0;
  for (const auto& file : files) {
    bytes += static_cast<int64_t>(std::filesystem::file_size(file));
  }
  return bytes;
}

void print_notes(const Notes& notes) {
  for (const std::string& note : notes) {
    std::cout << "note: " << note << "\n";
  }
}

void make_tokens(const TokenizeSettings& settings) {
  TextBar bar(std::cout);
  const TokenizeSummary made = tokenize(settings, [&](double done, int64_t tokens) {
    bar.show(done, fmt::format("{} tokens", tokens));
  });
  bar.end();
  print_notes(made.notes);
  const auto bytes = static_cast<double>(bytes_of(settings.text.files));
  std::cout << fmt::format(
      "{} of {} as uint{} in {} ({}); {:.2f} bytes of text a token, {}/s\n",
      counted(made.tokens, "token"),
      counted(made.documents, "document"),
      8 * made.id_bytes,
      settings.output.string(),
      format_bytes(made.tokens * made.id_bytes),
      made.tokens > 0 ? bytes / static_cast<double>(made.tokens) : 0.0,
      format_bytes(static_cast<int64_t>(bytes / bar.seconds())));
}

void make_tokenizer(const TrainTokenizerSettings& settings) {
  TextBar bar(std::cout);
  const TrainTokenizerSummary made = train_tokenizer(settings, [&](double done, int64_t tokens) {
    bar.show(done, fmt::format("{} tokens", tokens));
  });
  bar.end();
  print_notes(made.notes);
  std::cout << fmt::format(
      "{} from {} in {}; {:.1f} s\n",
      counted(made.tokens, "token"),
      counted(made.words, "different word"),
      settings.output.string(),
      bar.seconds());
}

WordRule word_rule(const std::string& name) {
  return name == "gpt2" ? WordRule::kGpt2 : name == "qwen2" ? WordRule::kQwen2 : WordRule::kLlama3;
}

void run(TokenizeOptions options) {
  TextFiles& text = options.tokens.text;
  text.files.assign(options.files.begin(), options.files.end());
  text.threads =
      options.threads > 0 ? options.threads : static_cast<int>(allowed_processors().size());
  if (options.train) {
    TrainTokenizerSettings settings{
        .text = text,
        .vocabulary_size = options.vocabulary_size,
        .words = word_rule(options.words),
        .output = options.output};
    if (!options.special.empty()) {
      settings.special = options.special;
    }
    make_tokenizer(settings);
    return;
  }
  if (options.tokenizer.empty()) {
    throw UserError(
        "tokenize: --tokenizer is missing: the folder of the model whose tokens to make (or "
        "--train for a new tokenizer)");
  }
  options.tokens.tokenizer = options.tokenizer;
  options.tokens.output = options.output;
  make_tokens(options.tokens);
}

} // namespace

void add_tokenize_verb(CLI::App& program) {
  const auto options = std::make_shared<TokenizeOptions>();
  TokenizeSettings& tokens = options->tokens;
  CLI::App* verb = program.add_subcommand(
      "tokenize", "Makes a token file of text files, or trains a tokenizer on them.");
  verb->add_option(
          "files", options->files, "Text files, a document each; .jsonl and .json: one a record")
      ->required();
  CLI::Option* tokenizer = verb->add_option(
      "--tokenizer", options->tokenizer, "Folder with the tokenizer.json (a model's folder)");
  verb->add_option("--output,-o", options->output, "Token file to write; with --train the folder")
      ->required();
  verb->add_option("--field", tokens.text.field, "Key of the text in a record")
      ->capture_default_str();
  CLI::Option* format = verb->add_option(
      "--format", tokens.format, "Records: text, prompt_completion, messages, sharegpt or alpaca");
  format->capture_default_str();
  CLI::Option* chat = verb->add_option(
      "--chat-template",
      tokens.chat_template,
      "Template of conversations: a name or a Jinja file (default: the model's)");
  CLI::Option* ids =
      verb->add_option("--ids", tokens.id_bytes, "Type of ids: uint16 or uint32 (default: by need)")
          ->transform(
              CLI::CheckedTransformer(std::map<std::string, int64_t>{{"uint16", 2}, {"uint32", 4}})
                  .description("{uint16,uint32}"));
  verb->add_option("--threads", options->threads, "Threads (default: one a processor)")
      ->check(CLI::Range(1, 4096));
  CLI::Option* size = verb->add_option(
      "--vocab-size", options->vocabulary_size, "Tokens to train, special ones included");
  size->check(CLI::Range(256, 1 << 24));
  CLI::Option* special = verb->add_option(
      "--special",
      options->special,
      "Special tokens to train with; the first ends documents (default: <|endoftext|>)");
  special->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  CLI::Option* words =
      verb->add_option("--words", options->words, "Rule that splits words: llama3, gpt2 or qwen2")
          ->check(CLI::IsMember({"llama3", "gpt2", "qwen2"}));
  CLI::Option* train = verb->add_flag("--train", options->train, "Train a byte-level tokenizer");
  train->needs(size)->excludes(tokenizer)->excludes(format)->excludes(chat)->excludes(ids);
  size->needs(train);
  special->needs(train);
  words->needs(train);
  verb->footer(examples(
      "palimpsest tokenize books/*.txt --tokenizer Llama-3.2-1B -o books.bin\n"
      "palimpsest tokenize pages.jsonl --field content --tokenizer Llama-3.2-1B -o pages.bin\n"
      "palimpsest tokenize books/*.txt --train --vocab-size 8192 -o my-tokenizer"));
  verb->callback([options] { run(*options); });
}

} // namespace palimpsest

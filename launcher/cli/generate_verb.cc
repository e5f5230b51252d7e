#include <palimpsest/launcher/cli/generate_verb.h>

#include <palimpsest/core/base/bytes.h>
#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/words.h>
#include <palimpsest/launcher/cli/chat_session.h>
#include <palimpsest/launcher/cli/output_files.h>
#include <palimpsest/launcher/cli/verb.h>
#include <palimpsest/launcher/compose/chat.h>
#include <palimpsest/launcher/compose/generation_inputs.h>
#include <palimpsest/launcher/compose/generation_model.h>
#include <palimpsest/launcher/compose/generation_text.h>
#include <palimpsest/launcher/compose/text_generator.h>
#include <palimpsest/launcher/launch/rank_environment.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

namespace palimpsest {
namespace {

constexpr int64_t kUsualNewTokens = 256;

struct GenerateOptions {
  std::string model;
  std::vector<std::string> overrides;
  std::optional<std::string> prompt;
  std::string prompts;
  std::string messages;
  bool chat = false;
  std::string system;
  std::string chat_template;
  std::optional<int64_t> max_new_tokens;
  std::optional<double> temperature;
  std::optional<int64_t> top_k;
  std::optional<double> top_p;
  double repetition_penalty = 1;
  std::optional<uint64_t> seed;
  std::vector<std::string> stops;
  int64_t batch = 16;
  bool json = false;
  std::string output;
  bool quiet = false;
};

/// CLI::Range lets NaN through.
CLI::Validator number_in(double low, double high) {
  return {
      [low, high](const std::string& text) {
        double number = 0;
        const bool fits =
            CLI::detail::lexical_cast(text, number) && number >= low && number <= high;
        return std::string(fits ? "" : "out of range");
      },
      fmt::format("FLOAT in [{} - {}]", low, high)};
}

/// A draw happens where anything about it is said; its temperature is 1 where nothing else is.
SamplingSettings sampling(const GenerateOptions& options) {
  const bool says = options.top_k || options.top_p || options.seed;
  if (options.temperature == 0 && says) {
    throw UserError(
        "generate: --temperature 0 takes the likeliest token without a draw, so --top-k, --top-p "
        "and --seed mean nothing; leave them out, or give a temperature above 0");
  }
  return {
      .temperature = options.temperature.value_or(says ? 1 : 0),
      .top_k = options.top_k.value_or(0),
      .top_p = options.top_p.value_or(1),
      .repetition_penalty = options.repetition_penalty};
}

std::vector<GenerationInput> inputs_of(const GenerateOptions& options) {
  if (options.prompt) {
    return {{*options.prompt, "--prompt"}};
  }
  return options.prompts.empty() ? read_conversations(options.messages)
                                 : read_prompts(options.prompts);
}

void require_one_process() {
  const int ranks = detect_rank(current_environment()).world_size;
  if (ranks > 1) {
    throw UserError(
        "generate: one process generates, and this is one of {} ranks; start it without a launcher",
        ranks);
  }
}

/// What a model writes and how fast, on standard error: standard output is the text's.
class Summary {
 public:
  Summary(bool quiet, const GenerationModel& model, int64_t most_tokens, int64_t texts)
      : quiet_(quiet) {
    if (quiet_) {
      return;
    }
    const auto bytes = model.generator().cache_bytes(most_tokens);
    std::cerr << model.description() << "; keys and values: " << format_bytes(bytes) << " for "
              << counted(most_tokens, "token");
    if (texts > 1) {
      std::cerr << ", " << texts << " texts at a time";
    }
    std::cerr << std::endl;
  }
  void add(const GenerationResult& result) {
    tokens_ += std::ssize(result.tokens);
  }
  void end() const {
    if (quiet_) {
      return;
    }
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    std::cerr << fmt::format(
        "{} in {:.2f} s, {:.1f} a second\n",
        counted(tokens_, "token"),
        seconds,
        static_cast<double>(tokens_) / seconds);
  }

 private:
  bool quiet_;
  int64_t tokens_ = 0;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// The texts in the order of their prompts, as text or as records.
class Writer {
 public:
  Writer(const GenerateOptions& options, const std::vector<GenerationInput>& inputs)
      : inputs_(inputs), output_(options.output), json_(options.json || !options.output.empty()),
        results_(inputs.size()), prompt_tokens_(inputs.size()) {
    if (!output_.empty()) { // what is there stays until the first text is
      open(std::ios::app);
      file_.close();
    }
  }

  void set_prompt_tokens(size_t input, int64_t tokens) {
    prompt_tokens_[input] = tokens;
  }
  /// Of one prompt the text appears as it comes.
  void piece(const std::string& text) {
    if (!json_ && inputs_.size() == 1) {
      std::cout << text << std::flush;
    }
  }
  void done(size_t input, const GenerationResult& result) {
    results_[input] = result;
    while (next_ < results_.size() && results_[next_]) {
      write(next_, *results_[next_]);
      ++next_;
    }
  }
  void end() {
    if (file_.is_open()) {
      file_.flush();
      require_written();
    }
  }

 private:
  void open(std::ios::openmode mode) {
    file_.open(output_, mode);
    require_written();
  }
  void require_written() const {
    if (!file_) {
      throw EnvironmentError(
          "cannot write {}: {}", output_, std::generic_category().message(errno));
    }
  }

  void write(size_t index, const GenerationResult& result) {
    if (!output_.empty() && !file_.is_open()) {
      open(std::ios::trunc);
    }
    if (json_) {
      std::ostream& out = file_.is_open() ? static_cast<std::ostream&>(file_) : std::cout;
      out << record(index, result).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
          << std::endl;
      require_written(); // no further text is generated for nothing
    } else if (inputs_.size() == 1) {
      std::cout << std::endl;
    } else {
      std::cout << "== " << inputs_[index].where << "\n" << result.text << std::endl;
    }
  }

  nlohmann::ordered_json record(size_t index, const GenerationResult& result) const {
    nlohmann::ordered_json record;
    if (const auto* prompt = std::get_if<std::string>(&inputs_[index].prompt)) {
      record["prompt"] = *prompt;
    } else {
      for (const Message& message : std::get<Conversation>(inputs_[index].prompt)) {
        record["messages"].push_back({{"role", message.role}, {"content", message.content}});
      }
      record["messages"].push_back({{"role", "assistant"}, {"content", result.text}});
    }
    record["text"] = result.text;
    record["finish_reason"] = name_of(result.reason);
    record["prompt_tokens"] = prompt_tokens_[index];
    record["tokens"] = result.tokens.size();
    return record;
  }

  const std::vector<GenerationInput>& inputs_;
  std::string output_;
  bool json_;
  std::ofstream file_;
  std::vector<std::optional<GenerationResult>> results_;
  std::vector<int64_t> prompt_tokens_;
  size_t next_ = 0;
};

GenerationSettings settings_of(
    const GenerateOptions& options,
    const GenerationModel& model,
    const GenerationText& text,
    bool chat) {
  GenerationSettings settings{
      .sampling = sampling(options),
      .seed = options.seed.value_or(0),
      .batch = options.batch,
      .max_positions = model.max_positions(),
      .end_ids = text.end_ids(),
      .stops = options.stops};
  if (chat) {
    const GenerationText::TurnEnd end = text.turn_end();
    settings.end_ids.insert(end.ids.begin(), end.ids.end());
    settings.stops.insert(settings.stops.end(), end.texts.begin(), end.texts.end());
  }
  return settings;
}

/// The requests, each with room for what it asks for.
std::vector<GenerationRequest> requests_of(
    const GenerateOptions& options,
    const std::vector<GenerationInput>& inputs,
    const GenerationText& text,
    int64_t max_positions) {
  std::vector<GenerationRequest> requests;
  for (const GenerationInput& input : inputs) {
    GenerationRequest request{
        .number = requests.size(),
        .max_new_tokens = options.max_new_tokens.value_or(kUsualNewTokens),
        .reply = std::holds_alternative<Conversation>(input.prompt)};
    request.prompt = input.located([&] {
      return std::visit([&](const auto& prompt) { return text.encode(prompt); }, input.prompt);
    });
    const int64_t tokens = std::ssize(request.prompt);
    const int64_t wanted = options.max_new_tokens.value_or(1);
    if (max_positions != 0 && tokens + wanted > max_positions) {
      throw UserError(
          "{}: the prompt has {} and {} to follow, but the model has {} positions; shorten the "
          "prompt{}",
          input.where,
          counted(tokens, "token"),
          wanted == 1 ? "one is" : fmt::format("up to {} are", wanted),
          max_positions,
          options.max_new_tokens ? " or lower --max-new-tokens" : "");
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

void generate_texts(
    const GenerateOptions& options,
    GenerationModel& model,
    const GenerationText& text) {
  const std::vector<GenerationInput> inputs = inputs_of(options);
  const bool chat = std::holds_alternative<Conversation>(inputs.front().prompt);
  const GenerationSettings settings = settings_of(options, model, text, chat);
  const std::vector<GenerationRequest> requests =
      requests_of(options, inputs, text, settings.max_positions);
  Writer writer(options, inputs);
  const TextGenerator generator(model.generator(), text, settings);
  std::vector<Generator::Length> lengths;
  int64_t most = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const int64_t tokens = std::ssize(requests[i].prompt);
    writer.set_prompt_tokens(i, tokens);
    const int64_t all = tokens + generator.room(requests[i]);
    lengths.push_back({.prompt = tokens, .tokens = all - 1});
    most = std::max(most, all);
  }
  model.require_budget(lengths, options.batch);
  model.load();
  Summary summary(
      options.quiet, model, most, std::min<int64_t>(options.batch, std::ssize(requests)));
  model.compute("generating", [&] {
    generator.run(
        requests,
        {.piece = [&](size_t, const std::string& piece) { writer.piece(piece); },
         .done =
             [&](size_t request, const GenerationResult& result) {
               summary.add(result);
               writer.done(request, result);
             }});
  });
  writer.end();
  summary.end();
}

/// Of a chat's first reply. Its cache may get as long as there are positions.
Generator::Length chat_length(int64_t prompt, int64_t new_tokens, int64_t max_positions) {
  const int64_t most = max_positions == 0 ? std::numeric_limits<int64_t>::max() : max_positions;
  return {
      .prompt = prompt,
      .tokens = std::max(prompt, std::min(prompt + new_tokens - 1, most)),
      .most = most};
}

void chat(const GenerateOptions& options, GenerationModel& model, const GenerationText& text) {
  const GenerationSettings settings = settings_of(options, model, text, /*chat=*/true);
  Conversation opening = {{"user", "Hello"}};
  if (!options.system.empty()) {
    opening.insert(opening.begin(), {"system", options.system});
  }
  const int64_t prompt = std::ssize(text.encode(opening)); // says early what the template refuses
  const int64_t wanted = options.max_new_tokens.value_or(kUsualNewTokens);
  model.require_budget({chat_length(prompt, wanted, settings.max_positions)}, 1);
  model.load();
  if (!options.quiet) {
    std::cerr << model.description() << std::endl;
  }
  Chat conversation(model, text, settings, {.system = options.system, .max_new_tokens = wanted});
  ChatSession(
      conversation,
      STDIN_FILENO,
      std::cout,
      {.interactive = isatty(STDIN_FILENO) == 1, .quiet = options.quiet})
      .run();
}

void generate(const GenerateOptions& options) {
  require_one_process();
  require_different_files(
      "generate",
      {{"--prompts", options.prompts},
       {"--messages", options.messages},
       {"--output", options.output}});
  sampling(options); // says early what contradicts
  std::vector<std::string> overrides = options.overrides;
  if (!options.chat_template.empty()) {
    overrides.push_back("data.chat_template=" + options.chat_template);
  }
  const GenerationSource source = find_generation_source(options.model, overrides);
  GenerationModel model(source);
  const GenerationText text(
      source.texts, source.config.data().chat_template(), model.model().vocabulary_size());
  options.chat ? chat(options, model, text) : generate_texts(options, model, text);
}

} // namespace

void add_generate_verb(CLI::App& program) {
  const auto options = std::make_shared<GenerateOptions>();
  CLI::App* verb = program.add_subcommand(
      "generate", "Writes what a model makes of prompts or conversations, or chats.");
  verb->add_option(
          "model",
          options->model,
          "A model's folder or hub id, an adapter's folder, a checkpoint, or a run's output folder "
          "or config")
      ->required();
  verb->add_option(
      "overrides",
      options->overrides,
      "key=value: precision.compute, precision.frozen, memory.device_budget, data.tokenizer, "
      "data.chat_template, training.threads");
  CLI::Option_group* what = verb->add_option_group("What to go on from, one of");
  what->add_option("--prompt", options->prompt, "A text");
  what->add_option(
      "--prompts", options->prompts, "File of prompts: a line each; .jsonl: {\"prompt\": ...}");
  what->add_option(
      "--messages", options->messages, "File of conversations: {\"messages\": [...]} each");
  CLI::Option* chat = what->add_flag("--chat", options->chat, "Messages from standard input");
  what->require_option(1);
  verb->add_option("--system", options->system, "The chat's first message, the system's")
      ->needs(chat);
  verb->add_option(
      "--chat-template",
      options->chat_template,
      "A name or a file in Jinja (default: the model's own)");
  verb->add_option(
          "--max-new-tokens",
          options->max_new_tokens,
          "Most tokens of a text (default: 256, or as many as the model has positions for)")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000'000}));
  verb->add_option(
          "--temperature",
          options->temperature,
          "Above 0: a token is drawn (default: 0, the likeliest; 1 with --top-k, --top-p or "
          "--seed)")
      ->check(number_in(0, 1000));
  verb->add_option("--top-k", options->top_k, "Draw among the k likeliest tokens")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000'000}));
  verb->add_option(
          "--top-p", options->top_p, "Draw among the likeliest tokens that reach this probability")
      ->check(number_in(1e-9, 1));
  verb->add_option(
          "--repetition-penalty",
          options->repetition_penalty,
          "Above 1: tokens that came before are less likely")
      ->check(number_in(1e-3, 1e3))
      ->capture_default_str();
  verb->add_option("--seed", options->seed, "Of the draws (default: 0)")
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--stop", options->stops, "A text ends before this; may be given several times")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  CLI::Option* batch =
      verb->add_option("--batch", options->batch, "Texts that are generated at a time");
  batch->check(CLI::Range(int64_t{1}, kMostSequences))->capture_default_str()->excludes(chat);
  verb->add_flag("--json", options->json, "A record a text on standard output")->excludes(chat);
  verb->add_option("--output,-o", options->output, "Write the records to this file instead")
      ->excludes(chat);
  verb->add_flag("--quiet", options->quiet, "Nothing but the texts");
  verb->footer(examples(
      "palimpsest generate Qwen/Qwen2.5-0.5B --prompt \"Once upon a time\" precision.compute=bf16\n"
      "palimpsest generate runs/a --chat --system \"Answer in one sentence.\" --temperature 0.7\n"
      "palimpsest generate runs/a/model --prompts prompts.txt --top-p 0.9 --seed 1 -o texts.jsonl\n"
      "palimpsest generate Llama-3.2-1B-Instruct --messages questions.jsonl --json"));
  verb->callback([options] { generate(*options); });
}

} // namespace palimpsest

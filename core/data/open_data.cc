#include <palimpsest/core/data/open_data.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/data/example_rows.h>
#include <palimpsest/core/data/example_stream.h>
#include <palimpsest/core/data/examples/record_examples.h>
#include <palimpsest/core/data/examples/text_examples.h>
#include <palimpsest/core/data/joined_source.h>
#include <palimpsest/core/data/records/data_file_error.h>
#include <palimpsest/core/data/subset_source.h>
#include <palimpsest/core/data/tensors_file.h>
#include <palimpsest/core/data/text_bytes.h>
#include <palimpsest/core/data/text_tools.h>
#include <palimpsest/core/data/token_file.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace palimpsest {

namespace {

using Paths = std::vector<std::filesystem::path>;

/// Files that are one source.
struct Group {
  std::string format;
  double weight = 1;
  std::string option;
  Paths paths;
};

bool is_json(const std::filesystem::path& path) {
  return path.extension() == ".jsonl" || path.extension() == ".json";
}

/// Opens groups of files; what they share is opened once, by the first that needs it.
class Opener {
 public:
  Opener(const DataSettings& settings, Notes& notes) : settings_(settings), notes_(notes) {}

  std::unique_ptr<SampleSource> open(const Group& group);
  std::string format_of(const DataFile& file) const;
  /// Refuses a column that none of the formats has.
  void check_columns(const std::vector<Group>& groups) const;
  /// Refuses a tokenizer that is named and is not there, or is another model's.
  void check_tokenizer();
  /// Refuses settings that none of the files so far had a use for, or notes them.
  void check_settings() const;

 private:
  using Samples = std::unique_ptr<SampleSource>;

  Samples open_tokens(const Group& group);
  Samples open_tensors(const Group& group);
  Samples open_text(const Group& group);
  Samples open_records(const Group& group);

  void open_encoder();
  std::string missing_tokenizer() const;
  const TextEncoder& encoder(const Group& group);
  std::shared_ptr<const ChatTemplate> chat(const Group& group);
  ExampleSettings example_settings() const;
  RecordFormat record_format(const Group& group) const;

  struct Format {
    const char* name;
    std::vector<std::string> endings;
    Samples (Opener::*open)(const Group& group);
    bool has_features = false; // what a model without a vocabulary can read
  };
  static const std::vector<Format>& formats();

  const DataSettings& settings_;
  Notes& notes_;
  std::optional<TextEncoder> encoder_;
  std::shared_ptr<const ChatTemplate> chat_;
  bool has_text_ = false;
  bool has_records_ = false;
  bool has_turns_ = false; // conversations or completions
};

const std::vector<Opener::Format>& Opener::formats() {
  static const std::vector<Format> all = {
      {"tokens", {".bin"}, &Opener::open_tokens},
      {"tensors", {".safetensors"}, &Opener::open_tensors, true},
      {"text", {".txt"}, &Opener::open_text},
      {"messages", {".jsonl", ".json"}, &Opener::open_records},
      {"sharegpt", {}, &Opener::open_records},
      {"alpaca", {}, &Opener::open_records},
      {"prompt_completion", {}, &Opener::open_records},
  };
  return all;
}

std::string Opener::format_of(const DataFile& file) const {
  const std::string ending = file.path.extension().string();
  std::vector<std::string> known;
  for (const Format& format : formats()) {
    if (file.format.empty() ? std::ranges::count(format.endings, ending) > 0
                            : file.format == format.name) {
      return format.name;
    }
    known.push_back(
        format.endings.empty()
            ? format.name
            : fmt::format("{} ({})", format.name, fmt::join(format.endings, ", ")));
  }
  throw UserError(
      "{}: {} of {} is unknown; give one of {}",
      file.option,
      file.format.empty() ? "the ending" : "the format \"" + file.format + '"',
      file.path.string(),
      fmt::join(known, ", "));
}

std::unique_ptr<SampleSource> Opener::open(const Group& group) {
  const auto format = std::ranges::find(formats(), group.format, &Format::name);
  if (settings_.vocabulary_size == 0 && !format->has_features) {
    throw UserError(
        "data.format: {} holds token ids, but the model reads features; give a tensors file with "
        "inputs and targets",
        group.format);
  }
  return from_option(group.option, [&] { return (this->*format->open)(group); });
}

std::unique_ptr<SampleSource> Opener::open_tokens(const Group& group) {
  std::vector<Samples> files;
  for (const auto& path : group.paths) {
    files.push_back(std::make_unique<TokenFile>(
        path, settings_.sequence_length.value(), settings_.vocabulary_size, notes_));
  }
  return std::make_unique<JoinedSource>(std::move(files));
}

std::unique_ptr<SampleSource> Opener::open_tensors(const Group& group) {
  std::vector<Samples> files;
  for (const auto& path : group.paths) {
    if (settings_.vocabulary_size == 0 && settings_.sequence_length.has_value()) {
      throw UserError(
          "data.sequence_length: {} is given, but {} holds features, which have none; leave the "
          "key out",
          *settings_.sequence_length,
          path.string());
    }
    if (settings_.vocabulary_size > 0) {
      files.push_back(std::make_unique<TokenTensorsFile>(
          path, settings_.sequence_length, settings_.vocabulary_size, notes_));
    } else {
      files.push_back(
          std::make_unique<FeatureTensorsFile>(path, settings_.input_size, settings_.output_size));
    }
  }
  return std::make_unique<JoinedSource>(std::move(files));
}

ExampleSettings Opener::example_settings() const {
  return {
      .sequence_length = settings_.sequence_length.value(),
      .packing = settings_.packing,
      .vocabulary_size = settings_.vocabulary_size,
      .reading = settings_.reading};
}

std::unique_ptr<SampleSource> Opener::open_text(const Group& group) {
  const bool records = is_json(group.paths.front());
  open_encoder();
  if (!records && !encoder_) {
    return std::make_unique<TextBytes>(
        group.paths, settings_.sequence_length.value(), settings_.vocabulary_size, notes_);
  }
  const TextEncoder& by = encoder(group);
  has_text_ = true;
  if (by.tokens.eos.empty()) {
    notes_.push_back(fmt::format(
        "{}: the tokenizer names no end-of-sequence token, so nothing marks where a document ends",
        group.paths.front().string()));
  }
  std::unique_ptr<TokenExamples> examples;
  if (records) {
    has_records_ = true;
    examples = std::make_unique<RecordExamples>(
        group.paths, record_format(group), ExampleText(nullptr, LossOn::kAll), by);
  } else {
    auto text = std::make_unique<TextExamples>(group.paths, by);
    std::ranges::copy(text->notes(), std::back_inserter(notes_));
    examples = std::move(text);
  }
  return std::make_unique<ExampleStream>(std::move(examples), example_settings(), notes_);
}

std::unique_ptr<SampleSource> Opener::open_records(const Group& group) {
  const TextEncoder& by = encoder(group);
  has_text_ = has_records_ = has_turns_ = true;
  auto examples = std::make_unique<RecordExamples>(
      group.paths,
      record_format(group),
      ExampleText(chat(group), settings_.loss_on.value_or(LossOn::kAssistant)),
      by);
  return std::make_unique<ExampleRows>(std::move(examples), example_settings(), notes_);
}

/// With the columns that it has of those in the settings: sources of several formats share them.
RecordFormat Opener::record_format(const Group& group) const {
  const auto& known = record_format_columns(group.format);
  Columns columns = settings_.columns;
  std::erase_if(columns, [&](const auto& column) {
    return std::ranges::find(known, column.first) == known.end();
  });
  return {group.format, std::move(columns)};
}

void Opener::check_columns(const std::vector<Group>& groups) const {
  std::vector<std::string> known;
  std::vector<std::string> formats;
  for (const Group& group : groups) {
    const bool records =
        std::ranges::count(record_format_names(), group.format) > 0 && is_json(group.paths.front());
    if (records && std::ranges::count(formats, group.format) == 0) {
      formats.push_back(group.format);
      std::ranges::copy(record_format_columns(group.format), std::back_inserter(known));
    }
  }
  for (const auto& [column, unused] : settings_.columns) {
    if (formats.empty() || std::ranges::find(known, column) != known.end()) {
      continue;
    }
    if (settings_.unused == Unused::kNote) {
      notes_.push_back(fmt::format(
          "data.columns.{} has no use here: {} has no such column",
          column,
          fmt::join(formats, ", ")));
    } else {
      throw UserError(
          "data.columns.{}: {} has no such column; it has {}",
          column,
          fmt::join(formats, ", "),
          fmt::join(known, ", "));
    }
  }
}

/// There may be none.
void Opener::open_encoder() {
  if (encoder_) {
    return;
  }
  encoder_ = open_text_encoder(settings_.tokenizer);
  if (encoder_) {
    require_fitting_tokenizer(
        settings_.tokenizer, encoder_->vocabulary_size, settings_.vocabulary_size);
  }
}

std::string Opener::missing_tokenizer() const {
  if (settings_.tokenizer.empty()) {
    return "the model has no folder that could bring one";
  }
  return settings_.tokenizer.string() +
      (std::filesystem::exists(settings_.tokenizer)
           ? " holds no tokenizer.json"
           : " is neither a folder nor a model's id in the local hub cache");
}

void Opener::check_tokenizer() {
  if (!settings_.tokenizer_named || settings_.vocabulary_size == 0) {
    return;
  }
  open_encoder();
  if (!encoder_) {
    throw UserError("data.tokenizer: {}; give the folder of one", missing_tokenizer());
  }
}

const TextEncoder& Opener::encoder(const Group& group) {
  open_encoder();
  if (!encoder_) {
    throw UserError(
        "data.tokenizer: {} needs a tokenizer, and {}; give the folder of one",
        group.paths.front().string(),
        missing_tokenizer());
  }
  return *encoder_;
}

/// Completions follow their prompts as they are unless a template is asked for.
std::shared_ptr<const ChatTemplate> Opener::chat(const Group& group) {
  if (group.format == "prompt_completion" && settings_.chat_template.empty()) {
    return nullptr;
  }
  if (!chat_) {
    chat_ = open_chat_template(
        {.name = settings_.chat_template, .folder = settings_.tokenizer}, *encoder_);
  }
  if (!chat_ && group.format == "alpaca") {
    return named_chat_template("alpaca", encoder_->around());
  }
  return chat_;
}

void Opener::check_settings() const {
  const auto check_used = [this](bool set, bool used, const char* key, const char* for_what) {
    if (!set || used) {
      return;
    }
    if (settings_.unused == Unused::kRefuse) {
      throw UserError("{} is given, but no file holds {}; leave the key out", key, for_what);
    }
    notes_.push_back(fmt::format("{} has no use here: no file holds {}", key, for_what));
  };
  const bool chooses = settings_.loss_on && *settings_.loss_on != LossOn::kAll;
  check_used(chooses, has_turns_, "data.loss_on", "conversations or completions");
  check_used(
      !settings_.chat_template.empty(),
      has_turns_,
      "data.chat_template",
      "conversations or completions");
  check_used(
      settings_.tokenizer_named, settings_.vocabulary_size > 0, "data.tokenizer", "text or tokens");
  check_used(!settings_.columns.empty(), has_records_, "data.columns", "records");
  check_used(
      settings_.packing, has_text_, "data.packing", "text or records that are tokenized here");
}

std::vector<Group> groups_of(const std::vector<DataFile>& files, const Opener& opener) {
  std::vector<Group> groups;
  for (const DataFile& file : files) {
    const std::string format = opener.format_of(file);
    const bool goes_on = !groups.empty() && groups.back().format == format &&
        groups.back().weight == file.weight && groups.back().option == file.option &&
        is_json(groups.back().paths.front()) == is_json(file.path);
    if (!goes_on) {
      groups.push_back({.format = format, .weight = file.weight, .option = file.option});
    }
    groups.back().paths.push_back(file.path);
  }
  return groups;
}

std::unique_ptr<SampleSource> joined(
    std::vector<std::unique_ptr<SampleSource>> sources,
    const std::vector<DataFile>& files) {
  return from_option(
      files.front().option, [&] { return std::make_unique<JoinedSource>(std::move(sources)); });
}

} // namespace

OpenedData open_data(const DataSettings& settings) {
  if (settings.files.empty()) {
    throw UserError("data.files: no file is given; name at least one");
  }
  OpenedData data;
  Opener opener(settings, data.notes);
  std::vector<std::unique_ptr<SampleSource>> training;
  std::vector<std::unique_ptr<SampleSource>> held_out;
  const std::vector<Group> groups = groups_of(settings.files, opener);
  const std::vector<Group> validation_groups = groups_of(settings.validation_files, opener);
  std::vector<Group> all_groups = groups;
  std::ranges::copy(validation_groups, std::back_inserter(all_groups));
  opener.check_columns(all_groups);
  opener.check_tokenizer();
  for (const Group& group : groups) {
    std::shared_ptr<const SampleSource> all = opener.open(group);
    std::vector<int64_t> chosen;
    if (settings.validation_fraction) {
      if (all->size() < 2) {
        throw UserError(
            "data.validation.fraction: {} has one sample, of which nothing can be held out; give "
            "data.validation.files",
            group.paths.front().string());
      }
      chosen = hold_out(all->size(), *settings.validation_fraction, settings.seed);
      held_out.push_back(std::make_unique<SubsetSource>(all, chosen));
    }
    training.push_back(std::make_unique<SubsetSource>(all, std::move(chosen), /*all_but=*/true));
    data.mixture.push_back({.samples = training.back()->size(), .weight = group.weight});
  }
  for (const Group& group : validation_groups) {
    held_out.push_back(opener.open(group));
  }
  opener.check_settings();
  data.samples = joined(std::move(training), settings.files);
  if (!held_out.empty()) {
    data.validation = joined(
        std::move(held_out),
        settings.validation_files.empty() ? settings.files : settings.validation_files);
  }
  return data;
}

} // namespace palimpsest

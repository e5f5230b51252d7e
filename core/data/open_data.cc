#include <palimpsest/core/data/open_data.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/data/joined_source.h>
#include <palimpsest/core/data/tensors_file.h>
#include <palimpsest/core/data/text_bytes.h>
#include <palimpsest/core/data/token_file.h>

#include <functional>
#include <map>

namespace palimpsest {

namespace {

using Paths = std::vector<std::filesystem::path>;
using Sources = std::vector<std::unique_ptr<SampleSource>>;

Sources open_tokens(const Paths& paths, const DataSettings& settings, Notes& notes) {
  Sources sources;
  for (const auto& path : paths) {
    sources.push_back(std::make_unique<TokenFile>(
        path, settings.sequence_length.value(), settings.vocabulary_size, notes));
  }
  return sources;
}

Sources open_text(const Paths& paths, const DataSettings& settings, Notes& notes) {
  Sources sources;
  sources.push_back(std::make_unique<TextBytes>(
      paths, settings.sequence_length.value(), settings.vocabulary_size, notes));
  return sources;
}

Sources open_tensors(const Paths& paths, const DataSettings& settings, Notes& notes) {
  Sources sources;
  for (const auto& path : paths) {
    if (settings.vocabulary_size == 0 && settings.sequence_length.has_value()) {
      throw UserError(
          "data.sequence_length: {} is given, but {} holds features, which have none; leave the "
          "key out",
          *settings.sequence_length,
          path.string());
    }
    if (settings.vocabulary_size > 0) {
      sources.push_back(std::make_unique<TokenTensorsFile>(
          path, settings.sequence_length, settings.vocabulary_size, notes));
    } else {
      sources.push_back(
          std::make_unique<FeatureTensorsFile>(path, settings.input_size, settings.output_size));
    }
  }
  return sources;
}

struct Format {
  std::function<Sources(const Paths&, const DataSettings&, Notes&)> open;
  std::string ending;
  bool has_features = false; // what a model without a vocabulary can read
};

std::map<std::string, Format> register_formats() {
  return {
      {"tokens", {open_tokens, ".bin"}},
      {"tensors", {open_tensors, ".safetensors", true}},
      {"text", {open_text, ".txt"}},
  };
}

std::string format_of(const DataFile& file, const std::map<std::string, Format>& formats) {
  std::string known;
  for (const auto& [name, format] : formats) {
    if (file.format.empty() ? file.path.extension() == format.ending : file.format == name) {
      return name;
    }
    known += fmt::format("{}{} ({})", known.empty() ? "" : ", ", name, format.ending);
  }
  throw UserError(
      "data.format: {} of {} is unknown; give one of {}",
      file.format.empty() ? "the ending" : '"' + file.format + '"',
      file.path.string(),
      known);
}

} // namespace

OpenedData open_data(const DataSettings& settings) {
  if (settings.files.empty()) {
    throw UserError("data.files: no file is given; name at least one");
  }
  const auto formats = register_formats();
  OpenedData data;
  Sources sources;
  for (size_t next = 0; next < settings.files.size();) {
    const std::string name = format_of(settings.files[next], formats);
    const Format& format = formats.at(name);
    Paths paths; // neighbours of one format
    while (next < settings.files.size() && format_of(settings.files[next], formats) == name) {
      paths.push_back(settings.files[next++].path);
    }
    if (settings.vocabulary_size == 0 && !format.has_features) {
      throw UserError(
          "data.format: {} holds token ids, but the model reads features; give a tensors file with "
          "inputs "
          "and targets",
          name);
    }
    for (auto& source : format.open(paths, settings, data.notes)) {
      sources.push_back(std::move(source));
    }
  }
  data.samples = std::make_unique<JoinedSource>(std::move(sources));
  return data;
}

} // namespace palimpsest

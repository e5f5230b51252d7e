#pragma once

// Opens and checks the data of a run. A new format is a file of its own and a line in open_data.cc.
//
//   OpenedData data = open_data({.files = {{"train.bin"}}, .sequence_length = 512, .vocabulary_size = 32000});
//   for (const std::string& note : data.notes) { ... }     // what was left out or guessed

#include <palimpsest/core/data/sample_source.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest {

struct DataFile {
  std::filesystem::path path;
  std::string format =
      {}; ///< tokens, tensors or text; empty: by the ending, .bin, .safetensors or .txt
};

/// What the samples must be like follows from the model: token ids below `vocabulary_size`, or,
/// where that is 0, features of `input_size` and `output_size` elements.
struct DataSettings {
  std::vector<DataFile> files = {};
  std::optional<int64_t> sequence_length =
      std::nullopt; ///< needed by tokens and text; tensors carry their own, features have none
  int64_t vocabulary_size = 0;
  int64_t input_size = 0;
  int64_t output_size = 0;
};

struct OpenedData {
  std::unique_ptr<SampleSource> samples;
  Notes notes;
};

/// The files in the order given make one sequence of samples. Everything is read once and checked:
/// UserError naming file and key (see the formats), an unknown format, no file.
OpenedData open_data(const DataSettings& settings);

} // namespace palimpsest

#pragma once

// Opens and checks the data of a run. A new format of files is a line in open_data.cc, one of records
// a line in records/record_format.cc.
//
//   OpenedData data = open_data({.files = {{"train.bin"}}, .sequence_length = 512, .vocabulary_size = 32000});
//   for (const std::string& note : data.notes) { ... }     // what was left out or guessed

#include <palimpsest/core/data/examples/example_text.h>
#include <palimpsest/core/data/examples/token_examples.h>
#include <palimpsest/core/data/mixture_order.h>
#include <palimpsest/core/data/records/record_format.h>
#include <palimpsest/core/data/sample_source.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest {

struct DataFile {
  std::filesystem::path path;
  /// tokens, tensors, text, or a format of records; empty: by the ending, .bin, .safetensors, .txt,
  /// or .jsonl and .json for messages.
  std::string format = {};
  double weight = 1; ///< how often an epoch takes each sample
  std::string option = "data.files"; ///< what names the file, for messages
};

/// Settings that no file has a use for: a mistake where they were made for these files, but not where
/// they are a run's and the files others than its own. Then there is a note.
enum class Unused { kRefuse, kNote };

/// What the samples must be like follows from the model: token ids below `vocabulary_size`, or,
/// where that is 0, features of `input_size` and `output_size` elements.
struct DataSettings {
  std::vector<DataFile> files = {};
  std::optional<int64_t> sequence_length =
      std::nullopt; ///< needed by all but tensors, which carry their own; features have none
  int64_t vocabulary_size = 0;
  int64_t input_size = 0;
  int64_t output_size = 0;

  /// The tokenizer's folder: needed by records. Where the user has named it, it is there, whatever
  /// the files are; else text is read as bytes where it holds none.
  std::filesystem::path tokenizer = {};
  bool tokenizer_named = false;
  std::string chat_template = {}; ///< a name or a Jinja file; empty: the tokenizer folder's
  Columns columns = {};
  std::optional<LossOn> loss_on = std::nullopt; ///< unset: what the assistant writes
  bool packing = false;
  Unused unused = Unused::kRefuse;
  FirstReading reading = {}; ///< of text and records

  /// Held out: a share of each source's samples drawn by `seed`, or files of their own. Not both.
  std::optional<double> validation_fraction = std::nullopt;
  std::vector<DataFile> validation_files = {};
  uint64_t seed = 0;
};

struct OpenedData {
  std::unique_ptr<SampleSource> samples;
  std::vector<MixturePart> mixture; ///< of `samples`, in order
  std::unique_ptr<SampleSource> validation; ///< null where nothing is held out
  Notes notes;
};

/// The files in the order given make one sequence of samples; neighbours of one format and weight
/// are one source. Everything is read once and checked: UserError naming file and key (see the
/// formats), an unknown format, no file, a tokenizer of more tokens than the model has ids, a setting
/// that no file heeds.
OpenedData open_data(const DataSettings& settings);

} // namespace palimpsest

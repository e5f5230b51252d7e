#include <palimpsest/launcher/compose/tokenize.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/core/data/examples/record_examples.h>
#include <palimpsest/core/data/examples/text_examples.h>
#include <palimpsest/core/data/records/places.h>
#include <palimpsest/core/data/text_tools.h>
#include <palimpsest/core/data/tokenizer/bpe_trainer.h>
#include <palimpsest/core/data/tokenizer/tokenizer.h>
#include <palimpsest/launcher/compose/ordered_blocks.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <variant>

namespace palimpsest {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlock = 32; // pieces of text or records
constexpr int64_t kUint16Ids = 65536;

bool is_json(const fs::path& path) {
  return path.extension() == ".jsonl" || path.extension() == ".json";
}

RecordFormat record_format(const std::string& format, const std::string& field) {
  return {format, format == "text" ? Columns{{"text", field}} : Columns()};
}

/// What cannot be written is told early; nothing stays of it, the parents that it took included.
void check_output(const fs::path& folder) {
  std::vector<fs::path> missing;
  std::error_code error;
  for (fs::path parent = folder.parent_path(); !parent.empty() && !fs::exists(parent, error);
       parent = parent.parent_path()) {
    missing.push_back(parent);
  }
  AtomicFolder{folder};
  for (const fs::path& parent : missing) {
    fs::remove(parent, error);
  }
}

void check_files(const TextFiles& text) {
  if (text.files.empty()) {
    throw UserError("no file of text is given");
  }
  check(text.threads >= 1, "{} threads", text.threads);
}

/// Pieces by number, over several sources of them.
template <typename Source>
class Joined {
 public:
  void add(std::unique_ptr<Source> source) {
    places_.add(source->size());
    sources_.push_back(std::move(source));
  }
  int64_t size() const {
    return places_.size();
  }
  int64_t blocks() const {
    return (size() + kBlock - 1) / kBlock;
  }
  /// Calls `visit(source, index within it)` for each piece of a block.
  template <typename Visit>
  void for_block(int64_t block, const Visit& visit) const {
    const int64_t end = std::min(size(), (block + 1) * kBlock);
    for (int64_t piece = block * kBlock; piece < end; ++piece) {
      const auto [source, item] = places_[piece];
      visit(*sources_[source], item);
    }
  }

 private:
  std::vector<std::unique_ptr<Source>> sources_;
  Places places_;
};

struct Encoded {
  std::vector<int32_t> ids;
  int64_t documents = 0;
};

template <typename Id>
std::span<const std::byte> as_bytes_of(std::span<const int32_t> ids, std::vector<Id>& buffer) {
  buffer.assign(ids.begin(), ids.end());
  return std::as_bytes(std::span(buffer));
}

/// Writes ids as numbers of two or four bytes.
class TokenWriter {
 public:
  TokenWriter(const fs::path& path, int64_t id_bytes) : file_(path), id_bytes_(id_bytes) {}
  void write(std::span<const int32_t> ids) {
    file_.write(id_bytes_ == 2 ? as_bytes_of(ids, halves_) : as_bytes_of(ids, words_));
  }
  void commit() {
    file_.commit();
  }

 private:
  AtomicFile file_;
  int64_t id_bytes_;
  std::vector<uint16_t> halves_;
  std::vector<uint32_t> words_;
};

int64_t id_bytes_of(const TokenizeSettings& settings, int64_t vocabulary_size) {
  if (settings.id_bytes == 2 && vocabulary_size > kUint16Ids) {
    throw UserError(
        "the tokenizer's {} ids need uint32; leave the type of ids out", vocabulary_size);
  }
  return settings.id_bytes != 0 ? settings.id_bytes : vocabulary_size > kUint16Ids ? 4 : 2;
}

/// One record or piece of text, for the counting of words.
class TextPieces {
 public:
  TextPieces(const fs::path& path, const std::string& field)
      : format_(record_format("text", field)) {
    if (is_json(path)) {
      source_.emplace<RecordFile>(path);
    } else {
      source_.emplace<TextChunks>(
          path, [](std::string_view text) { return last_word_cut(text, /*line_ends=*/true); });
    }
  }
  int64_t size() const {
    return records() != nullptr ? records()->size() : chunks().size();
  }
  void count(int64_t index, WordCounts& counts) const {
    if (const RecordFile* file = records()) {
      file->located(index, [&] {
        counts.add(std::get<Document>(format_.example(file->read(index))).text);
        return true;
      });
    } else {
      counts.add(chunks().chunk(index));
      chunks().release(index);
    }
  }

 private:
  const RecordFile* records() const {
    return std::get_if<RecordFile>(&source_);
  }
  const TextChunks& chunks() const {
    return std::get<TextChunks>(source_);
  }

  RecordFormat format_;
  std::variant<std::monostate, RecordFile, TextChunks> source_;
};

Joined<TokenExamples> open_examples(
    const TokenizeSettings& settings,
    const TextEncoder& encoder,
    Notes& notes) {
  const auto has_records = std::ranges::any_of(settings.text.files, is_json);
  std::shared_ptr<const ChatTemplate> chat;
  if (has_records && settings.format != "text") {
    chat =
        open_chat_template({.name = settings.chat_template, .folder = settings.tokenizer}, encoder);
  }
  if (encoder.tokens.eos.empty()) {
    notes.emplace_back(
        "the tokenizer names no end-of-sequence token, so nothing marks where a document ends");
  }
  Joined<TokenExamples> examples;
  for (const fs::path& path : settings.text.files) {
    if (is_json(path)) {
      examples.add(std::make_unique<RecordExamples>(
          std::vector{path},
          record_format(settings.format, settings.text.field),
          ExampleText(chat, LossOn::kAll),
          encoder));
    } else {
      auto texts = std::make_unique<TextExamples>(std::vector{path}, encoder);
      std::ranges::copy(texts->notes(), std::back_inserter(notes));
      examples.add(std::move(texts));
    }
  }
  return examples;
}

} // namespace

TokenizeSummary tokenize(const TokenizeSettings& settings, const TextProgress& progress) {
  check_files(settings.text);
  const auto tokenizer = std::make_shared<const Tokenizer>(settings.tokenizer);
  const TextEncoder encoder = text_encoder(tokenizer);
  TokenizeSummary summary;
  summary.id_bytes = id_bytes_of(settings, tokenizer->vocabulary_size());
  const Joined<TokenExamples> examples = open_examples(settings, encoder, summary.notes);
  TokenWriter file(settings.output, summary.id_bytes);
  int64_t done = 0;
  for_ordered_blocks(
      examples.blocks(),
      settings.text.threads,
      [&](int64_t block, int /*thread*/) {
        Encoded encoded;
        examples.for_block(block, [&](const TokenExamples& source, int64_t index) {
          const std::vector<int32_t> ids = source.read(index).ids;
          encoded.ids.insert(encoded.ids.end(), ids.begin(), ids.end());
          encoded.documents += source.begins_document(index) ? 1 : 0;
        });
        return encoded;
      },
      [&](const Encoded& encoded) {
        file.write(encoded.ids);
        summary.tokens += std::ssize(encoded.ids);
        summary.documents += encoded.documents;
        ++done;
        if (progress) {
          progress(
              static_cast<double>(done) / static_cast<double>(examples.blocks()), summary.tokens);
        }
      });
  file.commit();
  return summary;
}

TrainTokenizerSummary train_tokenizer(
    const TrainTokenizerSettings& settings,
    const TextProgress& progress) {
  check_files(settings.text);
  const auto special = static_cast<int64_t>(settings.special.size());
  constexpr int64_t kBytes = 256;
  const int64_t tokens = settings.vocabulary_size - special;
  if (tokens < kBytes) {
    throw UserError(
        "a vocabulary of {} tokens does not hold the {} bytes and {} special tokens; give at least "
        "{}",
        settings.vocabulary_size,
        kBytes,
        special,
        kBytes + special);
  }
  check_output(settings.output);
  Joined<TextPieces> texts;
  for (const fs::path& path : settings.text.files) {
    texts.add(std::make_unique<TextPieces>(path, settings.text.field));
  }
  std::vector<WordCounts> counts(
      static_cast<size_t>(settings.text.threads), WordCounts(settings.words));
  // Half of the way: words are counted, then pairs are merged.
  int64_t done = 0;
  const auto report = [&](double share, int64_t made) {
    if (progress) {
      progress(share / 2, made);
    }
  };
  for_ordered_blocks(
      texts.blocks(),
      settings.text.threads,
      [&](int64_t block, int thread) {
        texts.for_block(block, [&](const TextPieces& source, int64_t index) {
          source.count(index, counts[static_cast<size_t>(thread)]);
        });
        return true;
      },
      [&](bool /*counted*/) {
        report(static_cast<double>(++done) / static_cast<double>(texts.blocks()), 0);
      });
  WordCounts& all = counts.front();
  for (size_t thread = 1; thread < counts.size(); ++thread) {
    all.merge(counts[thread]);
  }
  TrainTokenizerSummary summary{.words = all.different_words(), .tokens = settings.vocabulary_size};
  if (all.long_words() > 0) {
    summary.notes.push_back(fmt::format(
        "{} words of more than {} bytes are left out", all.long_words(), WordCounts::kLongestWord));
  }
  const auto merged = [&](int64_t made) {
    report(1 + static_cast<double>(made) / static_cast<double>(tokens), made);
  };
  const TrainedBpe bpe = train_bpe(all, tokens, merged, special);
  write_tokenizer(bpe, settings.special, settings.output);
  return summary;
}

} // namespace palimpsest

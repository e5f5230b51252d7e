#pragma once

// A model's tokenizer: text to token ids and back, exactly as the reference library of Hugging Face
// does it.
//
//   const Tokenizer tokenizer("Llama-3.2-1B");       // tokenizer.json, tokenizer_config.json
//   Encoder encoder(tokenizer);                      // one per thread
//   std::vector<int32_t> ids;
//   encoder.encode("Hello world", SpecialTokens::kAdd, ids);      // appends
//   tokenizer.decode(ids, SpecialTokens::kNone);                  // "Hello world"
//
// Byte-pair encodings are read: byte-level ones (GPT-2, LLaMA 3, Qwen) and those of characters with
// byte fallback (LLaMA 2, Mistral, Gemma). A component that is not supported is refused by name.
// Truncation and padding that a file asks for are left to whoever makes batches, and
// "clean_up_tokenization_spaces" is not applied: decoded text is what the tokens say.

#include <palimpsest/core/data/tokenizer/added_tokens.h>
#include <palimpsest/core/data/tokenizer/bpe.h>
#include <palimpsest/core/data/tokenizer/decoder.h>
#include <palimpsest/core/data/tokenizer/normalizer.h>
#include <palimpsest/core/data/tokenizer/pre_tokenizer.h>
#include <palimpsest/core/data/tokenizer/word_cache.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {

struct TokenizerFolder;

/// Whether to add the template's special tokens around a text, or to keep those of `ids` in text.
enum class SpecialTokens { kNone, kAdd };

/// Immutable; all threads may use one.
class Tokenizer {
 public:
  /// Of a model folder. UserError naming file and component where it cannot be read as it is meant.
  explicit Tokenizer(const std::filesystem::path& folder);

  /// One more than the largest id.
  int64_t vocabulary_size() const {
    return static_cast<int64_t>(tokens_.size());
  }
  /// The token as the files write it; empty where the id has none.
  const std::string& token(int32_t id) const;
  std::optional<int32_t> id(std::string_view token) const;
  bool is_special(int32_t id) const;

  /// Those that the config names.
  std::optional<int32_t> beginning() const {
    return beginning_;
  }
  std::optional<int32_t> end() const {
    return end_;
  }
  std::optional<int32_t> padding() const {
    return padding_;
  }
  std::optional<int32_t> unknown() const {
    return unknown_;
  }

  /// What the template puts before and after a text.
  const std::vector<int32_t>& prefix() const {
    return prefix_;
  }
  const std::vector<int32_t>& suffix() const {
    return suffix_;
  }

  /// The text of these ids, with or without special tokens (kAdd: with them). Bytes that are no
  /// UTF-8 become U+FFFD; an id without a token is nothing.
  std::string decode(std::span<const int32_t> ids, SpecialTokens special) const;
  /// For text that grows token by token.
  DecoderStream decoder_stream() const {
    return DecoderStream(decoder_);
  }

  /// The last byte of `text` at which a text that begins so can be cut: the tokens of both parts, the
  /// second encoded as continued, are those of the whole. Empty where there is no such place, or the
  /// tokenizer allows none. `text` may end within a character.
  std::optional<size_t> last_cut(std::string_view text) const;

 private:
  friend class Encoder;

  explicit Tokenizer(const TokenizerFolder& files);
  void add_tokens(const TokenizerFolder& files);
  void read_template(const Component& processor);
  void read_single(const Component& processor);
  void read_roles(const TokenizerFolder& files);
  WordCuts cuts() const;

  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  Bpe bpe_;
  std::vector<AddedToken> added_;
  std::vector<std::string> tokens_; // by id
  std::vector<bool> special_; // by id
  Decoder decoder_;
  AddedTokenFinder finder_; // in the text as it is given
  AddedTokenFinder normalized_finder_; // in the normalised text
  std::vector<int32_t> prefix_;
  std::vector<int32_t> suffix_;
  std::optional<int32_t> beginning_;
  std::optional<int32_t> end_;
  std::optional<int32_t> padding_;
  std::optional<int32_t> unknown_;
  bool split_at_marks_ = false;
  WordCuts cuts_ = WordCuts::kNone;
};

/// Encodes for one thread; keeps memory and the words met from call to call.
class Encoder {
 public:
  /// The tokenizer outlives it.
  explicit Encoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  /// Appends the tokens of a text. UserError where it is no UTF-8, naming the byte, or has a
  /// character that no token stands for.
  void encode(std::string_view text, SpecialTokens special, std::vector<int32_t>& ids);

  /// The same without special tokens for a part of a text, cut as Tokenizer::last_cut allows.
  /// `continued`: it is not the first part.
  void encode_part(std::string_view text, bool continued, std::vector<int32_t>& ids);

 private:
  void encode_section(
      std::string_view text,
      bool at_start,
      bool continued,
      std::vector<int32_t>& ids);
  void encode_words(bool at_start, std::vector<int32_t>& ids);
  void encode_marked(std::string_view word, std::vector<int32_t>& ids);
  void encode_word(std::string_view word, std::vector<int32_t>& ids);

  const Tokenizer& tokenizer_;
  Regex::Matcher matcher_;
  Words words_;
  Bpe::Scratch scratch_;
  WordCache cache_;
};

} // namespace palimpsest

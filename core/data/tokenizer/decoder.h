#pragma once

// Tokens back into text, all at once or one by one as they are generated.
//
//   DecoderStream stream(decoder);
//   for (int32_t id : generated) { std::cout << stream.push(id) << std::flush; }
//   std::cout << stream.finish();
//
// What the pushes and finish() give, put together, is the text of all tokens: a character whose
// bytes are spread over tokens is held back until it is whole, and bytes that never become one are
// U+FFFD.

#include <palimpsest/core/data/tokenizer/component.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace palimpsest {

/// What each token stands for, worked out once.
class Decoder {
 public:
  /// Of no tokens.
  Decoder() = default;
  /// `tokens` by id, an empty one where an id has none. ByteLevel, Metaspace, or a Sequence of
  /// Replace, ByteFallback, Fuse and Strip at the start, in this order; null puts spaces between
  /// tokens. UserError naming file and component for any other.
  Decoder(const Component& component, const std::vector<std::string>& tokens);

 private:
  friend class DecoderStream;
  enum class Form {
    kBytes, ///< tokens are bytes of one text
    kTexts, ///< tokens are texts, some of them bytes
    kSpaced, ///< tokens are texts with spaces between
  };

  void read_sequence(const Component& component);
  void prepare(const std::vector<std::string>& tokens);
  std::string text_of(const std::string& token) const;

  Form form_ = Form::kSpaced;
  std::vector<std::pair<std::string, std::string>> replacements_;
  bool byte_fallback_ = false;
  std::string strip_content_; // at the start of the text, up to strip_count_ times
  int64_t strip_count_ = 0;
  std::string first_dropped_; // Metaspace: what the first token loses
  std::vector<std::string> texts_; // by id; bytes where is_byte_
  std::vector<bool> is_byte_;
  std::vector<std::string> first_texts_; // by id, where the first token of a text differs
};

class DecoderStream {
 public:
  /// The decoder outlives it.
  explicit DecoderStream(const Decoder& decoder) : decoder_(&decoder) {}

  /// The text that this token decides. An id without a token is nothing.
  std::string push(int32_t id);
  /// What was held back; then a new text begins.
  std::string finish();

 private:
  void flush_bytes(std::string& text);
  std::string stripped(std::string text);

  const Decoder* decoder_;
  std::string held_; // bytes that are no whole character yet
  bool first_ = true;
  int64_t stripped_ = 0;
  bool strips_ = true;
};

} // namespace palimpsest

#include <palimpsest/core/data/tokenizer/decoder.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/data/tokenizer/byte_alphabet.h>
#include <palimpsest/core/data/tokenizer/text_pattern.h>
#include <palimpsest/core/data/tokenizer/utf8.h>

#include <charconv>
#include <utility>

namespace palimpsest {

namespace {

void replace_all(std::string& text, const std::string& pattern, const std::string& content) {
  for (size_t at = text.find(pattern); at != std::string::npos;
       at = text.find(pattern, at + content.size())) {
    text.replace(at, pattern.size(), content);
  }
}

/// The byte of a token "<0x41>".
std::optional<char> byte_of(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') {
    return std::nullopt;
  }
  uint8_t byte = 0;
  const char* begin = token.data() + 3;
  const auto [end, error] = std::from_chars(begin, begin + 2, byte, 16);
  return error == std::errc() && end == begin + 2 ? std::optional(static_cast<char>(byte))
                                                  : std::nullopt;
}

} // namespace

Decoder::Decoder(const Component& component, const std::vector<std::string>& tokens) {
  if (!component.is_null()) {
    const std::string type = component.type();
    if (type == "ByteLevel") {
      form_ = Form::kBytes;
    } else if (type == "Metaspace") {
      form_ = Form::kTexts;
      const bool prefix = component.boolean("add_prefix_space", true) &&
          !(component.has("prepend_scheme") && component.string("prepend_scheme") == "never");
      first_dropped_ = prefix ? component.string("replacement") : "";
      replacements_.emplace_back(component.string("replacement"), " ");
    } else if (type == "Sequence" && component.list("decoders").size() == 1) {
      *this = Decoder(component.list("decoders").front(), tokens);
      return;
    } else if (type == "Sequence") {
      read_sequence(component);
    } else {
      component.refuse("type", "ByteLevel, Metaspace and Sequence are supported");
    }
  }
  prepare(tokens);
}

void Decoder::read_sequence(const Component& component) {
  form_ = Form::kTexts;
  const std::vector<std::string> order{"Replace", "ByteFallback", "Fuse", "Strip"};
  size_t stage = 0;
  bool fuses = false;
  for (const Component& member : component.list("decoders")) {
    const std::string type = member.type();
    size_t own = 0;
    while (own < order.size() && order[own] != type) {
      ++own;
    }
    if (own == order.size() || own < stage) {
      member.refuse("type", "Replace, ByteFallback, Fuse and Strip are supported, in this order");
    }
    stage = own;
    if (type == "Replace") {
      const TextPattern pattern(member);
      if (!pattern.is_literal()) {
        member.refuse("pattern", "only a String is supported in a decoder");
      }
      replacements_.emplace_back(pattern.source(), member.string("content"));
    } else if (type == "ByteFallback") {
      byte_fallback_ = true;
    } else if (type == "Fuse") {
      fuses = true;
    } else {
      if (!fuses) {
        member.refuse("type", "it is supported after Fuse only");
      }
      if (member.integer("stop") != 0) {
        member.refuse("stop", "only 0 is supported");
      }
      strip_content_ = member.string("content");
      strip_count_ = member.integer("start");
    }
  }
}

std::string Decoder::text_of(const std::string& token) const {
  std::string text = token;
  for (const auto& [pattern, content] : replacements_) {
    replace_all(text, pattern, content);
  }
  return text;
}

void Decoder::prepare(const std::vector<std::string>& tokens) {
  texts_.reserve(tokens.size());
  is_byte_.resize(tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (form_ == Form::kBytes) {
      texts_.push_back(bytes_of_token(tokens[id]).value_or(tokens[id]));
      continue;
    }
    texts_.push_back(text_of(tokens[id]));
    if (const std::optional<char> byte = byte_of(texts_[id]); byte_fallback_ && byte) {
      texts_[id] = std::string(1, *byte);
      is_byte_[id] = true;
    }
  }
  if (!first_dropped_.empty()) {
    for (const std::string& token : tokens) {
      std::string text = token;
      replace_all(text, first_dropped_, "");
      first_texts_.push_back(std::move(text));
    }
  }
}

void DecoderStream::flush_bytes(std::string& text) {
  if (held_.empty()) {
    return;
  }
  if (!invalid_utf8(held_)) {
    text += held_;
  } else { // as the reference library: one for each byte of the run
    for (size_t i = 0; i < held_.size(); ++i) {
      text += kReplacementCharacter;
    }
  }
  held_.clear();
}

std::string DecoderStream::stripped(std::string text) {
  const std::string& content = decoder_->strip_content_;
  while (strips_ && !text.empty()) {
    if (stripped_ == decoder_->strip_count_ || content.empty() || !text.starts_with(content)) {
      strips_ = false;
    } else {
      text.erase(0, content.size());
      ++stripped_;
    }
  }
  return text;
}

std::string DecoderStream::push(int32_t id) {
  std::string text;
  if (id < 0 || static_cast<size_t>(id) >= decoder_->texts_.size() ||
      decoder_->texts_[id].empty()) {
    return text;
  }
  const bool first = std::exchange(first_, false);
  switch (decoder_->form_) {
    case Decoder::Form::kBytes:
      held_ += decoder_->texts_[id];
      take_characters(held_, /*last=*/false, text);
      return text;
    case Decoder::Form::kSpaced:
      return (first ? "" : " ") + decoder_->texts_[id];
    case Decoder::Form::kTexts:
      break;
  }
  if (decoder_->is_byte_[id]) {
    held_ += decoder_->texts_[id];
    return text;
  }
  flush_bytes(text);
  text +=
      first && !decoder_->first_texts_.empty() ? decoder_->first_texts_[id] : decoder_->texts_[id];
  return stripped(std::move(text));
}

std::string DecoderStream::finish() {
  std::string text;
  if (decoder_->form_ == Decoder::Form::kBytes) {
    take_characters(held_, /*last=*/true, text);
  } else {
    flush_bytes(text);
    text = stripped(std::move(text));
  }
  *this = DecoderStream(*decoder_);
  return text;
}

} // namespace palimpsest

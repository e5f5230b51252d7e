#include <palimpsest/core/data/tokenizer/tokenizer.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/data/tokenizer/char_class.h>
#include <palimpsest/core/data/tokenizer/tokenizer_folder.h>
#include <palimpsest/core/data/tokenizer/utf8.h>
#include <palimpsest/core/data/tokenizer/word_scanner.h>
#include <palimpsest/core/io/json.h>

#include <algorithm>
#include <utility>

namespace palimpsest {

namespace {

using Json = nlohmann::json;

constexpr std::string_view kSpaceMark = "\xe2\x96\x81"; // U+2581

/// The component at `key`, or null.
Component part_of(const TokenizerFolder& files, const std::string& key) {
  static const Json kNull;
  const auto found = files.tokenizer.find(key);
  return {found == files.tokenizer.end() ? kNull : *found, files.file, key};
}

bool is_whitespace(std::string_view text, size_t at) {
  return char_class(utf8_at(text, at).code) == CharClass::kSpace;
}

/// Whether a text may be cut between a letter and white space with such a token about.
bool allows_cuts(const AddedToken& token) {
  const std::string& text = token.content;
  const size_t last = utf8_before(text, text.size());
  if (char_class(utf8_at(text, last).code) == CharClass::kLetter) {
    return false;
  }
  for (size_t at = 0; at < text.size(); at += utf8_at(text, at).size) {
    if (is_whitespace(text, at)) {
      return false;
    }
  }
  return true;
}

} // namespace

Tokenizer::Tokenizer(const std::filesystem::path& folder)
    : Tokenizer(read_tokenizer_folder(folder)) {}

Tokenizer::Tokenizer(const TokenizerFolder& files)
    : normalizer_(part_of(files, "normalizer")), pre_tokenizer_(part_of(files, "pre_tokenizer")),
      bpe_(part_of(files, "model"), pre_tokenizer_.byte_level()), added_(files.added),
      tokens_(bpe_.tokens()) {
  add_tokens(files);
  decoder_ = Decoder(part_of(files, "decoder"), tokens_);
  const Component processor = part_of(files, "post_processor");
  if (!processor.is_null()) {
    read_template(processor);
  }
  read_roles(files);
  split_at_marks_ = bpe_.separable_at_marks();
  cuts_ = cuts();
}

void Tokenizer::add_tokens(const TokenizerFolder& files) {
  std::vector<AddedToken> plain;
  std::vector<AddedToken> normalized;
  Regex::Matcher matcher;
  for (const auto& [role, content] : files.roles) { // as transformers adds them
    const bool added = std::ranges::count(added_, content, &AddedToken::content) > 0;
    if (const std::optional<int32_t> known = bpe_.id(content); known && !added) {
      added_.push_back({.content = content, .id = *known, .special = true});
    }
  }
  for (const AddedToken& token : added_) {
    if (token.content.empty()) {
      throw UserError("{}: the added token of id {} is empty", files.file, token.id);
    }
    tokens_.resize(std::max(tokens_.size(), static_cast<size_t>(token.id) + 1));
    const std::optional<int32_t> known = bpe_.id(token.content);
    if ((known && *known != token.id) ||
        (!tokens_[token.id].empty() && tokens_[token.id] != token.content)) {
      throw UserError(
          "{}: the added token {} has the id {}, but {}",
          files.file,
          quote(token.content),
          token.id,
          known ? fmt::format("the vocabulary gives it {}", *known)
                : fmt::format("that is {}'s", quote(tokens_[token.id])));
    }
    tokens_[token.id] = token.content;
    if (token.normalized) {
      normalized.push_back(token);
      normalizer_.apply(normalized.back().content, /*continued=*/false, matcher);
    } else {
      plain.push_back(token);
    }
  }
  special_.resize(tokens_.size());
  for (const AddedToken& token : added_) {
    special_[token.id] = token.special;
  }
  finder_ = AddedTokenFinder(std::move(plain));
  normalized_finder_ = AddedTokenFinder(std::move(normalized));
}

void Tokenizer::read_template(const Component& processor) {
  const std::string type = processor.type();
  if (type == "Sequence") {
    for (const Component& member : processor.list("processors")) {
      read_template(member);
    }
  } else if (type == "TemplateProcessing") {
    read_single(processor);
  } else if (type != "ByteLevel") { // which only moves offsets
    processor.refuse("type", "TemplateProcessing, ByteLevel and Sequence are supported");
  }
}

void Tokenizer::read_single(const Component& processor) {
  if (!prefix_.empty() || !suffix_.empty()) {
    processor.refuse("type", "one template is supported");
  }
  bool text_seen = false;
  for (const Component& piece : processor.list("single")) {
    if (piece.json().is_object() && piece.has("Sequence")) {
      if (text_seen || piece.at("Sequence").string("id") != "A") {
        piece.refuse("Sequence", "one sequence A is supported");
      }
      text_seen = true;
      continue;
    }
    const std::string name = piece.at("SpecialToken").string("id");
    for (const Component& id : processor.at("special_tokens").at(name).list("ids")) {
      if (!id.json().is_number_integer() || id.json() < 0 || id.json() >= vocabulary_size()) {
        throw UserError("{} is no id of the vocabulary", id.where());
      }
      (text_seen ? suffix_ : prefix_).push_back(id.json().get<int32_t>());
    }
  }
  if (!text_seen) {
    processor.refuse("single", "it has no sequence A");
  }
}

void Tokenizer::read_roles(const TokenizerFolder& files) {
  const auto role = [&](const std::string& name) -> std::optional<int32_t> {
    const auto found = files.roles.find(name);
    if (found == files.roles.end()) {
      return std::nullopt;
    }
    const std::optional<int32_t> known = id(found->second);
    if (!known) {
      throw UserError(
          "{}: {} is {}, which is not among the tokens of {}",
          files.roles_file,
          name,
          quote(found->second),
          files.file);
    }
    special_[*known] = true;
    return known;
  };
  beginning_ = role("bos_token");
  end_ = role("eos_token");
  padding_ = role("pad_token");
  unknown_ = role("unk_token");
  // tokenizer_config.json has the last word on these two, as in transformers.
  const auto settle = [&](std::optional<bool> wanted,
                          std::optional<int32_t> id,
                          std::vector<int32_t>& around,
                          std::string_view key) {
    if (!wanted) {
      return;
    }
    if (*wanted && !id) {
      throw UserError("{}: add_{} is true, but there is no {}", files.roles_file, key, key);
    }
    if (*wanted) {
      around = {*id};
    } else if (id) {
      std::erase(around, *id);
    }
  };
  settle(files.add_bos, beginning_, prefix_, "bos_token");
  settle(files.add_eos, end_, suffix_, "eos_token");
}

WordCuts Tokenizer::cuts() const {
  if (!normalizer_.works_on_parts() || !std::ranges::all_of(added_, allows_cuts)) {
    return WordCuts::kNone;
  }
  const WordCuts words = pre_tokenizer_.cuts(normalizer_.marks_spaces());
  if (words == WordCuts::kModel) {
    return bpe_.separable_at_marks() ? WordCuts::kSpaces : WordCuts::kNone;
  }
  return words == WordCuts::kWhitespace && normalizer_.prepends() ? WordCuts::kSpaces : words;
}

const std::string& Tokenizer::token(int32_t id) const {
  static const std::string kNone;
  return id >= 0 && id < vocabulary_size() ? tokens_[id] : kNone;
}

std::optional<int32_t> Tokenizer::id(std::string_view token) const {
  for (const AddedToken& added : added_) {
    if (added.content == token) {
      return added.id;
    }
  }
  return bpe_.id(token);
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < vocabulary_size() && special_[id];
}

std::string Tokenizer::decode(std::span<const int32_t> ids, SpecialTokens special) const {
  DecoderStream stream(decoder_);
  std::string text;
  for (const int32_t id : ids) {
    if (special == SpecialTokens::kAdd || !is_special(id)) {
      text += stream.push(id);
    }
  }
  return text + stream.finish();
}

std::optional<size_t> Tokenizer::last_cut(std::string_view text) const {
  if (cuts_ == WordCuts::kNone) {
    return std::nullopt;
  }
  Regex::Matcher matcher;
  return last_word_cut(text, cuts_ == WordCuts::kWhitespace, [&](std::string_view letter) {
    std::string normal(letter);
    normalizer_.apply(normal, /*continued=*/true, matcher);
    return normal == letter;
  });
}

void Encoder::encode(std::string_view text, SpecialTokens special, std::vector<int32_t>& ids) {
  if (special == SpecialTokens::kAdd) {
    ids.insert(ids.end(), tokenizer_.prefix_.begin(), tokenizer_.prefix_.end());
  }
  encode_part(text, /*continued=*/false, ids);
  if (special == SpecialTokens::kAdd) {
    ids.insert(ids.end(), tokenizer_.suffix_.begin(), tokenizer_.suffix_.end());
  }
}

void Encoder::encode_part(std::string_view text, bool continued, std::vector<int32_t>& ids) {
  require_utf8(text);
  tokenizer_.finder_.find(text, [&](const AddedTokenFinder::Piece& piece) {
    if (piece.id) {
      ids.push_back(*piece.id);
      return;
    }
    const bool front = piece.begin == 0;
    encode_section(
        text.substr(piece.begin, piece.end - piece.begin),
        front && !continued,
        front && continued,
        ids);
  });
}

void Encoder::encode_section(
    std::string_view text,
    bool at_start,
    bool continued,
    std::vector<int32_t>& ids) {
  words_.text = text;
  tokenizer_.normalizer_.apply(words_.text, continued, matcher_);
  if (tokenizer_.normalized_finder_.empty()) {
    encode_words(at_start, ids);
    return;
  }
  const std::string normalized = words_.text;
  tokenizer_.normalized_finder_.find(normalized, [&](const AddedTokenFinder::Piece& piece) {
    if (piece.id) {
      ids.push_back(*piece.id);
      return;
    }
    words_.text.assign(normalized, piece.begin, piece.end - piece.begin);
    encode_words(at_start && piece.begin == 0, ids);
  });
}

void Encoder::encode_words(bool at_start, std::vector<int32_t>& ids) {
  tokenizer_.pre_tokenizer_.split(words_, at_start, matcher_);
  size_t begin = 0;
  for (const size_t end : words_.ends) {
    const auto word = std::string_view(words_.text).substr(begin, end - begin);
    if (tokenizer_.split_at_marks_) {
      encode_marked(word, ids);
    } else {
      encode_word(word, ids);
    }
    begin = end;
  }
}

void Encoder::encode_marked(std::string_view word, std::vector<int32_t>& ids) {
  const auto is_mark = [&](size_t at) { return word.substr(at).starts_with(kSpaceMark); };
  size_t begin = 0;
  while (begin < word.size()) {
    size_t end = begin;
    while (is_mark(end)) {
      end += kSpaceMark.size();
    }
    end = std::min(word.find(kSpaceMark, end), word.size());
    encode_word(word.substr(begin, end - begin), ids);
    begin = end;
  }
}

void Encoder::encode_word(std::string_view word, std::vector<int32_t>& ids) {
  if (word.size() > WordCache::kMaxBytes) {
    tokenizer_.bpe_.encode(word, scratch_, ids);
    return;
  }
  WordCache::Slot& slot = cache_.slot(word);
  if (slot.holds(word)) {
    ids.insert(ids.end(), slot.ids().begin(), slot.ids().end());
    return;
  }
  const size_t before = ids.size();
  tokenizer_.bpe_.encode(word, scratch_, ids);
  slot.set(word, std::span(ids).subspan(before));
}

} // namespace palimpsest

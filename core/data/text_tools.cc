#include <palimpsest/core/data/text_tools.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/data/chat/model_template.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

namespace palimpsest {

namespace {

/// Encoders that wait for the next caller: one serves one thread at a time.
class EncoderPool {
 public:
  explicit EncoderPool(std::shared_ptr<const Tokenizer> tokenizer)
      : tokenizer_(std::move(tokenizer)) {}

  /// `use` gets an encoder and fills the ids.
  template <typename Use>
  std::vector<int32_t> encode(Use use) {
    std::unique_ptr<Encoder> encoder = take();
    std::vector<int32_t> ids;
    use(*encoder, ids);
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(encoder));
    return ids;
  }

 private:
  std::unique_ptr<Encoder> take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) {
      return std::make_unique<Encoder>(*tokenizer_);
    }
    std::unique_ptr<Encoder> encoder = std::move(idle_.back());
    idle_.pop_back();
    return encoder;
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Encoder>> idle_;
};

std::string text_of(const Tokenizer& tokenizer, const std::optional<int32_t>& id) {
  return id ? tokenizer.token(*id) : std::string();
}

std::shared_ptr<const ChatTemplate> jinja_template(
    const TemplateSource& source,
    const TemplateTokens& tokens) {
  return std::make_shared<JinjaTemplate>(source.text, tokens, JinjaOptions{.file = source.file});
}

} // namespace

TextEncoder text_encoder(std::shared_ptr<const Tokenizer> tokenizer) {
  const auto pool = std::make_shared<EncoderPool>(tokenizer);
  TextEncoder encoder;
  encoder.encode = [pool](std::string_view text) {
    return pool->encode([&](Encoder& one, std::vector<int32_t>& ids) {
      one.encode(text, SpecialTokens::kNone, ids);
    });
  };
  encoder.encode_rest = [pool](std::string_view text) {
    return pool->encode(
        [&](Encoder& one, std::vector<int32_t>& ids) { one.encode_part(text, true, ids); });
  };
  encoder.last_cut = [tokenizer](std::string_view text) { return tokenizer->last_cut(text); };
  encoder.vocabulary_size = tokenizer->vocabulary_size();
  encoder.tokens = {
      .bos = text_of(*tokenizer, tokenizer->beginning()),
      .eos = text_of(*tokenizer, tokenizer->end())};
  encoder.before = tokenizer->prefix();
  encoder.after = tokenizer->suffix();
  if (const auto end = tokenizer->end();
      end && (encoder.after.empty() || encoder.after.back() != *end)) {
    encoder.after.push_back(*end);
  }
  encoder.adds_bos =
      tokenizer->beginning() && encoder.before == std::vector{*tokenizer->beginning()};
  return encoder;
}

bool holds_tokenizer(const std::filesystem::path& folder) {
  return !folder.empty() &&
      (std::filesystem::exists(folder / "tokenizer.json") ||
       std::filesystem::exists(folder / "vocab.json"));
}

std::optional<TextEncoder> open_text_encoder(const std::filesystem::path& folder) {
  return holds_tokenizer(folder)
      ? std::optional(text_encoder(std::make_shared<const Tokenizer>(folder)))
      : std::nullopt;
}

void require_fitting_tokenizer(
    const std::filesystem::path& folder,
    int64_t tokens,
    int64_t vocabulary_size) {
  if (tokens > vocabulary_size) {
    throw UserError(
        "data.tokenizer: the tokenizer of {} has {} tokens, and the model's vocabulary {}; name "
        "the "
        "folder of the tokenizer that belongs to the model",
        folder.string(),
        tokens,
        vocabulary_size);
  }
}

std::shared_ptr<const ChatTemplate> open_chat_template(
    const ChatTemplateChoice& choice,
    const TextEncoder& encoder) {
  if (choice.name.empty()) {
    const auto source = choice.folder.empty() ? std::nullopt : model_chat_template(choice.folder);
    return source ? jinja_template(*source, encoder.tokens) : nullptr;
  }
  const std::vector<std::string> names = named_chat_templates();
  if (std::ranges::find(names, choice.name) == names.end() &&
      std::filesystem::exists(choice.name)) {
    return jinja_template(read_template(choice.name), encoder.tokens);
  }
  return named_chat_template(choice.name, encoder.around());
}

} // namespace palimpsest

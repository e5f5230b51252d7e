#include <palimpsest/launcher/compose/chat.h>

#include <palimpsest/core/base/error.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace palimpsest {
namespace {

int64_t tokens_in_common(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

} // namespace

Chat::Chat(
    GenerationModel& model,
    const GenerationText& text,
    GenerationSettings generation,
    ChatSettings settings)
    : model_(model), text_(text), settings_(std::move(settings)),
      max_positions_(
          generation.max_positions == 0 ? std::numeric_limits<int64_t>::max()
                                        : generation.max_positions),
      generator_(model.generator(), text, std::move(generation)),
      cache_(model.generator().new_cache(max_positions_)) {
  reset();
}

void Chat::reset() {
  conversation_.clear();
  if (!settings_.system.empty()) {
    conversation_.push_back({"system", settings_.system});
  }
  cache_ = model_.generator().new_cache(max_positions_);
  held_.clear();
}

GenerationResult Chat::reply(const std::string& message, const GenerationCallbacks& callbacks) {
  text_.require_text(message);
  Conversation asked = conversation_;
  asked.push_back({"user", message});
  GenerationRequest request{
      .prompt = text_.encode(asked),
      .number = turn_,
      .max_new_tokens = settings_.max_new_tokens,
      .reply = true,
      .cache = &cache_};
  if (generator_.room(request) < 1) {
    throw UserError(
        "the conversation has {} tokens, and the model has {} positions for it and the reply; "
        "/reset begins a new one",
        request.prompt.size(),
        max_positions_);
  }
  GenerationResult result;
  GenerationCallbacks all = callbacks;
  all.done = [&](size_t, const GenerationResult& reply) { result = reply; };
  model_.compute("generating a reply", [&] {
    const int64_t kept = cache_.truncate(
        std::min(tokens_in_common(held_, request.prompt), std::ssize(request.prompt) - 1));
    tokens_read_ = std::ssize(request.prompt) - kept;
    held_.clear(); // where computing fails, the cache holds who knows what
    generator_.run({&request, 1}, all);
  });
  held_ = request.prompt;
  std::ranges::copy(result.tokens, std::back_inserter(held_));
  held_.resize(static_cast<size_t>(cache_.length()));
  conversation_ = std::move(asked);
  conversation_.push_back({"assistant", result.text});
  ++turn_;
  return result;
}

} // namespace palimpsest

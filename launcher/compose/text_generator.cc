#include <palimpsest/launcher/compose/text_generator.h>

#include <palimpsest/core/base/error.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace palimpsest {
namespace {

/// Of the first `tokens` ids: those beyond stand for no text.
std::span<const float> row_of(const at::Tensor& scores, int64_t row, int64_t tokens) {
  const int64_t width = scores.size(1);
  check(tokens <= width, "scores of {} ids for {} tokens", width, tokens);
  return {scores.const_data_ptr<float>() + row * width, static_cast<size_t>(tokens)};
}

} // namespace

const char* name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
    case FinishReason::kPositions:
      return "length";
    default:
      return "interrupted";
  }
}

/// A text that is being generated.
struct TextGenerator::Sequence {
  size_t request; // its place among the requests
  uint64_t number;
  int64_t room;
  bool out_of_positions; // after so many
  std::vector<int32_t> ids; // prompt and generated
  GeneratedText text;
  std::unique_ptr<KvCache> own_cache;
  KvCache* cache;
  GenerationResult result = {};
  bool ended = false;
};

TextGenerator::TextGenerator(
    const Generator& generator,
    const GenerationText& text,
    GenerationSettings settings)
    : generator_(generator), text_(text), settings_(std::move(settings)) {}

int64_t TextGenerator::room(const GenerationRequest& request) const {
  const int64_t positions =
      settings_.max_positions == 0 ? std::numeric_limits<int64_t>::max() : settings_.max_positions;
  return std::min(request.max_new_tokens, positions - std::ssize(request.prompt));
}

void TextGenerator::run(
    std::span<const GenerationRequest> requests,
    const GenerationCallbacks& callbacks) const {
  std::list<Sequence> active;
  size_t next = 0;
  while (next < requests.size() || !active.empty()) {
    while (next < requests.size() && std::ssize(active) < settings_.batch) {
      const GenerationRequest& request = requests[next];
      const int64_t most = std::ssize(request.prompt) + room(request) - 1; // the last is not read
      check(room(request) > 0, "a prompt of {} tokens leaves no room", request.prompt.size());
      auto own = request.cache == nullptr ? std::make_unique<KvCache>(generator_.new_cache(most))
                                          : nullptr;
      KvCache* cache = request.cache == nullptr ? own.get() : request.cache;
      active.push_back(
          {.request = next++,
           .number = request.number,
           .room = room(request),
           .out_of_positions = room(request) < request.max_new_tokens,
           .ids = request.prompt,
           .text = request.reply ? text_.begin(settings_.stops)
                                 : text_.begin(request.prompt, settings_.stops),
           .own_cache = std::move(own),
           .cache = cache});
      start(active.back(), callbacks);
      active.remove_if([](const Sequence& sequence) { return sequence.ended; });
    }
    if (!active.empty()) {
      step(active, callbacks);
      active.remove_if([](const Sequence& sequence) { return sequence.ended; });
    }
  }
}

/// Reads what the cache does not hold of the prompt.
void TextGenerator::start(Sequence& sequence, const GenerationCallbacks& callbacks) const {
  const int64_t held = sequence.cache->truncate(std::ssize(sequence.ids) - 1);
  const std::span<const int32_t> rest = std::span(sequence.ids).subspan(static_cast<size_t>(held));
  accept(
      sequence,
      row_of(generator_.extend(*sequence.cache, rest), 0, text_.token_count()),
      callbacks);
}

/// One more token of each.
void TextGenerator::step(std::list<Sequence>& active, const GenerationCallbacks& callbacks) const {
  std::vector<KvCache*> caches;
  std::vector<int32_t> ids;
  for (const Sequence& sequence : active) {
    caches.push_back(sequence.cache);
    ids.push_back(sequence.ids.back());
  }
  const at::Tensor scores = generator_.step(caches, ids);
  int64_t row = 0;
  for (Sequence& sequence : active) {
    accept(sequence, row_of(scores, row++, text_.token_count()), callbacks);
  }
}

void TextGenerator::end(
    Sequence& sequence,
    FinishReason reason,
    const GenerationCallbacks& callbacks) const {
  const std::string rest = sequence.text.finish();
  sequence.result.text += rest;
  sequence.result.reason = reason;
  sequence.ended = true;
  if (callbacks.piece && !rest.empty()) {
    callbacks.piece(sequence.request, rest);
  }
  if (callbacks.done) {
    callbacks.done(sequence.request, sequence.result);
  }
}

/// Draws the next token and ends the text where it is its last.
void TextGenerator::accept(
    Sequence& sequence,
    std::span<const float> scores,
    const GenerationCallbacks& callbacks) const {
  GenerationResult& result = sequence.result;
  const int32_t id = sample_token(
      scores,
      sequence.ids,
      settings_.sampling,
      {.seed = settings_.seed,
       .sequence = sequence.number,
       .index = static_cast<uint32_t>(result.tokens.size())});
  sequence.ids.push_back(id);
  if (settings_.end_ids.contains(id)) {
    return end(sequence, FinishReason::kStop, callbacks);
  }
  result.tokens.push_back(id);
  if (!text_.is_special(id)) {
    const std::string piece = sequence.text.push(id);
    result.text += piece;
    if (callbacks.piece && !piece.empty()) {
      callbacks.piece(sequence.request, piece);
    }
  }
  if (sequence.text.stopped()) {
    return end(sequence, FinishReason::kStop, callbacks);
  }
  if (std::ssize(result.tokens) == sequence.room) {
    return end(
        sequence,
        sequence.out_of_positions ? FinishReason::kPositions : FinishReason::kLength,
        callbacks);
  }
  if (callbacks.interrupted && callbacks.interrupted()) {
    end(sequence, FinishReason::kInterrupted, callbacks);
  }
}

} // namespace palimpsest

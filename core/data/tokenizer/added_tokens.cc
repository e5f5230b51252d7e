#include <palimpsest/core/data/tokenizer/added_tokens.h>

#include <palimpsest/core/data/tokenizer/char_class.h>
#include <palimpsest/core/data/tokenizer/utf8.h>

#include <algorithm>
#include <utility>

namespace palimpsest {

namespace {

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  const bool joined_before =
      begin > 0 && is_word_character(utf8_at(text, utf8_before(text, begin)).code);
  const bool joined_behind = end < text.size() && is_word_character(utf8_at(text, end).code);
  return !joined_before && !joined_behind;
}

size_t without_space_before(std::string_view text, size_t at) {
  while (at > 0) {
    const size_t before = utf8_before(text, at);
    if (char_class(utf8_at(text, before).code) != CharClass::kSpace) {
      break;
    }
    at = before;
  }
  return at;
}

size_t without_space_behind(std::string_view text, size_t at) {
  while (at < text.size()) {
    const Utf8Char next = utf8_at(text, at);
    if (char_class(next.code) != CharClass::kSpace) {
      break;
    }
    at += next.size;
  }
  return at;
}

} // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    int32_t node = 0;
    for (const char c : tokens_[i].content) {
      const auto byte = static_cast<uint8_t>(c);
      int32_t child = next(node, byte);
      if (child < 0) {
        child = static_cast<int32_t>(nodes_.size());
        nodes_[node].edges.push_back({byte, child});
        nodes_.emplace_back();
      }
      node = child;
    }
    if (node != 0) {
      nodes_[node].token = static_cast<int32_t>(i);
      first_bytes_[static_cast<uint8_t>(tokens_[i].content[0])] = true;
    }
  }
}

int32_t AddedTokenFinder::next(int32_t node, uint8_t byte) const {
  for (const Edge& edge : nodes_[node].edges) {
    if (edge.byte == byte) {
      return edge.node;
    }
  }
  return -1;
}

const AddedToken* AddedTokenFinder::token_at(std::string_view text, size_t at) const {
  int32_t longest = -1;
  int32_t node = 0;
  for (; at < text.size(); ++at) {
    node = next(node, static_cast<uint8_t>(text[at]));
    if (node < 0) {
      break;
    }
    longest = nodes_[node].token >= 0 ? nodes_[node].token : longest;
  }
  return longest < 0 ? nullptr : &tokens_[longest];
}

void AddedTokenFinder::find(std::string_view text, const std::function<void(const Piece&)>& visit)
    const {
  size_t done = 0;
  for (size_t at = 0; at < text.size() && !tokens_.empty();) {
    const AddedToken* token =
        first_bytes_[static_cast<uint8_t>(text[at])] ? token_at(text, at) : nullptr;
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at;
    size_t end = at + token->content.size();
    at = end;
    if (token->single_word && !stands_alone(text, begin, end)) {
      continue;
    }
    if (token->lstrip) {
      begin = std::max(without_space_before(text, begin), done);
    }
    if (token->rstrip) {
      end = without_space_behind(text, end);
    }
    if (done < begin) {
      visit({std::nullopt, done, begin});
    }
    if (begin < end) { // else the token before took all of it
      visit({token->id, begin, end});
    }
    done = end;
  }
  if (done < text.size()) {
    visit({std::nullopt, done, text.size()});
  }
}

} // namespace palimpsest

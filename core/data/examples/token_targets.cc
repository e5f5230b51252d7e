#include <palimpsest/core/data/examples/token_targets.h>

#include <algorithm>

namespace palimpsest {

namespace {

using Encode = std::function<std::vector<int32_t>(std::string_view text)>;

/// The tokens that a byte of the text lies between: it is the end of the first `before` tokens and
/// the beginning of those from `after` on. One token apart where the byte lies inside a token.
struct Border {
  int64_t before = 0;
  int64_t after = 0;
};

/// What precedes a border usually encodes alike with and without what follows.
Border border_at(
    const Encode& encode,
    std::string_view text,
    int64_t byte,
    const std::vector<int32_t>& ids) {
  const std::vector<int32_t> prefix = encode(text.substr(0, static_cast<size_t>(byte)));
  const auto differs = std::ranges::mismatch(prefix, ids);
  const int64_t alike = differs.in1 - prefix.begin();
  return {alike, differs.in1 == prefix.end() ? alike : alike + 1};
}

/// The borders where the text falls into pieces that encode one by one as they do together, as
/// special tokens around a turn make it; empty where they do not.
std::vector<Border> borders_of_pieces(
    const Encode& encode,
    std::string_view text,
    const std::vector<int64_t>& bytes,
    const std::vector<int32_t>& ids) {
  std::vector<int32_t> joined;
  std::vector<Border> borders;
  int64_t begin = 0;
  for (const int64_t byte : bytes) {
    const std::vector<int32_t> piece =
        encode(text.substr(static_cast<size_t>(begin), static_cast<size_t>(byte - begin)));
    joined.insert(joined.end(), piece.begin(), piece.end());
    borders.push_back({std::ssize(joined), std::ssize(joined)});
    begin = byte;
  }
  const std::vector<int32_t> rest = encode(text.substr(static_cast<size_t>(begin)));
  joined.insert(joined.end(), rest.begin(), rest.end());
  return joined == ids ? borders : std::vector<Border>();
}

} // namespace

TokenExample encode_targets(
    const Encode& encode,
    std::string_view text,
    const std::vector<TextSpan>& targets) {
  TokenExample example{.ids = encode(text)};
  const auto tokens = example.ids.size();
  const bool whole =
      targets.size() == 1 && targets[0].begin == 0 && targets[0].end == std::ssize(text);
  example.targets.assign(tokens, whole ? 1 : 0);
  if (whole || targets.empty()) {
    return example;
  }
  std::vector<int64_t> bytes;
  for (const TextSpan& span : targets) {
    bytes.push_back(span.begin);
    bytes.push_back(span.end);
  }
  std::vector<Border> borders = borders_of_pieces(encode, text, bytes, example.ids);
  if (borders.empty()) {
    for (const int64_t byte : bytes) {
      borders.push_back(border_at(encode, text, byte, example.ids));
    }
  }
  for (size_t i = 0; i < borders.size(); i += 2) {
    std::fill(
        example.targets.begin() + borders[i].before,
        example.targets.begin() + std::max(borders[i].before, borders[i + 1].after),
        uint8_t{1});
  }
  return example;
}

TokenExample encode_example(const TextEncoder& encoder, const TargetText& text) {
  TokenExample example = encode_targets(encoder.encode, text.text, text.targets);
  if (text.surrounded) {
    const bool from_start = !text.targets.empty() && text.targets.front().begin == 0;
    example.ids.insert(example.ids.begin(), encoder.before.begin(), encoder.before.end());
    example.targets.insert(example.targets.begin(), encoder.before.size(), from_start ? 1 : 0);
    example.ids.insert(example.ids.end(), encoder.after.begin(), encoder.after.end());
    example.targets.resize(example.ids.size(), 1);
  }
  return example;
}

} // namespace palimpsest

#pragma once

// Added tokens: texts that are one token wherever they stand, before anything is split.
//
//   const AddedTokenFinder finder({{.content = "<s>", .id = 1}});
//   finder.find("a<s>b", [](const AddedTokenFinder::Piece& piece) { ... });   // "a", token 1, "b"

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false; ///< only where no word character stands beside it
  bool lstrip = false; ///< takes the white space before it
  bool rstrip = false; ///< takes the white space behind it
  bool normalized = false; ///< looked for in the normalised text
  bool special = false; ///< left out of text on demand
};

/// Finds the tokens in a text: the leftmost ones, of those that begin at one place the longest.
class AddedTokenFinder {
 public:
  /// A token, or what lies between tokens.
  struct Piece {
    std::optional<int32_t> id;
    size_t begin = 0;
    size_t end = 0;
  };

  AddedTokenFinder() = default;
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  bool empty() const {
    return tokens_.empty();
  }
  /// The pieces of valid UTF-8 in order, none of them empty. Where a token's white space is itself a
  /// token, that one overlaps it, or is left out if it strips too: as in the reference library.
  void find(std::string_view text, const std::function<void(const Piece&)>& visit) const;

 private:
  struct Edge {
    uint8_t byte = 0;
    int32_t node = 0;
  };
  struct Node {
    std::vector<Edge> edges;
    int32_t token = -1; // index
  };

  /// The longest token at byte `at`, or null.
  const AddedToken* token_at(std::string_view text, size_t at) const;
  int32_t next(int32_t node, uint8_t byte) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_{1};
  std::array<bool, 256> first_bytes_{};
};

} // namespace palimpsest

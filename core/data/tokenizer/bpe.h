#pragma once

// Byte-pair encoding: the vocabulary and the merges of a tokenizer, and words into tokens.
//
//   const Bpe bpe(Component(json.at("model"), file, "model"), /*byte_level=*/true);
//   Bpe::Scratch scratch;                            // one per thread
//   bpe.encode(" word", scratch, ids);               // appends
//
// Source: Sennrich, Haddow, Birch, "Neural machine translation of rare words with subword units",
// 2016: the pair of lowest rank is merged first, of equal ones the leftmost.

#include <palimpsest/core/data/tokenizer/component.h>
#include <palimpsest/core/data/tokenizer/pair_table.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace palimpsest {

class Bpe {
 public:
  /// Working memory of encode().
  struct Scratch {
    struct Symbol {
      int32_t id = 0;
      int32_t previous = 0;
      int32_t next = 0;
      PairTable::Merge merge; // with the next symbol
    };
    struct Candidate {
      int32_t rank = 0;
      int32_t at = 0;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  /// The model of tokenizer.json. UserError naming file, key and entry: another model than BPE;
  /// prefixes or suffixes of subwords; dropout; ids that are no small whole numbers or occur twice; a
  /// merge that is neither "a b" nor ["a", "b"], or names a token that there is not.
  Bpe(const Component& model, bool byte_level);

  /// The tokens by their ids, as the file writes them; empty where an id has none.
  const std::vector<std::string>& tokens() const {
    return tokens_;
  }
  std::optional<int32_t> id(std::string_view token) const;

  /// Appends the tokens of a word: bytes for byte-level models, valid UTF-8 for the others.
  /// UserError where it has a character that no token stands for, and there is no unknown token.
  void encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;

  /// Whether no merge joins what stands before U+2581, the mark of a space, to it: then a text's
  /// tokens are those of its parts, cut before marks that follow anything else.
  bool separable_at_marks() const {
    return separable_at_marks_;
  }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>{}(text);
    }
  };
  using Index = std::unordered_map<std::string, int32_t, Hash, std::equal_to<>>;

  void read_vocabulary(const Component& model);
  void read_merges(const Component& model);
  void prepare_symbols();
  void begin(std::string_view word, Scratch& scratch) const;
  void append_character(
      std::string_view character,
      int32_t known,
      Scratch& scratch,
      bool& unknown_pending) const;
  void merge_short(Scratch& scratch) const;
  void merge_long(Scratch& scratch) const;
  int32_t character_id(std::string_view character) const;

  std::string file_;
  bool byte_level_;
  bool ignore_merges_ = false;
  bool fuse_unknown_ = false;
  std::optional<int32_t> unknown_;
  bool separable_at_marks_ = false;
  std::vector<std::string> tokens_;
  Index ids_; // by the token as the file writes it
  Index words_; // of byte-level models with ignore_merges: by its bytes
  std::array<int32_t, 256> byte_ids_{}; // byte-level: of each byte; else of each ASCII character
  std::array<int32_t, 256> fallback_ids_{}; // of <0x00> ... where bytes stand in for characters
  bool byte_fallback_ = false;
  PairTable merges_;
};

} // namespace palimpsest

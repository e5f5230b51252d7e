#pragma once

// The regular expressions of GPT-2, LLaMA-3 and Qwen2, scanned by hand.
//
//   const std::optional<WordRule> rule = known_word_rule(regex);   // empty: any other expression
//   for (size_t at = 0; at < text.size(); at = word_end(*rule, text, at)) { ... }
//
// Each matches everywhere, so that words follow each other without gaps.

#include <cstddef>
#include <functional>
#include <optional>
#include <string_view>

namespace palimpsest {

enum class WordRule {
  kGpt2,
  kLlama3, ///< up to three digits together; also cl100k's rule
  kQwen2, ///< each digit alone
};

/// GPT-2's expression, which ByteLevel brings along.
inline constexpr std::string_view kGpt2Regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// The rule that is written as this expression.
std::optional<WordRule> known_word_rule(std::string_view regex);

/// The last byte of `text`, after the first, that stands between a letter and white space (' ', and
/// '\n' and '\r' where `line_ends`): there a word of every rule ends, whatever follows. `accepts` may
/// refuse the letter. Empty where there is none. `text` may end within a character.
std::optional<size_t> last_word_cut(
    std::string_view text,
    bool line_ends,
    const std::function<bool(std::string_view letter)>& accepts = {});

/// Where the word that begins at byte `at` < text.size() ends. The text is valid UTF-8.
size_t word_end(WordRule rule, std::string_view text, size_t at);

} // namespace palimpsest

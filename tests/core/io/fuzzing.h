#pragma once

// Seeded mutations of a text, and what a parser may do with them: return or throw a UserError,
// nothing else.

#include <palimpsest/tests/core/io/testing.h>

#include <random>

namespace palimpsest {

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  /// One to four changes of `text`.
  std::string operator()(std::string text) {
    for (size_t count = below(4) + 1; count > 0; --count) {
      change(text);
    }
    return text;
  }

 private:
  size_t below(size_t limit) {
    return std::uniform_int_distribution<size_t>(0, limit - 1)(random_);
  }

  void change(std::string& text) {
    static constexpr std::string_view kTokens[] = {
        "{",
        "}",
        "[",
        "]",
        "\"",
        ",",
        ":",
        "null",
        "true",
        "-1",
        "0",
        "1e999",
        "0.5",
        "18446744073709551615",
        "9223372036854775807",
        "4294967296",
        "\"F32\"",
        "\"\"",
        "\\u0000",
        "\xff",
        "__metadata__",
        "\"shape\"",
        "../",
        "[[[[[[[[",
        "\"data_offsets\""};
    const size_t at = below(text.size() + 1);
    const size_t length = std::min(below(12) + 1, text.size() - at);
    switch (below(6)) {
      case 0:
        text.insert(at, kTokens[below(std::size(kTokens))]);
        break;
      case 1:
        text.replace(at, length, kTokens[below(std::size(kTokens))]);
        break;
      case 2:
        text.erase(at, length);
        break;
      case 3:
        text.insert(at, text.substr(below(text.size() + 1), length));
        break;
      case 4:
        if (at < text.size()) {
          text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        }
        break;
      default:
        if (at < text.size()) {
          // A digit becomes another: what stays valid JSON goes deepest.
          const size_t digit = text.find_first_of("0123456789", at);
          if (digit != std::string::npos) {
            text[digit] = static_cast<char>('0' + below(10));
          }
        }
    }
  }

  std::mt19937_64 random_;
};

inline int mutations() {
  return std::getenv("PALIMPSEST_FULL") != nullptr ? 100'000 : 5'000;
}

/// Counts how often `parse` took a mutated `text` and how often it refused it; both must occur, or
/// nothing is tested.
template <typename Parse>
void fuzz(const std::string& text, uint64_t seed, int count, Parse&& parse) {
  Mutator mutate(seed);
  int accepted = 0;
  int refused = 0;
  for (int i = 0; i < count; ++i) {
    const std::string mutated = mutate(text);
    try {
      parse(mutated);
      ++accepted;
    } catch (const UserError& error) {
      ++refused;
      ASSERT_FALSE(std::string_view(error.what()).empty());
    } catch (const std::exception& error) {
      FAIL() << "seed " << seed << ", mutation " << i << ": " << error.what() << "\n" << mutated;
    }
  }
  EXPECT_GT(accepted, count / 200);
  EXPECT_GT(refused, count / 5);
}

} // namespace palimpsest

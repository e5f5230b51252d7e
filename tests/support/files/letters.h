#pragma once

// A text to train on: the same letters wherever the count and the seed are.
//
//   write_letters(folder / "text.txt", 64 * 17, 5);

#include <filesystem>
#include <fstream>
#include <random>
#include <string>

namespace palimpsest::testing {

/// `count` small letters, drawn by `seed`.
inline void write_letters(const std::filesystem::path& file, int count, unsigned seed) {
  std::mt19937 random(seed);
  std::string text;
  for (int index = 0; index < count; ++index) {
    text += static_cast<char>('a' + random() % 26);
  }
  std::ofstream(file) << text;
}

} // namespace palimpsest::testing

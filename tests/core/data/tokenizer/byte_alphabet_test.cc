#include <palimpsest/core/data/tokenizer/byte_alphabet.h>

#include <gtest/gtest.h>

#include <set>

namespace palimpsest {
namespace {

TEST(ByteAlphabet, GivesEachByteOnePrintableCharacter) {
  const auto characters = byte_characters();
  EXPECT_EQ(std::set<uint32_t>(characters.begin(), characters.end()).size(), 256);
  EXPECT_EQ(characters['a'], 'a');
  EXPECT_EQ(characters[0], 0x100);
  EXPECT_EQ(characters[' '], 0x120);
  EXPECT_EQ(characters['\n'], 0x10a);
  EXPECT_EQ(characters[0xad], 0x143); // the last one that is not printable
  EXPECT_EQ(characters[0xe9], 0xe9);
}

TEST(ByteAlphabet, GoesThereAndBack) {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) {
    bytes.push_back(static_cast<char>(byte));
  }
  EXPECT_EQ(bytes_of_token(token_of_bytes(bytes)), bytes);
  EXPECT_EQ(
      token_of_bytes(" a"),
      "\xc4\xa0"
      "a");
  EXPECT_EQ(bytes_of_token("a b"), std::nullopt); // a space stands for no byte
  EXPECT_EQ(bytes_of_token("\xe2\x96\x81"), std::nullopt);
}

} // namespace
} // namespace palimpsest

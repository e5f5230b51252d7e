#include <palimpsest/core/data/tokenizer/added_tokens.h>

#include <gtest/gtest.h>

namespace palimpsest {
namespace {

/// "text|<7>|text": texts between tokens, tokens by id with what they cover.
std::string pieces_of(const std::vector<AddedToken>& tokens, const std::string& text) {
  std::string pieces;
  AddedTokenFinder(tokens).find(text, [&](const AddedTokenFinder::Piece& piece) {
    const std::string covered = text.substr(piece.begin, piece.end - piece.begin);
    pieces += pieces.empty() ? "" : "|";
    pieces += piece.id ? std::to_string(*piece.id) + "(" + covered + ")" : covered;
  });
  return pieces;
}

TEST(AddedTokens, AreFoundLeftmostAndLongest) {
  const std::vector<AddedToken> tokens{
      {.content = "<a>", .id = 1}, {.content = "<a><b>", .id = 2}, {.content = "b>c", .id = 3}};
  EXPECT_EQ(pieces_of(tokens, "x<a>y"), "x|1(<a>)|y");
  EXPECT_EQ(pieces_of(tokens, "<a><b>c"), "2(<a><b>)|c");
  EXPECT_EQ(pieces_of(tokens, "<a><b"), "1(<a>)|<b");
  EXPECT_EQ(pieces_of(tokens, "<a><a>"), "1(<a>)|1(<a>)");
  EXPECT_EQ(pieces_of(tokens, "plain"), "plain");
  EXPECT_EQ(pieces_of(tokens, ""), "");
  EXPECT_EQ(pieces_of({}, "<a>"), "<a>");
}

TEST(AddedTokens, TakeTheSpaceBesideThem) {
  const std::vector<AddedToken> tokens{
      {.content = "<l>", .id = 1, .lstrip = true},
      {.content = "<r>", .id = 2, .rstrip = true},
      {.content = "<b>", .id = 3, .lstrip = true, .rstrip = true}};
  EXPECT_EQ(pieces_of(tokens, "a \xe3\x80\x80<l> b"), "a|1( \xe3\x80\x80<l>)| b");
  EXPECT_EQ(pieces_of(tokens, "a <r> \n b"), "a |2(<r> \n )|b");
  EXPECT_EQ(pieces_of(tokens, " <b> <b> "), "3( <b> )|3(<b> )");
}

/// What the reference library makes of white space that two tokens want.
TEST(AddedTokens, ShareWhiteSpaceAsTheReference) {
  EXPECT_EQ(pieces_of({{.content = "  ", .id = 1, .rstrip = true}}, "    "), "1(    )|1(  )");
  EXPECT_EQ(
      pieces_of({{.content = "  ", .id = 1, .lstrip = true, .rstrip = true}}, "    a"),
      "1(    )|a");
}

TEST(AddedTokens, StandAloneWhereTheyMust) {
  const std::vector<AddedToken> tokens{{.content = "[P]", .id = 1, .single_word = true}};
  EXPECT_EQ(pieces_of(tokens, "[P] a[P] [P]\xc3\xa9 -[P]-"), "1([P])| a[P] [P]\xc3\xa9 -|1([P])|-");
  EXPECT_EQ(pieces_of(tokens, "_[P]"), "_[P]");
}

} // namespace
} // namespace palimpsest

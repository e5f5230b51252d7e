#include <palimpsest/core/data/open_data.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/core/data/read_sample.h>
#include <palimpsest/tests/core/data/temporary_folder.h>
#include <palimpsest/tests/core/data/tensors.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

namespace palimpsest {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

std::string tensors_of(const std::vector<int64_t>& ids, int64_t rows) {
  const auto width = static_cast<int64_t>(ids.size()) / rows;
  return safetensors_text(
      {test_tensor("input_ids", "I64", {rows, width}, ids),
       test_tensor("labels", "I64", {rows, width}, ids)});
}

TEST(OpenData, JoinsFilesOfAllFormats) {
  const TemporaryFolder folder;
  const std::vector<uint16_t> first = {1, 2, 3, 4, 5, 6};
  const std::vector<uint16_t> second = {7, 8, 9};
  const OpenedData data = open_data(
      {.files =
           {{folder.write<uint16_t>("a.bin", first)},
            {folder.write<uint16_t>("b", second), "tokens"},
            {folder.write("c.txt", "ab")},
            {folder.write("d.txt", "cd")},
            {folder.write("e.safetensors", tensors_of({10, 11, 12}, 1))}},
       .sequence_length = 3,
       .vocabulary_size = 256});
  ASSERT_EQ(data.samples->size(), 5);
  const std::vector<Ids> expected = {
      {1, 2, 3}, {4, 5, 6}, {7, 8, 9}, {'a', 'b', 'c'}, {10, 11, 12}};
  for (int64_t k = 0; k < 5; ++k) {
    EXPECT_EQ(read_sample(*data.samples, k).inputs, expected[static_cast<size_t>(k)]);
  }
  ASSERT_EQ(data.notes.size(), 1);
  EXPECT_THAT(data.notes[0], HasSubstr("the last 1 of 4 bytes"));
}

TEST(OpenData, RefusesWhatDoesNotFit) {
  const TemporaryFolder folder;
  const auto refused = [](const DataSettings& settings, const std::string& part) {
    EXPECT_THAT([&] { open_data(settings); }, ThrowsMessage<UserError>(HasSubstr(part)));
  };
  const auto three = folder.write("three.safetensors", tensors_of({1, 2, 3}, 1));
  const auto two = folder.write("two.safetensors", tensors_of({1, 2}, 1));
  refused({.vocabulary_size = 256}, "data.files: no file");
  refused(
      {.files = {{"a.csv"}}, .vocabulary_size = 256},
      "the ending of a.csv is unknown; give one of tensors (.safetensors), text (.txt), tokens "
      "(.bin)");
  refused(
      {.files = {{"a.bin", "parquet"}}, .vocabulary_size = 256}, "\"parquet\" of a.bin is unknown");
  refused({.files = {{three}, {two}}, .vocabulary_size = 256}, "samples of 3 and of 2 elements");
  refused(
      {.files = {{"a.bin"}}, .sequence_length = 4, .input_size = 2, .output_size = 1},
      "the model reads features");
  refused({.files = {{three}}, .input_size = 2, .output_size = 1}, "no tensor inputs");
  refused(
      {.files = {{three}}, .sequence_length = 4, .input_size = 2, .output_size = 1},
      "data.sequence_length: 4 is given, but");
}

/// Random damage to valid files: opened and readable, or refused with a message; never anything
/// else.
TEST(OpenData, SurvivesDamagedFiles) {
  const TemporaryFolder folder;
  const bool full = std::getenv("PALIMPSEST_FULL") != nullptr;
  std::mt19937 random(20240607);
  const std::string tensors = tensors_of({1, 2, 3, 4, 5, 6, 7, 8}, 2);
  const std::vector<uint16_t> ids = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::string tokens(reinterpret_cast<const char*>(ids.data()), 16);
  int opened = 0;
  int refused = 0;
  for (int round = 0; round < (full ? 20'000 : 600); ++round) {
    const bool as_tensors = round % 3 != 0;
    std::string bytes = as_tensors ? tensors : tokens;
    for (auto edits = random() % 4; edits > 0 && !bytes.empty(); --edits) {
      const size_t place = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[place] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(place, 1 + random() % 8);
          break;
        case 2:
          bytes.insert(place, 1 + random() % 3, static_cast<char>(random()));
          break;
        default:
          bytes.resize(place);
      }
    }
    const DataSettings settings{
        .files = {{folder.write(as_tensors ? "f.safetensors" : "f.bin", bytes)}},
        .sequence_length = 4,
        .vocabulary_size = 9};
    try {
      const OpenedData data = open_data(settings);
      for (int64_t k = 0; k < data.samples->size(); ++k) {
        for (const int64_t id : read_sample(*data.samples, k).inputs) {
          ASSERT_TRUE(id >= 0 && id < 9);
        }
      }
      ++opened;
    } catch (const UserError& error) {
      ASSERT_THAT(error.what(), HasSubstr("data."));
      ++refused;
    }
  }
  EXPECT_GT(opened, 100);
  EXPECT_GT(refused, 100);
}

} // namespace
} // namespace palimpsest

#include <palimpsest/tests/core/io/checkpoint_testing.h>

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

namespace palimpsest {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

/// One bit of a file's byte.
void flip(const fs::path& path, uintmax_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(byte ^ 1));
}

std::string open_failure(const fs::path& folder) {
  return message_of<UserError>([&] { const CheckpointReader reader(folder); });
}

class CheckpointDamage : public ::testing::Test {
 protected:
  void SetUp() override {
    save_sample(output_.path(), 10, 2);
  }
  fs::path folder() const {
    return output_ / "step-00000010";
  }
  TemporaryFolder output_;
};

TEST_F(CheckpointDamage, AnyChangedByteIsFound) {
  {
    const CheckpointReader reader(folder());
    reader.verify();
  }
  int places = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder())) {
    if (!entry.is_regular_file()) {
      continue;
    }
    const uintmax_t size = entry.file_size();
    const uintmax_t step = std::max<uintmax_t>(1, size / 23);
    for (uintmax_t at = 0; at < size; at += step) {
      flip(entry.path(), at);
      const std::string message = message_of<UserError>([&] {
        const CheckpointReader reader(folder());
        reader.verify();
      });
      EXPECT_THAT(message, HasSubstr(entry.path().filename().string())) << "byte " << at;
      flip(entry.path(), at);
      ++places;
    }
  }
  EXPECT_GT(places, 60);
  CheckpointReader(folder()).verify();
}

TEST_F(CheckpointDamage, NamesFileTensorAndElements) {
  const StateDeclaration blocks{{"blocks", StoredDtype::F32, {600, 601}}, "master"};
  const CheckpointReader reader(folder());
  const auto& piece = find_state(reader.manifest(), "blocks", "master")->pieces(0);
  ASSERT_EQ(piece.count(), 360600); // two blocks of checksums: elements 0 to 262,144 and the rest
  flip(folder() / piece.file(), static_cast<uintmax_t>(piece.offset() + 4 * 300'000));
  std::vector<std::byte> bytes(4 * 10);
  EXPECT_THAT(
      message_of<UserError>([&] { reader.read("blocks", "master", 262'150, 262'160, bytes); }),
      AllOf(
          HasSubstr((folder() / piece.file()).string()),
          HasSubstr("elements 262144 to 360600 of blocks (master)")));
  // What does not touch the block is not read, so each rank depends on its own ranges alone.
  reader.read("blocks", "master", 262'134, 262'144, bytes);
  EXPECT_TRUE(bytes == elements(blocks, 262'134, 262'144, 10));
}

TEST_F(CheckpointDamage, RangesAcrossBlocksAndPieces) {
  const StateDeclaration blocks{{"blocks", StoredDtype::F32, {600, 601}}, "moment.0"};
  const CheckpointReader reader(folder());
  ASSERT_EQ(find_state(reader.manifest(), "blocks", "moment.0")->pieces_size(), 2);
  const std::pair<int64_t, int64_t> ranges[] = {
      {0, 0}, {0, 1}, {180'000, 180'700}, {0, 360'600}, {262'143, 262'145}, {360'599, 360'600}};
  for (const auto& [begin, end] : ranges) {
    std::vector<std::byte> bytes(static_cast<size_t>(4 * (end - begin)));
    reader.read("blocks", "moment.0", begin, end, bytes);
    EXPECT_TRUE(bytes == elements(blocks, begin, end, 10)) << begin << " to " << end;
  }
  EXPECT_THROW(reader.read("blocks", "moment.2", 0, 0, {}), InternalError);
  std::vector<std::byte> wrong(3);
  EXPECT_THROW(reader.read("blocks", "moment.0", 0, 1, wrong), InternalError);
  EXPECT_THROW(reader.read("blocks", "moment.0", 360'600, 360'601, wrong), InternalError);
}

TEST_F(CheckpointDamage, TruncatedMissingAndForeignFiles) {
  const fs::path file = folder() / "rank-00001.safetensors";
  const std::string whole = read_file(file);
  put(file, whole.substr(0, whole.size() - 1));
  EXPECT_THAT(open_failure(folder()), AllOf(HasSubstr(file.string()), HasSubstr("cut short")));
  put(file, "");
  EXPECT_THAT(open_failure(folder()), HasSubstr(file.string()));
  fs::remove(file);
  EXPECT_THAT(open_failure(folder()), AllOf(HasSubstr(file.string()), HasSubstr("No such file")));
  fs::create_directory(file);
  EXPECT_THAT(open_failure(folder()), HasSubstr(file.string()));
  fs::remove(file);

  // Of another step, of another rank, of another run.
  save_sample(output_.path(), 5, 2);
  fs::copy_file(output_ / "step-00000005/rank-00001.safetensors", file);
  EXPECT_THAT(
      open_failure(folder()),
      AllOf(
          HasSubstr(file.string()),
          HasSubstr("belongs to another checkpoint: rank \"1\", step \"5\"")));
  fs::remove(file);
  fs::copy_file(folder() / "rank-00000.safetensors", file);
  EXPECT_THAT(open_failure(folder()), HasSubstr("rank \"0\", step \"10\""));
  std::string other = whole;
  other.replace(other.find("run-a"), 5, "run-b");
  put(file, other);
  EXPECT_THAT(open_failure(folder()), HasSubstr("run \"run-b\""));
  put(file, whole);
  CheckpointReader(folder()).verify();
}

TEST_F(CheckpointDamage, FilesThatShrinkWhileReading) {
  const CheckpointReader reader(folder());
  const auto& piece = find_state(reader.manifest(), "blocks", "moment.0")->pieces(0);
  fs::resize_file(folder() / piece.file(), static_cast<uintmax_t>(piece.offset() + 5));
  std::vector<std::byte> bytes(4);
  EXPECT_THAT(
      message_of<UserError>([&] { reader.read("blocks", "moment.0", 0, 1, bytes); }),
      HasSubstr("cut short"));
}

TEST_F(CheckpointDamage, SmallFilesAreVerifiedBeforeTheyAreUsed) {
  const CheckpointReader reader(folder());
  put(folder() / "config.yaml", "training:\n  seed: 43\n");
  EXPECT_THAT(
      message_of<UserError>([&] { reader.config_text(); }),
      AllOf(HasSubstr("config.yaml"), HasSubstr("checksum")));
  fs::remove(folder() / "model/config.json");
  EXPECT_THAT(
      message_of<UserError>([&] { reader.model_layout(); }), HasSubstr("model/config.json"));
}

TEST_F(CheckpointDamage, NoCheckpointAtAll) {
  EXPECT_THAT(
      open_failure(output_.path()),
      AllOf(HasSubstr("is no checkpoint"), HasSubstr("manifest.textproto")));
  EXPECT_THAT(open_failure(output_ / "nothing"), HasSubstr("there is no "));
  fs::rename(folder(), output_ / "step-00000011");
  EXPECT_THAT(
      open_failure(output_ / "step-00000011"), HasSubstr("the manifest is that of step 10"));
  fs::rename(output_ / "step-00000011", output_ / "best"); // a name of the user's own
  CheckpointReader(output_ / "best").verify();
}

TEST_F(CheckpointDamage, WhatARunAsksForIsComparedAtOnce) {
  const CheckpointReader reader(folder());
  std::vector<StateDeclaration> expected = sample_states();
  reader.compare_with(expected);
  std::erase_if(expected, [](const auto& state) { return state.name == "three"; });
  for (StateDeclaration& state : expected) {
    if (state.name == "two_dozen" && state.state == "master") {
      state.shape = {3, 8};
    }
    if (state.name == "scalar") {
      state.dtype = StoredDtype::BF16;
    }
  }
  expected.push_back({{"new", StoredDtype::F32, {2}}, "moment.0"});
  const std::string message = message_of<UserError>([&] { reader.compare_with(expected); });
  EXPECT_THAT(
      message,
      AllOf(
          HasSubstr("; 8 differ\n  1 missing: new (moment.0) [2]\n  4 different: "),
          HasSubstr("scalar (moment.1) is F32 [], this run asks for BF16 []; "),
          HasSubstr("\n  3 unexpected: three (master) [3]; three (moment.0) [3]; three (moment.1) "
                    "[3]")));
  EXPECT_THAT(message, Not(HasSubstr("frozen")));
  for (int number = 0; number < 30; ++number) {
    expected.push_back({{fmt::format("new.{}", number), StoredDtype::F32, {2}}, "master"});
  }
  const std::string shorter = message_of<UserError>([&] { reader.compare_with(expected); });
  EXPECT_THAT(
      shorter,
      AllOf(
          HasSubstr("; 38 differ\n"),
          HasSubstr("\n  31 missing: new (moment.0) [2]; new.0 (master) [2]; new.1 (master) [2]; "
                    "...\n")));
  EXPECT_EQ(std::ranges::count(shorter, '\n'), 3);
}

} // namespace
} // namespace palimpsest

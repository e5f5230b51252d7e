#include <palimpsest/core/base/files.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/support/files/temporary_folder.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>

namespace palimpsest {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Files : public ::testing::Test {
 protected:
  Files() {
    folder_ = make_temporary_folder();
  }
  ~Files() override {
    fs::remove_all(folder_);
  }
  void put(std::string_view name, std::string_view text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  size_t entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {}));
  }
  template <typename E, typename Action>
  static std::string message_of(Action&& action) {
    try {
      action();
    } catch (const E& error) {
      return error.what();
    }
    ADD_FAILURE() << "threw nothing";
    return "";
  }

  fs::path folder_;
};

TEST_F(Files, ReadsWhole) {
  const std::string text("a\0b\n", 4);
  put("x", text);
  EXPECT_EQ(read_file(folder_ / "x"), text);
  put("empty", "");
  EXPECT_EQ(read_file(folder_ / "empty"), "");
  EXPECT_EQ(read_file(folder_ / "x", 4), text);
  EXPECT_THAT(
      message_of<UserError>([&] { read_file(folder_ / "x", 3); }), HasSubstr("larger than 3"));
  EXPECT_THROW(read_file("/dev/zero", 1000), UserError);
}

TEST_F(Files, NamesWhatIsMissing) {
  const fs::path missing = folder_ / "no" / "file";
  const auto expected = AllOf(HasSubstr(missing.string()), HasSubstr("No such file"));
  EXPECT_THAT(message_of<UserError>([&] { read_file(missing); }), expected);
  EXPECT_THAT(message_of<UserError>([&] { MappedFile file(missing); }), expected);
  EXPECT_THAT(message_of<UserError>([&] { read_file(folder_); }), HasSubstr("Is a directory"));
  EXPECT_THAT(message_of<UserError>([&] { MappedFile f(folder_); }), HasSubstr("Is a directory"));
}

TEST_F(Files, MapsAndForgets) {
  std::string text(100'000, 'x');
  text[70'000] = 'y';
  put("x", text);
  put("empty", "");
  EXPECT_TRUE(MappedFile(folder_ / "empty").bytes().empty());
  MappedFile first(folder_ / "x");
  MappedFile file = std::move(first);
  EXPECT_TRUE(first.bytes().empty()); // NOLINT(bugprone-use-after-move): what is left is defined
  ASSERT_EQ(file.bytes().size(), text.size());
  file.forget(file.bytes());
  file.forget(file.bytes().subspan(1, 1));
  EXPECT_TRUE(std::ranges::equal(file.bytes(), std::as_bytes(std::span(text))));
}

TEST_F(Files, RefusesToMapAPipeInsteadOfHanging) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(
      message_of<UserError>([&] { MappedFile file(folder_ / "pipe"); }),
      HasSubstr("not a regular file"));
}

TEST_F(Files, WritesAtomically) {
  put("x", "old");
  {
    AtomicFile file(folder_ / "x");
    file.write("half");
    EXPECT_EQ(read_file(folder_ / "x"), "old");
  }
  EXPECT_EQ(read_file(folder_ / "x"), "old");
  EXPECT_EQ(entries(), 1u);
  write_file_atomically(folder_ / "x", "new");
  EXPECT_EQ(read_file(folder_ / "x"), "new");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(Files, WritesThroughALink) {
  put("x", "old");
  fs::create_symlink("x", folder_ / "link");
  write_file_atomically(folder_ / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(read_file(folder_ / "x"), "new");
}

TEST_F(Files, TakesTheUsualPermissions) {
  const mode_t mask = ::umask(027);
  write_file_atomically(folder_ / "x", "text");
  ::umask(mask);
  struct stat status {};
  ASSERT_EQ(::stat((folder_ / "x").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
}

TEST_F(Files, ReportsWhyItCannotWrite) {
  EXPECT_THAT(
      message_of<EnvironmentError>([&] { write_file_atomically("/dev/full", "text"); }),
      AllOf(HasSubstr("/dev/full"), HasSubstr("No space left on device")));
  EXPECT_THAT(
      message_of<EnvironmentError>([&] { write_file_atomically(folder_ / "no" / "x", ""); }),
      AllOf(HasSubstr((folder_ / "no" / "x").string()), HasSubstr("No such file")));
  EXPECT_THAT(
      message_of<EnvironmentError>([&] { write_file_atomically(folder_, ""); }),
      HasSubstr("Is a directory"));
}

TEST_F(Files, WritesAFolderAtomically) {
  const fs::path target = folder_ / "deep" / "model" / "";
  {
    AtomicFolder folder(target);
    write_file_atomically(folder.path() / "a", "1");
    EXPECT_FALSE(fs::exists(target));
  }
  EXPECT_TRUE(fs::is_empty(folder_ / "deep"));
  AtomicFolder folder(target);
  write_file_atomically(folder.path() / "a", "1");
  folder.commit();
  EXPECT_EQ(read_file(target / "a"), "1");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "deep"), {}), 1);
}

TEST_F(Files, ReplacesAFolderOnlyWhenTold) {
  const fs::path target = folder_ / "model";
  fs::create_directory(target);
  AtomicFolder over_empty(target);
  write_file_atomically(over_empty.path() / "old", "1");
  over_empty.commit();

  EXPECT_THAT(
      message_of<UserError>([&] { AtomicFolder folder(target); }),
      AllOf(HasSubstr(target.string()), HasSubstr("not empty")));
  AtomicFolder folder(target, Existing::kReplace);
  write_file_atomically(folder.path() / "new", "2");
  EXPECT_TRUE(fs::exists(target / "old"));
  folder.commit();
  EXPECT_EQ(read_file(target / "new"), "2");
  EXPECT_FALSE(fs::exists(target / "old"));
  EXPECT_EQ(entries(), 1u) << "the old folder is gone";
}

TEST_F(Files, RefusesAFolderWithoutAPlace) {
  put("file", "");
  for (const fs::path& path : {fs::path(""), fs::path("/"), fs::path("."), folder_ / ".."}) {
    EXPECT_THROW(AtomicFolder(path, Existing::kReplace), UserError) << path;
  }
  EXPECT_THROW(AtomicFolder(folder_ / "file", Existing::kReplace), UserError);
  EXPECT_THROW(AtomicFolder(folder_ / "file" / "model"), EnvironmentError);
}

TEST_F(Files, ChecksThatAFolderTakesOutput) {
  check_writable_folder(folder_ / "a" / "b");
  EXPECT_TRUE(fs::is_empty(folder_ / "a" / "b"));
  put("file", "");
  EXPECT_THAT(
      message_of<EnvironmentError>([&] { check_writable_folder(folder_ / "file"); }),
      HasSubstr((folder_ / "file").string()));
  EXPECT_THROW(check_writable_folder("/proc/palimpsest"), EnvironmentError);
}

} // namespace
} // namespace palimpsest

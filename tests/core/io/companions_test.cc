#include <palimpsest/core/io/companions.h>
#include <palimpsest/tests/core/io/testing.h>

namespace palimpsest {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Companions, TokenizerAndTemplatesOnly) {
  const TemporaryFolder folder;
  for (const char* name :
       {"tokenizer.json", "merges.txt", "config.json", "model.safetensors", "README.md"}) {
    put(folder / name, "x");
  }
  fs::create_directories(folder / "additional_chat_templates/deep");
  put(folder / "additional_chat_templates/rag.jinja", "x");
  put(folder / "additional_chat_templates/deep/a.jinja", "x");
  fs::create_directories(folder / "vocab.txt"); // a folder of that name is no file of the model
  EXPECT_THAT(
      companion_files(folder.path()),
      ElementsAre(
          fs::path("additional_chat_templates/deep/a.jinja"),
          fs::path("additional_chat_templates/rag.jinja"),
          fs::path("merges.txt"),
          fs::path("tokenizer.json")));
  EXPECT_THAT(companion_files(folder / "missing"), IsEmpty());
}

} // namespace
} // namespace palimpsest

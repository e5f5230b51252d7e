#include <palimpsest/core/io/companions.h>
#include <palimpsest/tests/core/io/testing.h>

namespace palimpsest {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(Companions, TokenizerAndTemplatesOnly) {
  const TemporaryFolder folder;
  for (const char* name :
       {"tokenizer.json", "merges.txt", "config.json", "model.safetensors", "README.md"}) {
    put(folder / name, std::string("of ") + name);
  }
  fs::create_directories(folder / "additional_chat_templates/deep");
  put(folder / "additional_chat_templates/rag.jinja", "{{ y }}");
  put(folder / "additional_chat_templates/deep/a.jinja", "");
  fs::create_directories(folder / "vocab.txt"); // a folder of that name is no file of the model
  EXPECT_THAT(
      read_companions(folder.path()),
      ElementsAre(
          Pair("additional_chat_templates/deep/a.jinja", ""),
          Pair("additional_chat_templates/rag.jinja", "{{ y }}"),
          Pair("merges.txt", "of merges.txt"),
          Pair("tokenizer.json", "of tokenizer.json")));
  EXPECT_THAT(read_companions(folder / "missing"), IsEmpty());
}

} // namespace
} // namespace palimpsest

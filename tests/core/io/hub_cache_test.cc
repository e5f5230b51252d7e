#include <palimpsest/core/io/hub_cache.h>

#include <palimpsest/tests/core/io/testing.h>

#include <map>

namespace palimpsest {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

/// Variables of the environment for the length of a test.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::string>& values) {
    for (const char* name : {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"}) {
      const char* before = std::getenv(name);
      before_[name] = before == nullptr ? std::nullopt : std::optional<std::string>(before);
      unsetenv(name);
    }
    for (const auto& [name, value] : values) {
      setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ~Environment() {
    for (const auto& [name, value] : before_) {
      value ? setenv(name.c_str(), value->c_str(), 1) : unsetenv(name.c_str());
    }
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::map<std::string, std::optional<std::string>> before_;
};

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

/// As huggingface_hub leaves a download: files are links to blobs.
fs::path download(const fs::path& cache, const std::string& folder, const std::string& commit) {
  const fs::path model = cache / folder;
  write(model / "refs" / "main", commit);
  const fs::path snapshot = model / "snapshots" / commit;
  for (const char* name : {"config.json", "model.safetensors"}) {
    write(model / "blobs" / name, "{}");
    fs::create_directories(snapshot);
    fs::create_symlink(fs::path("../../blobs") / name, snapshot / name);
  }
  return snapshot;
}

TEST(HubCache, LiesWhereTheVariablesSay) {
  std::map<std::string, std::string> values = {{"HOME", "/home/u"}};
  const auto found = [&] {
    const Environment here(values);
    return hub_cache().string();
  };
  EXPECT_EQ(found(), "/home/u/.cache/huggingface/hub");
  values["XDG_CACHE_HOME"] = "/xdg";
  EXPECT_EQ(found(), "/xdg/huggingface/hub");
  values["HF_HOME"] = "/hf";
  EXPECT_EQ(found(), "/hf/hub");
  values["HF_HUB_CACHE"] = "/cache";
  EXPECT_EQ(found(), "/cache");
  values["HF_HUB_CACHE"] = "";
  EXPECT_EQ(found(), "/hf/hub");
}

TEST(HubCache, AnIdIsTheSnapshotOfMain) {
  const TemporaryFolder cache;
  const fs::path snapshot = download(cache.path(), "models--Qwen--Qwen2.5-0.5B", "0a1b");
  const fs::path single = download(cache.path(), "models--gpt2", "ff00\n");
  write(cache.path() / "models--Qwen--Qwen2.5-0.5B" / "snapshots" / "older" / "config.json", "{}");
  EXPECT_EQ(resolve_model("Qwen/Qwen2.5-0.5B", cache.path()), snapshot);
  const Environment here({{"HF_HUB_CACHE", cache.path().string()}});
  EXPECT_EQ(resolve_model("Qwen/Qwen2.5-0.5B"), snapshot);
  EXPECT_EQ(find_model("Qwen/Qwen2.5-7B"), std::nullopt);
}

TEST(HubCache, AFolderOfThatNameWins) {
  const TemporaryFolder cache;
  const TemporaryFolder here;
  download(cache.path(), "models--a--b", "0a1b");
  fs::create_directories(here.path() / "a" / "b");
  const fs::path before = fs::current_path();
  fs::current_path(here.path());
  const fs::path found = resolve_model("a/b", cache.path());
  fs::current_path(before);
  EXPECT_EQ(found, "a/b");
  EXPECT_EQ(resolve_model(here.path().string(), cache.path()), here.path());
}

TEST(HubCache, WhatIsMissingIsRefusedWithTheCommandThatDownloadsIt) {
  const TemporaryFolder cache;
  const auto refusal = [&](const std::string& name) {
    return message_of<UserError>([&] { resolve_model(name, cache.path()); });
  };
  EXPECT_THAT(
      refusal("Qwen/Qwen2.5-0.5B"),
      AllOf(
          HasSubstr("model.path"),
          HasSubstr(cache.path().string()),
          EndsWith("\n  hf download Qwen/Qwen2.5-0.5B")));
  const fs::path snapshot = download(cache.path(), "models--a--b", "0a1b");
  fs::remove(snapshot / "model.safetensors"); // only the tokenizer was fetched
  EXPECT_THAT(refusal("a/b"), EndsWith("hf download a/b"));
  fs::remove_all(snapshot);
  EXPECT_THAT(refusal("a/b"), EndsWith("hf download a/b"));
  fs::remove(cache.path() / "models--a--b" / "refs" / "main");
  EXPECT_THAT(refusal("a/b"), EndsWith("hf download a/b"));
  EXPECT_THAT(
      message_of<UserError>([&] { resolve_model("a/b", cache.path(), "generate"); }),
      testing::StartsWith("generate: there is no folder a/b"));
  // No id, so nothing to download.
  for (const char* name :
       {"/nowhere/model", "./a", "a/b/c", "../a/b", "a b", "runs/a", "run.yaml", "a/run.json"}) {
    EXPECT_TRUE(means_path(name)) << name;
    EXPECT_THAT(refusal(name), AllOf(HasSubstr(name), HasSubstr("is not there"))) << name;
  }
  for (const char* name : {"gpt2", "Qwen/Qwen2.5-0.5B", "runs"}) {
    EXPECT_FALSE(means_path(name)) << name;
  }
  const TemporaryFolder here; // what lies in a folder that is there is no id
  fs::create_directories(here.path() / "models");
  const fs::path before = fs::current_path();
  fs::current_path(here.path());
  EXPECT_TRUE(means_path("models/none"));
  EXPECT_FALSE(means_path("others/none"));
  fs::current_path(before);
}

} // namespace
} // namespace palimpsest

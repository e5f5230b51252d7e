#include <palimpsest/core/data/tokenizer/encoder_pool.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/core/data/tokenizer/golden.h>

#include <gtest/gtest.h>

#include <thread>

namespace palimpsest {
namespace {

TEST(EncoderPool, ServesThreadsAlike) {
  const Tokenizer tokenizer(golden_folder("qwen2-2000"));
  const auto cases = golden_cases("qwen2-2000", "cases.json");
  EncoderPool pool(tokenizer);
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (int& count : wrong) {
    threads.emplace_back([&] {
      for (const auto& one : cases) {
        const Ids ids = pool.use([&](Encoder& encoder) {
          Ids made;
          encoder.encode(one.at("text").get<std::string>(), SpecialTokens::kNone, made);
          return made;
        });
        count += ids == one.at("ids_plain").get<Ids>() ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(EncoderPool, GoesOnAfterAnError) {
  const Tokenizer tokenizer(golden_folder("gpt2-512"));
  EncoderPool pool(tokenizer);
  const auto encode = [&](const std::string& text) {
    return pool.use([&](Encoder& encoder) {
      Ids ids;
      encoder.encode(text, SpecialTokens::kNone, ids);
      return ids;
    });
  };
  const Ids before = encode("Hello world");
  EXPECT_THROW(encode("\xff"), UserError);
  EXPECT_EQ(encode("Hello world"), before);
}

} // namespace
} // namespace palimpsest

#pragma once

// Encoders of one tokenizer for callers on any thread.
//
//   EncoderPool pool(tokenizer);
//   pool.use([&](Encoder& encoder) { encoder.encode(text, SpecialTokens::kNone, ids); });
//
// There are as many as were in use at the same time.

#include <palimpsest/core/data/tokenizer/tokenizer.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace palimpsest {

class EncoderPool {
 public:
  /// The tokenizer outlives it.
  explicit EncoderPool(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  /// What `work` returns, called with an encoder that no other thread has meanwhile.
  template <typename Work>
  auto use(Work work) {
    std::unique_ptr<Encoder> encoder = take();
    struct Return {
      EncoderPool& pool;
      std::unique_ptr<Encoder>& encoder;
      ~Return() {
        pool.put(std::move(encoder));
      }
    };
    const Return guard{*this, encoder};
    return work(*encoder);
  }

 private:
  std::unique_ptr<Encoder> take() {
    const std::scoped_lock lock(mutex_);
    if (free_.empty()) {
      return std::make_unique<Encoder>(tokenizer_);
    }
    std::unique_ptr<Encoder> encoder = std::move(free_.back());
    free_.pop_back();
    return encoder;
  }
  void put(std::unique_ptr<Encoder> encoder) {
    const std::scoped_lock lock(mutex_);
    free_.push_back(std::move(encoder));
  }

  const Tokenizer& tokenizer_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Encoder>> free_;
};

} // namespace palimpsest

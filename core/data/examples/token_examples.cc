#include <palimpsest/core/data/examples/token_examples.h>

#include <palimpsest/core/base/error.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>

namespace palimpsest {

namespace {

ExampleSize size_of(const TokenExamples& examples, int64_t index, const MeasureSettings& settings) {
  const TokenExample example = examples.read(index);
  check(example.ids.size() == example.targets.size(), "a flag for each token");
  for (const int32_t id : example.ids) {
    if (id < 0 || id >= settings.vocabulary_size) {
      throw UserError(
          "{}: token {} is beyond the model's vocabulary of {} ids; use the tokenizer that belongs "
          "to the model",
          examples.location(index),
          id,
          settings.vocabulary_size);
    }
  }
  const auto end = std::min(std::ssize(example.ids), settings.sequence_length);
  const auto begin = std::min<int64_t>(1, end); // nothing predicts the first token
  return {
      static_cast<int32_t>(example.ids.size()),
      std::any_of(
          example.targets.begin() + begin, example.targets.begin() + end, [](uint8_t is_target) {
            return is_target != 0;
          })};
}

/// The error of the smallest index.
class FirstError {
 public:
  bool before(int64_t index) const {
    return index_.load() < index;
  }
  void keep(int64_t index, std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (index < index_.load()) {
      index_ = index;
      error_ = std::move(error);
    }
  }
  void rethrow() const {
    if (error_) {
      std::rethrow_exception(error_);
    }
  }

 private:
  std::mutex mutex_;
  std::atomic<int64_t> index_ = std::numeric_limits<int64_t>::max();
  std::exception_ptr error_;
};

} // namespace

std::vector<ExampleSize> measure(const TokenExamples& examples, const MeasureSettings& settings) {
  constexpr int64_t kBlock = 64;
  const int64_t size = examples.size();
  std::vector<ExampleSize> sizes(static_cast<size_t>(size));
  std::atomic<int64_t> next = 0;
  FirstError first;
  const auto work = [&] {
    for (int64_t begin = next.fetch_add(kBlock); begin < size; begin = next.fetch_add(kBlock)) {
      for (int64_t i = begin; i < std::min(size, begin + kBlock) && !first.before(i); ++i) {
        try {
          sizes[static_cast<size_t>(i)] = size_of(examples, i, settings);
        } catch (...) {
          first.keep(i, std::current_exception());
        }
      }
    }
  };
  std::vector<std::jthread> threads;
  const auto blocks = (size + kBlock - 1) / kBlock;
  for (int64_t t = 1; t < std::min<int64_t>(settings.threads, blocks); ++t) {
    threads.emplace_back(work);
  }
  work();
  threads.clear(); // joins
  first.rethrow();
  return sizes;
}

} // namespace palimpsest

#include <palimpsest/core/data/examples/token_examples.h>

#include <palimpsest/core/base/error.h>

#include <algorithm>
#include <atomic>
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

// A size as a number above 0 that ranks can add up: 0 is another rank's, or was not come to.
constexpr int64_t kFailed = -1;
int64_t as_number(const ExampleSize& size) {
  return 1 + 2 * int64_t{size.tokens} + (size.learns ? 1 : 0);
}
ExampleSize as_size(int64_t number) {
  return {static_cast<int32_t>((number - 1) / 2), (number - 1) % 2 == 1};
}

/// Tokenizes this rank's part of the examples, on several threads.
class Reader {
 public:
  Reader(const TokenExamples& examples, const MeasureSettings& settings)
      : examples_(examples), settings_(settings), sizes_(static_cast<size_t>(examples.size())) {}

  /// Sizes as numbers. Behind an example that fails the rest may be missing.
  std::vector<int64_t> read() {
    std::vector<std::jthread> threads;
    for (int64_t t = 1; t < std::min<int64_t>(settings_.reading.threads, blocks()); ++t) {
      threads.emplace_back([this] { work(); });
    }
    work();
    threads.clear(); // joins
    return std::move(sizes_);
  }

 private:
  static constexpr int64_t kBlock = 64;

  /// Of this rank: each of them takes one in turn.
  int64_t blocks() const {
    const int64_t all = (std::ssize(sizes_) + kBlock - 1) / kBlock;
    const auto& reading = settings_.reading;
    return (all - reading.rank + reading.ranks - 1) / reading.ranks;
  }

  void work() {
    const auto& reading = settings_.reading;
    for (int64_t block = next_++; block < blocks(); block = next_++) {
      const int64_t begin = (block * reading.ranks + reading.rank) * kBlock;
      const int64_t end = std::min(std::ssize(sizes_), begin + kBlock);
      for (int64_t i = begin; i < end && i <= first_failed_; ++i) {
        sizes_[static_cast<size_t>(i)] = number_of(i);
      }
      tell(++done_);
    }
  }

  int64_t number_of(int64_t index) {
    try {
      return as_number(size_of(examples_, index, settings_));
    } catch (...) { // read again on all ranks, where the first one tells its error
      for (int64_t known = first_failed_;
           index < known && !first_failed_.compare_exchange_weak(known, index);) {
      }
      return kFailed;
    }
  }

  void tell(int64_t done) {
    if (settings_.reading.progress) {
      if (const std::unique_lock lock(telling_, std::try_to_lock); lock) {
        settings_.reading.progress(
            examples_.name(), static_cast<double>(done) / static_cast<double>(blocks()));
      }
    }
  }

  const TokenExamples& examples_;
  const MeasureSettings& settings_;
  std::vector<int64_t> sizes_;
  std::atomic<int64_t> next_ = 0;
  std::atomic<int64_t> done_ = 0;
  std::atomic<int64_t> first_failed_ = std::numeric_limits<int64_t>::max();
  std::mutex telling_;
};

/// Before the first exchange whose size depends on it.
void require_same_size(const TokenExamples& examples, const FirstReading& reading) {
  std::vector<int64_t> sizes(static_cast<size_t>(reading.ranks), 0);
  sizes[static_cast<size_t>(reading.rank)] = examples.size();
  reading.sum(sizes);
  const auto other =
      std::ranges::find_if(sizes, [&](int64_t size) { return size != sizes.front(); });
  if (other != sizes.end()) {
    throw UserError(
        "{}: rank {} finds {} samples where rank 0 finds {}; all ranks need the same files",
        examples.name(),
        other - sizes.begin(),
        *other,
        sizes.front());
  }
}

} // namespace

std::vector<ExampleSize> measure(const TokenExamples& examples, const MeasureSettings& settings) {
  const FirstReading& reading = settings.reading;
  const bool shared = reading.ranks > 1;
  if (shared) {
    require_same_size(examples, reading);
  }
  std::vector<int64_t> numbers = Reader(examples, settings).read();
  if (shared) {
    constexpr size_t kAtOnce = size_t{1} << 20;
    for (size_t begin = 0; begin < numbers.size(); begin += kAtOnce) {
      reading.sum(std::span(numbers).subspan(begin, std::min(kAtOnce, numbers.size() - begin)));
    }
  }
  std::vector<ExampleSize> sizes;
  sizes.reserve(numbers.size());
  for (const int64_t number : numbers) {
    sizes.push_back(number > 0 ? as_size(number) : size_of(examples, std::ssize(sizes), settings));
  }
  return sizes;
}

void require_unchanged(
    const TokenExamples& examples,
    int64_t index,
    int64_t tokens,
    int64_t measured) {
  if (tokens != measured) {
    throw UserError(
        "{}: has {} tokens where it had {} when it was first read; data files may not change while "
        "a run reads them",
        examples.location(index),
        tokens,
        measured);
  }
}

} // namespace palimpsest

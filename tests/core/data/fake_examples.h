#pragma once

// Examples given as ids. Their targets are marked by a minus sign.

#include <palimpsest/core/data/examples/token_examples.h>

#include <cstdlib>
#include <initializer_list>
#include <memory>

namespace palimpsest {

class FakeExamples final : public TokenExamples {
 public:
  explicit FakeExamples(std::vector<std::vector<int32_t>> examples, std::vector<bool> begins = {})
      : examples_(std::move(examples)), begins_(std::move(begins)) {}

  int64_t size() const override {
    return std::ssize(examples_);
  }
  TokenExample read(int64_t index) const override {
    TokenExample example;
    for (const int32_t id : examples_.at(static_cast<size_t>(index))) {
      example.ids.push_back(std::abs(id));
      example.targets.push_back(id < 0 ? 1 : 0);
    }
    return example;
  }
  bool begins_document(int64_t index) const override {
    return begins_.empty() || begins_.at(static_cast<size_t>(index));
  }
  std::string location(int64_t index) const override {
    return "fake:" + std::to_string(index + 1);
  }
  std::string name() const override {
    return "fake";
  }

 private:
  std::vector<std::vector<int32_t>> examples_;
  std::vector<bool> begins_;
};

inline std::unique_ptr<TokenExamples> fake_examples(
    std::vector<std::vector<int32_t>> examples,
    std::vector<bool> begins = {}) {
  return std::make_unique<FakeExamples>(std::move(examples), std::move(begins));
}

} // namespace palimpsest

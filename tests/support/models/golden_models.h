#pragma once

// The models of tests/data/models, one of each family and of what families do differently.
//
//   INSTANTIATE_TEST_SUITE_P(Models, Golden, ::testing::ValuesIn(kGoldenModels), golden_model_name);

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

namespace palimpsest {

inline constexpr std::array kGoldenModels{
    "llama-tiny",
    "llama-tied",
    "llama3-rope",
    "llama-bf16-sharded",
    "mistral-tiny",
    "qwen2-tiny",
    "qwen3-tiny",
    "gemma-tiny",
    "gpt2-tiny",
    "mistral-window",
    "qwen2-window"};

/// As the name of a test.
inline std::string golden_model_name(const ::testing::TestParamInfo<const char*>& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

} // namespace palimpsest

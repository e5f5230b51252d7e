#pragma once

// The golden traces in tests/data/optim, made with torch 2.11.0 and transformers 5.24.0.

#include <nlohmann/json.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include <fstream>
#include <string>
#include <vector>

namespace palimpsest {

inline nlohmann::json golden(const std::string& file) {
  std::ifstream stream(std::string(PALIMPSEST_TEST_DATA) + "/optim/" + file);
  return nlohmann::json::parse(stream).at("data");
}

inline at::Tensor to_tensor(const nlohmann::json& numbers) {
  return at::tensor(numbers.get<std::vector<float>>());
}

} // namespace palimpsest

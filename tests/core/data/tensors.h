#pragma once

// Safetensors files for tests, written byte by byte here so that they do not depend on the writer.

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

namespace palimpsest {

struct TestTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

template <typename T>
TestTensor test_tensor(
    const std::string& name,
    const std::string& dtype,
    std::vector<int64_t> shape,
    const std::vector<T>& values) {
  return {
      name,
      dtype,
      std::move(shape),
      std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T))};
}

inline std::string safetensors_text(const std::vector<TestTensor>& tensors) {
  std::string header = "{";
  std::string data;
  for (const TestTensor& tensor : tensors) {
    std::string shape;
    for (const int64_t size : tensor.shape) {
      shape += (shape.empty() ? "" : ",") + std::to_string(size);
    }
    header += (header.size() > 1 ? ",\"" : "\"") + tensor.name + R"(":{"dtype":")" + tensor.dtype +
        R"(","shape":[)" + shape + R"(],"data_offsets":[)" + std::to_string(data.size()) + "," +
        std::to_string(data.size() + tensor.bytes.size()) + "]}";
    data += tensor.bytes;
  }
  header += "}";
  const auto length = static_cast<uint64_t>(header.size());
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + data;
}

} // namespace palimpsest

#pragma once

// The numbers in a file, to be compared.

#include <palimpsest/core/io/safetensors.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace palimpsest::testing {

/// F32 tensors of a file by name.
inline std::map<std::string, std::vector<float>> floats(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  std::map<std::string, std::vector<float>> found;
  for (const StoredTensor& tensor : file.tensors()) {
    if (tensor.dtype == StoredDtype::F32) {
      std::vector<float>& values = found[tensor.name];
      values.resize(static_cast<size_t>(tensor.elements()));
      std::memcpy(values.data(), file.bytes(tensor).data(), file.bytes(tensor).size());
    }
  }
  return found;
}

} // namespace palimpsest::testing

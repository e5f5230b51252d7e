#pragma once

// What the tests of files share: a folder that goes away, safetensors bytes from a header, errors
// by message.

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/tests/support/files/temporary_folder.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

namespace palimpsest {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    path_ = make_temporary_folder();
  }
  TemporaryFolder(TemporaryFolder&&) = delete;
  ~TemporaryFolder() {
    std::filesystem::remove_all(path_);
  }
  const std::filesystem::path& path() const {
    return path_;
  }
  std::filesystem::path operator/(std::string_view name) const {
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

inline std::filesystem::path golden_model(std::string_view name) {
  return std::filesystem::path(PALIMPSEST_TEST_DATA) / "models" / name;
}

inline void put(const std::filesystem::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// The bytes of a safetensors file: length, header, data.
inline std::string safetensors_bytes(std::string_view header, std::string_view data = "") {
  uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
  return bytes.append(header).append(data);
}

/// The message of the error of type E that `action` throws; a test failure where it throws none or
/// another.
template <typename E, typename Action>
std::string message_of(Action&& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "threw another error: " << error.what();
    return "";
  }
  ADD_FAILURE() << "threw nothing";
  return "";
}

} // namespace palimpsest

#pragma once

// A folder for a test's files, removed at the end.

#include <palimpsest/tests/support/files/temporary_folder.h>

#include <filesystem>
#include <fstream>
#include <span>
#include <string>

#include <stdlib.h>

namespace palimpsest {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    path_ = make_temporary_folder();
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::filesystem::remove_all(path_);
  }

  const std::filesystem::path& path() const {
    return path_;
  }
  /// Writes `values` as they lie in memory.
  template <typename T>
  std::filesystem::path write(const std::string& name, std::span<const T> values) const {
    std::ofstream stream(path_ / name, std::ios::binary);
    stream.write(reinterpret_cast<const char*>(values.data()), std::ssize(values) * sizeof(T));
    return path_ / name;
  }
  std::filesystem::path write(const std::string& name, const std::string& text) const {
    return write(name, std::span<const char>(text));
  }

 private:
  std::filesystem::path path_;
};

} // namespace palimpsest

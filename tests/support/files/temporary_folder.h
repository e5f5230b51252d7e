#pragma once

// A folder for a test's files.
//
//   folder_ = make_temporary_folder();      // in SetUp; TearDown removes it

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace palimpsest {

/// A new empty folder among the system's temporary ones, its name beginning with `prefix`. The caller
/// removes it. Throws where there is no room for one, which fails the test.
inline std::filesystem::path make_temporary_folder(const std::string& prefix = "palimpsest") {
  std::string name = (std::filesystem::temp_directory_path() / (prefix + "-XXXXXX")).string();
  if (::mkdtemp(name.data()) == nullptr) {
    throw std::system_error(errno, std::generic_category(), name);
  }
  return name;
}

} // namespace palimpsest

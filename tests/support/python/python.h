#pragma once

// Optional Python packages: tests that need one skip where it is missing.
//
//   using JinjaTest = NeedsJinja;             // TEST_F(JinjaTest, ...) skips without python3-jinja2
//
//   const auto python = peer_python("tensorboard");
//   if (!python) {
//     GTEST_SKIP() << python.reason;
//   }

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace palimpsest {

/// Whether the interpreter is there and finds the package.
inline bool python_has(const std::string& interpreter, const std::string& package) {
  const std::string command = interpreter + " -c 'import " + package + "' >/dev/null 2>&1";
  return std::system(command.c_str()) == 0;
}

/// Where a program looks for what renders Jinja.
inline bool has_jinja() {
  return python_has("python3", "jinja2") || python_has("/usr/bin/python3", "jinja2");
}

class NeedsJinja : public ::testing::Test {
 protected:
  void SetUp() override {
    static const bool found = has_jinja();
    if (!found) {
      GTEST_SKIP() << "there is no python3 with jinja2 (apt install python3-jinja2)";
    }
  }
};

struct PeerPython {
  std::string interpreter; ///< empty where there is none with the package
  std::string reason;
  explicit operator bool() const {
    return !interpreter.empty();
  }
};

/// The Python environment of peers, which has the reference's packages.
inline PeerPython peer_python(const std::string& package) {
  const auto root = std::filesystem::path(PALIMPSEST_TEST_DATA).parent_path().parent_path();
  const std::string interpreter = (root / ".deps/peer/bin/python").string();
  if (!std::filesystem::exists(interpreter)) {
    return {"", "there is no " + interpreter};
  }
  if (!python_has(interpreter, package)) {
    return {"", interpreter + " lacks the package " + package};
  }
  return {interpreter, ""};
}

} // namespace palimpsest

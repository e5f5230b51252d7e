#pragma once

// One suite that every engine's communicators pass: tests/parallel/comm/conformance.cc.
//
//   INSTANTIATE_TEST_SUITE_P(
//       InProcess, Conformance, ::testing::ValuesIn(worlds_of_threads("in_process", make)), name_of);

#include <palimpsest/core/contracts/communicator.h>
#include <palimpsest/parallel/comm/settings.h>

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

namespace palimpsest {

/// What one rank does in a test.
using RankBody = std::function<void(Communicator&)>;

/// A way to run a body on each rank of a fresh world.
struct TestWorld {
  std::string engine;
  int size = 0;
  std::function<void(const CommSettings&, const RankBody&)> run;
  bool survives_failure = true; // waiting for an operation throws, and the process goes on
  std::string skip; // why this world cannot be had here; empty: it can
};

inline void PrintTo(const TestWorld& world, std::ostream* out) {
  *out << world.engine << ", " << world.size << " ranks";
}

std::string name_of(const ::testing::TestParamInfo<TestWorld>& info);

using MakeWorld =
    std::function<std::vector<std::unique_ptr<Communicator>>(int size, const CommSettings&)>;

/// Worlds of 1 to 5 ranks as threads of this process.
std::vector<TestWorld> worlds_of_threads(const std::string& engine, const MakeWorld& make);

/// Runs the body on each communicator's own thread. A rank that throws ends the world; the first
/// error is thrown again.
void run_threads(std::vector<std::unique_ptr<Communicator>> world, const RankBody& body);

class Conformance : public ::testing::TestWithParam<TestWorld> {
 protected:
  void SetUp() override {
    if (!GetParam().skip.empty()) {
      GTEST_SKIP() << GetParam().skip;
    }
  }
  int size() const {
    return GetParam().size;
  }
  void run(const RankBody& body, const CommSettings& settings = {}) {
    GetParam().run(settings, body);
  }
};

} // namespace palimpsest

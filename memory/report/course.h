#pragma once

// How a run went: its steps and evaluations, from its metrics.jsonl.
//
//   report.course = read_course("runs/a/metrics.jsonl");

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace palimpsest {

/// What is unset was not finite.
struct CourseStep {
  int64_t step = 0;
  std::optional<double> loss{};
  std::optional<double> grad_norm{};
  double learning_rate = 0;
  double tokens_per_s = 0;
  bool skipped = false;
};

struct CourseEvaluation {
  int64_t step = 0; ///< after it
  std::optional<double> loss{};
  std::optional<double> perplexity{}; ///< unset also for a model that reads no tokens
  bool best = false; ///< the lowest of those so far
};

struct Course {
  int64_t every = 1; ///< only every so many steps are there, and the last one
  std::vector<CourseStep> steps;
  std::vector<CourseEvaluation> evaluations;
};

/// At most about `most` steps and all evaluations; empty where there is no such file. What is no
/// whole record, as the last line of a run that was killed, is left out.
Course read_course(const std::filesystem::path& metrics, int64_t most = 10'000);

} // namespace palimpsest

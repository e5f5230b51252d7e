#pragma once

// metrics.jsonl: one JSON object per optimizer step, and one per evaluation after its step's, handed
// to the system as a whole line when it ends.
//
//   MetricsWriter metrics("runs/a/metrics.jsonl");   // {"step": 1, "loss": 4.16, "grad_norm": ...}
//                                                    // {"step": 1, "eval_loss": 4.02, ...}

#include <palimpsest/core/contracts/observer.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace palimpsest {

class MetricsWriter final : public Observer {
 public:
  /// Keeps the lines of steps 1 to `steps_done`, which a resumed run goes on from, and drops what
  /// follows: 0 begins the file anew. EnvironmentError with path and reason where it cannot be
  /// written, now or later. `mfu`: of a step, where it is known; may be empty.
  explicit MetricsWriter(
      std::filesystem::path path,
      int64_t steps_done = 0,
      std::function<std::optional<double>(const StepRecord&)> mfu = {});

  void step_end(const StepRecord& record) override;
  void evaluation_end(const EvaluationRecord& record) override;

 private:
  void write(int64_t step, const std::string& line);

  struct Close {
    void operator()(std::FILE* file) const {
      std::fclose(file);
    }
  };
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::function<std::optional<double>(const StepRecord&)> mfu_;
};

/// A record as one line of JSON, without the line's end. A number that is not finite is null; what
/// is unset is left out.
std::string to_json_line(const StepRecord& record, std::optional<double> mfu = std::nullopt);
std::string to_json_line(const EvaluationRecord& record);

} // namespace palimpsest

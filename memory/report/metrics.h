#pragma once

// metrics.jsonl: one JSON object per optimizer step, handed to the system as a whole line when the
// step ends.
//
//   MetricsWriter metrics("runs/a/metrics.jsonl");   // {"step": 1, "loss": 4.16, "grad_norm": ...}

#include <palimpsest/core/contracts/observer.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>

namespace palimpsest {

class MetricsWriter final : public Observer {
 public:
  /// Keeps the lines of steps 1 to `steps_done`, which a resumed run goes on from, and drops what
  /// follows: 0 begins the file anew. EnvironmentError with path and reason where it cannot be
  /// written, now or later.
  explicit MetricsWriter(std::filesystem::path path, int64_t steps_done = 0);

  void step_end(const StepRecord& record) override;

 private:
  struct Close {
    void operator()(std::FILE* file) const {
      std::fclose(file);
    }
  };
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
};

/// A record as one line of JSON, without the line's end. A number that is not finite is null.
std::string to_json_line(const StepRecord& record);

} // namespace palimpsest

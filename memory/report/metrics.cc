#include <palimpsest/memory/report/metrics.h>

#include <palimpsest/core/base/error.h>

#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstring>
#include <utility>

namespace palimpsest {

std::string to_json_line(const StepRecord& record) {
  const nlohmann::ordered_json line = {
      {"step", record.step},
      {"loss", record.loss},
      {"grad_norm", record.grad_norm},
      {"learning_rate", record.learning_rate},
      {"skipped", record.skipped},
      {"tokens", record.tokens},
      {"step_time_s", record.step_time_s},
      {"tokens_per_s", record.tokens_per_s},
      {"peak_device_bytes", record.peak_device_bytes},
      {"peak_rss_bytes", record.peak_rss_bytes}};
  return line.dump();
}

MetricsWriter::MetricsWriter(std::filesystem::path path)
    : path_(std::move(path)), file_(std::fopen(path_.c_str(), "we")) {
  if (file_ == nullptr) {
    throw EnvironmentError("cannot write {}: {}", path_.string(), std::strerror(errno));
  }
}

void MetricsWriter::step_end(const StepRecord& record) {
  const std::string line = to_json_line(record) + "\n";
  const bool written = std::fwrite(line.data(), 1, line.size(), file_.get()) == line.size();
  if (!written || std::fflush(file_.get()) != 0) {
    throw EnvironmentError(
        "cannot write step {} to {}: {}", record.step, path_.string(), std::strerror(errno));
  }
}

} // namespace palimpsest

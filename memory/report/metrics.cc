#include <palimpsest/memory/report/metrics.h>

#include <palimpsest/core/base/error.h>

#include <nlohmann/json.hpp>

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

namespace palimpsest {

std::string to_json_line(const StepRecord& record, std::optional<double> mfu) {
  nlohmann::ordered_json line = {
      {"step", record.step},
      {"loss", record.loss},
      {"grad_norm", record.grad_norm},
      {"learning_rate", record.learning_rate},
      {"skipped", record.skipped},
      {"tokens", record.tokens},
      {"step_time_s", record.step_time_s},
      {"data_wait_s", record.data_wait_s},
      {"tokens_per_s", record.tokens_per_s},
      {"peak_device_bytes", record.peak_device_bytes},
      {"peak_rss_bytes", record.peak_rss_bytes}};
  if (mfu) {
    line["mfu"] = *mfu;
  }
  if (record.loss_scale) {
    line["loss_scale"] = *record.loss_scale;
  }
  return line.dump();
}

std::string to_json_line(const EvaluationRecord& record) {
  nlohmann::ordered_json line = {{"step", record.step}, {"eval_loss", record.loss}};
  if (record.perplexity) {
    line["eval_perplexity"] = *record.perplexity;
  }
  line["eval_samples"] = record.samples;
  line["eval_targets"] = record.targets;
  line["eval_time_s"] = record.time_s;
  line["best"] = record.best;
  return line.dump();
}

namespace {

/// Bytes of the leading whole lines of steps up to `last`.
int64_t bytes_of_steps(const std::filesystem::path& path, int64_t last) {
  std::ifstream file(path);
  int64_t bytes = 0;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    const auto record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const bool whole = record.is_object() && record.contains("step") && record["step"].is_number();
    if (!whole || record["step"].get<int64_t>() > last) {
      break;
    }
    bytes += static_cast<int64_t>(line.size()) + 1;
  }
  return bytes;
}

} // namespace

MetricsWriter::MetricsWriter(
    std::filesystem::path path,
    int64_t steps_done,
    std::function<std::optional<double>(const StepRecord&)> mfu)
    : path_(std::move(path)), mfu_(std::move(mfu)) {
  const int64_t kept = steps_done > 0 ? bytes_of_steps(path_, steps_done) : 0;
  file_.reset(std::fopen(path_.c_str(), "ae"));
  if (file_ == nullptr ||
      (std::filesystem::is_regular_file(path_) && truncate(path_.c_str(), kept) != 0)) {
    throw EnvironmentError("cannot write {}: {}", path_.string(), std::strerror(errno));
  }
}

void MetricsWriter::step_end(const StepRecord& record) {
  write(record.step, to_json_line(record, mfu_ ? mfu_(record) : std::nullopt) + "\n");
}

void MetricsWriter::evaluation_end(const EvaluationRecord& record) {
  write(record.step, to_json_line(record) + "\n");
}

void MetricsWriter::write(int64_t step, const std::string& line) {
  const bool written = std::fwrite(line.data(), 1, line.size(), file_.get()) == line.size();
  if (!written || std::fflush(file_.get()) != 0) {
    throw EnvironmentError(
        "cannot write step {} to {}: {}", step, path_.string(), std::strerror(errno));
  }
}

} // namespace palimpsest

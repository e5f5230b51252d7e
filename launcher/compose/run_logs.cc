#include <palimpsest/launcher/compose/run_logs.h>

#include <palimpsest/core/io/event_file.h>
#include <palimpsest/launcher/compose/utilization.h>
#include <palimpsest/memory/report/metrics.h>

#include <utility>

namespace palimpsest {
namespace {

class EventLog final : public Observer {
 public:
  EventLog(EventFile file, Utilization mfu) : file_(std::move(file)), mfu_(std::move(mfu)) {}

  void step_end(const StepRecord& record) override {
    std::vector<Scalar> scalars = {
        {"train/loss", record.loss},
        {"train/grad_norm", record.grad_norm},
        {"train/learning_rate", record.learning_rate},
        {"train/tokens_per_s", record.tokens_per_s},
        {"train/peak_device_bytes", static_cast<double>(record.peak_device_bytes)}};
    if (const auto mfu = mfu_(record)) {
      scalars.push_back({"train/mfu", *mfu});
    }
    if (record.loss_scale) {
      scalars.push_back({"train/loss_scale", *record.loss_scale});
    }
    file_.write(record.step, scalars);
  }

  void evaluation_end(const EvaluationRecord& record) override {
    std::vector<Scalar> scalars = {{"eval/loss", record.loss}};
    if (record.perplexity) {
      scalars.push_back({"eval/perplexity", *record.perplexity});
    }
    file_.write(record.step, scalars);
  }

 private:
  EventFile file_;
  Utilization mfu_;
};

} // namespace

std::vector<std::unique_ptr<Observer>> open_logs(Run& run) {
  const int64_t done = run.position().step;
  std::vector<std::unique_ptr<Observer>> logs;
  logs.push_back(std::make_unique<MetricsWriter>(
      run.output() / "metrics.jsonl", done, model_utilization(run)));
  if (run.config().logging().tensorboard()) {
    logs.push_back(std::make_unique<EventLog>(
        EventFile(run.output() / "tensorboard", done + 1), model_utilization(run)));
  }
  return logs;
}

} // namespace palimpsest

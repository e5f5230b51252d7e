#include <palimpsest/core/data/read_ahead.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

namespace palimpsest {

ReadAhead::ReadAhead(std::unique_ptr<SampleSource> source)
    : WrappedSource(std::move(source)), thread_([this] { work(); }) {}

ReadAhead::~ReadAhead() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ReadAhead::expect(const std::vector<int64_t>& samples) {
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(ready_, [&](const auto& row) {
      return std::ranges::find(samples, row.first) == samples.end();
    });
    wanted_.assign(samples.rbegin(), samples.rend());
    std::erase_if(wanted_, [&](int64_t sample) { return ready_.contains(sample); });
  }
  changed_.notify_all();
}

size_t ReadAhead::ready() const {
  const std::lock_guard lock(mutex_);
  return ready_.size();
}

ReadAhead::Row ReadAhead::read_row(int64_t sample) const {
  const size_t element = kind() == SampleKind::kTokens ? sizeof(int64_t) : sizeof(float);
  Row row{
      .inputs = std::vector<std::byte>(static_cast<size_t>(input_size()) * element),
      .labels = std::vector<std::byte>(static_cast<size_t>(label_size()) * element)};
  source_->read(sample, row.inputs.data(), row.labels.data());
  return row;
}

void ReadAhead::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !wanted_.empty(); });
    if (stopping_) {
      return;
    }
    const int64_t sample = wanted_.back();
    reading_ = sample;
    wanted_.pop_back();
    lock.unlock();
    std::optional<Row> row;
    try {
      row = read_row(sample);
    } catch (...) { // whoever reads the sample meets the error
    }
    lock.lock();
    if (row) {
      ready_.insert_or_assign(sample, std::move(*row));
    }
    reading_ = -1;
    changed_.notify_all();
  }
}

void ReadAhead::read(int64_t sample, void* inputs, void* labels) const {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reading_ != sample; });
    if (const auto row = ready_.extract(sample)) {
      std::memcpy(inputs, row.mapped().inputs.data(), row.mapped().inputs.size());
      std::memcpy(labels, row.mapped().labels.data(), row.mapped().labels.size());
      return;
    }
    std::erase(wanted_, sample); // read here
  }
  source_->read(sample, inputs, labels);
}

} // namespace palimpsest

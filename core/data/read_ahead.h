#pragma once

// Reads the samples of the next step on a thread of its own while the current one computes.
//
//   ReadAhead source(std::move(samples));
//   source.expect({17, 4, 9});         // returns at once
//   source.read(17, inputs, labels);   // what the thread has read, or is about to
//
// What a read gives is what the source gives, whenever it was read. The rows that wait are plain
// memory: no tensor is made on the thread.

#include <palimpsest/core/data/wrapped_source.h>

#include <condition_variable>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace palimpsest {

class ReadAhead final : public WrappedSource {
 public:
  explicit ReadAhead(std::unique_ptr<SampleSource> source);
  ReadAhead(const ReadAhead&) = delete;
  ~ReadAhead() override;

  /// These samples will be read next, in this order. What was expected before and is not among them
  /// is forgotten.
  void expect(const std::vector<int64_t>& samples);
  /// Rows that are ready, for tests.
  size_t ready() const;

  /// From one thread. An error that the thread met is thrown here, by reading again.
  void read(int64_t sample, void* inputs, void* labels) const override;

 private:
  struct Row {
    std::vector<std::byte> inputs;
    std::vector<std::byte> labels;
  };

  void work();
  Row read_row(int64_t sample) const;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable std::vector<int64_t> wanted_; // the next one last
  mutable std::map<int64_t, Row> ready_;
  int64_t reading_ = -1; // by the thread
  bool stopping_ = false;
  std::thread thread_; // last: it uses the rest
};

} // namespace palimpsest

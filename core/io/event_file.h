#pragma once

// TensorBoard's event files: numbers by step, for the programs that plot them.
//
//   EventFile events("runs/a/tensorboard", /*first_step=*/1);
//   events.write(1, {{"train/loss", 4.16}, {"train/learning_rate", 2e-5}});
//
// A file is a row of records: a length in 8 bytes and its checksum in 4, then an event
// (events.proto) of that length and its checksum. A checksum is a crc32c() turned right by 15 bits,
// plus 0xa282ead8; all numbers are little-endian (TensorFlow's TFRecord format).

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace palimpsest {

/// A value of a step. `tag`: "train/loss"; what stands before the slash groups the plots.
struct Scalar {
  std::string tag;
  double value = 0;
};

class EventFile {
 public:
  /// Begins a file that sorts behind those in `folder`, which is created where it is missing. A run
  /// that goes on gives its first step, from 1: older files lose what they hold of it and of later
  /// ones, and a program that watches meanwhile is told to forget the same. EnvironmentError with
  /// path and reason where it cannot be written, now or later.
  EventFile(const std::filesystem::path& folder, int64_t first_step);

  /// The values of a step, rounded to 32 bits as TensorBoard keeps them; handed to the system when
  /// this returns.
  void write(int64_t step, const std::vector<Scalar>& scalars);

  const std::filesystem::path& path() const {
    return path_;
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const {
      std::fclose(file);
    }
  };
  void append(const std::string& event);

  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
};

} // namespace palimpsest

#include <palimpsest/core/io/event_file.h>

#include <palimpsest/core/base/crc32c.h>
#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/core/base/host.h>
#include <palimpsest/core/io/events.pb.h>

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>

namespace palimpsest {
namespace fs = std::filesystem;
namespace {

static_assert(std::endian::native == std::endian::little, "records are written as memory has them");

constexpr std::string_view kPrefix = "events.out.tfevents.";
constexpr size_t kHead = sizeof(uint64_t) + sizeof(uint32_t); // length and its checksum

uint32_t masked_check(std::span<const std::byte> bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8;
}

template <typename Number>
Number number_at(std::span<const std::byte> bytes, size_t offset) {
  Number number;
  std::memcpy(&number, bytes.data() + offset, sizeof(number));
  return number;
}

template <typename Number>
void append_number(std::string& record, Number number) {
  record.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

std::string record_of(const std::string& event) {
  const uint64_t length = event.size();
  std::string record;
  append_number(record, length);
  append_number(record, masked_check(std::as_bytes(std::span(&length, 1))));
  record += event;
  append_number(record, masked_check(std::as_bytes(std::span(event))));
  return record;
}

/// The event that a whole and undamaged record begins with.
std::optional<std::span<const std::byte>> event_at(std::span<const std::byte> bytes) {
  if (bytes.size() < kHead ||
      masked_check(bytes.first<sizeof(uint64_t)>()) !=
          number_at<uint32_t>(bytes, sizeof(uint64_t))) {
    return std::nullopt;
  }
  const auto length = number_at<uint64_t>(bytes, 0);
  const std::span<const std::byte> rest = bytes.subspan(kHead);
  if (rest.size() < sizeof(uint32_t) || rest.size() - sizeof(uint32_t) < length ||
      masked_check(rest.first(length)) != number_at<uint32_t>(rest, length)) {
    return std::nullopt;
  }
  return rest.first(length);
}

/// Bytes of a file's leading whole records of steps before `first_step`.
size_t bytes_before(std::span<const std::byte> file, int64_t first_step) {
  size_t kept = 0;
  while (const auto bytes = event_at(file.subspan(kept))) {
    TensorboardEvent event;
    if (!event.ParseFromArray(bytes->data(), static_cast<int>(bytes->size())) ||
        event.step() >= first_step) {
      break;
    }
    kept += kHead + bytes->size() + sizeof(uint32_t);
  }
  return kept;
}

void forget_from(const fs::path& path, int64_t first_step) {
  size_t size = 0;
  size_t kept = 0;
  {
    const MappedFile file(path);
    size = file.bytes().size();
    kept = bytes_before(file.bytes(), first_step);
  }
  if (kept < size && ::truncate(path.c_str(), static_cast<off_t>(kept)) != 0) {
    throw EnvironmentError("cannot write {}: {}", path.string(), std::strerror(errno));
  }
}

std::vector<fs::path> event_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::create_directories(folder, error);
  fs::directory_iterator at;
  if (!error) {
    at = fs::directory_iterator(folder, error);
  }
  for (; !error && at != fs::directory_iterator(); at.increment(error)) {
    if (at->path().filename().string().starts_with(kPrefix)) {
      files.push_back(at->path());
    }
  }
  if (error) {
    throw EnvironmentError("cannot write into {}: {}", folder.string(), error.message());
  }
  std::ranges::sort(files);
  return files;
}

/// The seconds in a file's name, by which readers order files; 0 where there are none.
int64_t seconds_of(const fs::path& path) {
  const std::string rest = path.filename().string().substr(kPrefix.size());
  int64_t seconds = 0;
  std::from_chars(rest.data(), rest.data() + rest.size(), seconds);
  return seconds;
}

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

} // namespace

EventFile::EventFile(const fs::path& folder, int64_t first_step) {
  const std::vector<fs::path> older = event_files(folder);
  auto seconds = static_cast<int64_t>(now());
  for (const fs::path& file : older) {
    seconds = std::max(seconds, seconds_of(file) + 1);
    if (first_step > 1) {
      forget_from(file, first_step);
    }
  }
  path_ = folder / fmt::format("{}{:010}.{}.{}", kPrefix, seconds, host_name(), ::getpid());
  file_.reset(std::fopen(path_.c_str(), "wxe"));
  if (file_ == nullptr) {
    throw EnvironmentError("cannot write {}: {}", path_.string(), std::strerror(errno));
  }
  TensorboardEvent event;
  event.set_wall_time(now());
  event.set_file_version("brain.Event:2");
  append(event.SerializeAsString());
  event.set_step(first_step);
  event.mutable_session_log()->set_status(TensorboardEvent::SessionLog::START);
  append(event.SerializeAsString());
}

void EventFile::write(int64_t step, const std::vector<Scalar>& scalars) {
  TensorboardEvent event;
  event.set_wall_time(now());
  event.set_step(step);
  for (const Scalar& scalar : scalars) {
    TensorboardEvent::Scalar& value = *event.mutable_summary()->add_value();
    value.set_tag(scalar.tag);
    value.set_simple_value(static_cast<float>(scalar.value));
  }
  append(event.SerializeAsString());
}

void EventFile::append(const std::string& event) {
  const std::string record = record_of(event);
  const bool written = std::fwrite(record.data(), 1, record.size(), file_.get()) == record.size();
  if (!written || std::fflush(file_.get()) != 0) {
    throw EnvironmentError("cannot write {}: {}", path_.string(), std::strerror(errno));
  }
}

} // namespace palimpsest

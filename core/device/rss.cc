#include <palimpsest/core/device/rss.h>

#include <palimpsest/core/base/error.h>

#include <fstream>
#include <string>

namespace palimpsest {

namespace {

/// The value of a "VmRSS:   1234 kB" line, in bytes.
int64_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key + ":")) {
      return std::stoll(line.substr(key.size() + 1)) * 1024;
    }
  }
  throw EnvironmentError("cannot read {} from /proc/self/status; is /proc mounted?", key);
}

} // namespace

int64_t current_rss() {
  return status_bytes("VmRSS");
}

int64_t peak_rss() {
  return status_bytes("VmHWM");
}

bool reset_peak_rss() {
  std::ofstream clear("/proc/self/clear_refs");
  clear << "5" << std::flush; // see proc(5)
  return clear.good();
}

} // namespace palimpsest

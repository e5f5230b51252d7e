#pragma once

// What the system says this process occupies, beside what was tracked.
//
//   reset_peak_rss();
//   run();
//   int64_t untracked = peak_rss() - memory.total().peak;

#include <cstdint>

namespace palimpsest {

/// Bytes resident now (VmRSS; huge pages included). Throws EnvironmentError when /proc cannot be
/// read.
int64_t current_rss();

/// The highest since the start of the process or reset_peak_rss() (VmHWM), in bytes. Throws as
/// current_rss().
int64_t peak_rss();

/// Sets the peak to what is resident now. False where the system does not permit it; the peak then
/// stays as it was.
bool reset_peak_rss();

} // namespace palimpsest

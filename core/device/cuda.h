#pragma once

// What Device asks of CUDA. cuda.cc answers in a build with CUDA, no_cuda.cc ("none present") in
// one without; CMake chooses.
//
//   if (index < cuda::device_count()) { cuda::device_memory(index).total; }

#include <cstdint>
#include <string>

namespace palimpsest::cuda {

struct Memory {
  int64_t total; // bytes
  int64_t available; // bytes
};

/// 0 where there is no driver or no device.
int device_count();
/// The others throw EnvironmentError when the driver refuses; `index` < device_count().
std::string device_name(int index);
Memory device_memory(int index);

/// Why device_count() may be 0, as the end of a sentence: "this program was built without CUDA".
std::string why_none();

} // namespace palimpsest::cuda

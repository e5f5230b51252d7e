#include <palimpsest/core/device/cuda.h>

#include <palimpsest/core/base/error.h>

namespace palimpsest::cuda {

int device_count() {
  return 0;
}

std::string device_name(int /*index*/) {
  throw EnvironmentError("no CUDA device: {}", why_none());
}

Memory device_memory(int /*index*/) {
  throw EnvironmentError("no CUDA device: {}", why_none());
}

std::string why_none() {
  return "this program was built without CUDA";
}

} // namespace palimpsest::cuda

#include <palimpsest/core/device/cuda.h>

#include <palimpsest/core/base/error.h>

#include <cuda_runtime_api.h>

namespace palimpsest::cuda {

namespace {

void require(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    throw EnvironmentError("CUDA: {} failed: {}", what, cudaGetErrorString(status));
  }
}

} // namespace

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::string device_name(int index) {
  cudaDeviceProp properties;
  require(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  return properties.name;
}

Memory device_memory(int index) {
  int current = 0;
  require(cudaGetDevice(&current), "cudaGetDevice");
  require(cudaSetDevice(index), "cudaSetDevice");
  size_t available = 0;
  size_t total = 0;
  const cudaError_t status = cudaMemGetInfo(&available, &total);
  require(cudaSetDevice(current), "cudaSetDevice");
  require(status, "cudaMemGetInfo");
  return {static_cast<int64_t>(total), static_cast<int64_t>(available)};
}

std::string why_none() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  return status == cudaSuccess ? "none is visible to this process" : cudaGetErrorString(status);
}

} // namespace palimpsest::cuda

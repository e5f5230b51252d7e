#pragma once

// The compute device: which one, how much memory, how many threads. Nothing outside core/device and
// core/kernels knows more.
//
//   Device device = Device::cpu();
//   set_threads(device.threads());
//   fmt::print("{}: {} free\n", device.name(), format_bytes(device.available_memory()));

#include <cstdint>
#include <string>

namespace palimpsest {

enum class DeviceType : uint8_t { kCpu, kCuda };

class Device {
 public:
  static Device cpu();
  /// The GPU of that index. Throws EnvironmentError when there is none, or this program was built
  /// without CUDA.
  static Device cuda(int index);
  /// True when built with CUDA and a device is present.
  static bool has_cuda();

  DeviceType type() const {
    return type_;
  }
  int index() const {
    return index_;
  }
  /// The model of the processor or GPU, for people.
  std::string name() const;
  /// Bytes; for the CPU the memory of the machine or of the control group that holds this process,
  /// whichever is less.
  int64_t total_memory() const;
  /// Bytes that can be had now without swapping: for the CPU the least of MemAvailable and what is
  /// left in each enclosing control group, page cache that can be dropped counted as available.
  int64_t available_memory() const;
  /// Processors that this thread may run on (its affinity mask; at least 1): the threads that
  /// host-side work should use.
  int threads() const;

 private:
  Device(DeviceType type, int index) : type_(type), index_(index) {}
  DeviceType type_;
  int index_;
};

/// Sets the threads that LibTorch's and OpenMP's parallel regions use when started by the calling
/// thread; n >= 1 (an InternalError otherwise). Tags new workers with the calling thread's
/// MemoryContext.
void set_threads(int n);

} // namespace palimpsest

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/kernels/philox.h>
#include <palimpsest/core/kernels/random_init.h>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

namespace palimpsest::kernels {

namespace {

// Four independent standard normals from one counter: two pairs of the Box-Muller transform.
std::array<double, 4> four_normals(uint64_t index, uint64_t stream, uint64_t seed) {
  const auto words = philox4x32_10(
      {static_cast<uint32_t>(index),
       static_cast<uint32_t>(index >> 32),
       static_cast<uint32_t>(stream),
       static_cast<uint32_t>(stream >> 32)},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  std::array<double, 4> normals{};
  for (size_t pair = 0; pair < 2; ++pair) {
    // Halfway between the grid's points, so the logarithm never sees 0.
    const double u = (words[2 * pair] + 0.5) * 0x1p-32;
    const double v = (words[2 * pair + 1] + 0.5) * 0x1p-32;
    const double radius = std::sqrt(-2.0 * std::log(u));
    normals[2 * pair] = radius * std::cos(2.0 * std::numbers::pi * v);
    normals[2 * pair + 1] = radius * std::sin(2.0 * std::numbers::pi * v);
  }
  return normals;
}

} // namespace

void normal_fill(
    const at::Tensor& values,
    double std,
    uint64_t seed,
    uint64_t stream,
    int64_t first_element) {
  check(values.is_contiguous() && first_element >= 0, "normal_fill: values are not contiguous");
  if (!values.is_cpu() || values.scalar_type() != at::kFloat) {
    const at::Tensor staged = at::empty(values.sizes(), at::kFloat);
    normal_fill(staged, std, seed, stream, first_element);
    values.copy_(staged);
    return;
  }
  float* data = values.data_ptr<float>();
  const int64_t last_element = first_element + values.numel();
  const int64_t first_group = first_element / 4;
  at::parallel_for(first_group, (last_element + 3) / 4, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group) {
      const auto normals = four_normals(static_cast<uint64_t>(group), stream, seed);
      for (int64_t lane = 0; lane < 4; ++lane) {
        const int64_t element = 4 * group + lane;
        if (element >= first_element && element < last_element) {
          data[element - first_element] = static_cast<float>(std * normals[lane]);
        }
      }
    }
  });
}

} // namespace palimpsest::kernels

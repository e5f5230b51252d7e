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

// Four independent numbers in (0, 1) from one counter: halfway between the points of a grid, so that
// none is 0.
std::array<double, 4> four_uniforms(uint64_t index, uint64_t stream, uint64_t seed) {
  const auto words = philox4x32_10(
      {static_cast<uint32_t>(index),
       static_cast<uint32_t>(index >> 32),
       static_cast<uint32_t>(stream),
       static_cast<uint32_t>(stream >> 32)},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  std::array<double, 4> uniforms{};
  for (size_t lane = 0; lane < 4; ++lane) {
    uniforms[lane] = (words[lane] + 0.5) * 0x1p-32;
  }
  return uniforms;
}

// Four independent standard normals: two pairs of the Box-Muller transform.
std::array<double, 4> four_normals(const std::array<double, 4>& uniforms) {
  std::array<double, 4> normals{};
  for (size_t pair = 0; pair < 2; ++pair) {
    const double u = uniforms[2 * pair];
    const double v = uniforms[2 * pair + 1];
    const double radius = std::sqrt(-2.0 * std::log(u));
    normals[2 * pair] = radius * std::cos(2.0 * std::numbers::pi * v);
    normals[2 * pair + 1] = radius * std::sin(2.0 * std::numbers::pi * v);
  }
  return normals;
}

// Fills with what `four` makes of each counter's four uniforms.
template <typename Four>
void fill(
    const at::Tensor& values,
    uint64_t seed,
    uint64_t stream,
    int64_t first_element,
    const Four& four) {
  check(values.is_contiguous() && first_element >= 0, "random values into no contiguous tensor");
  if (!values.is_cpu() || values.scalar_type() != at::kFloat) {
    const at::Tensor staged = at::empty(values.sizes(), at::kFloat);
    fill(staged, seed, stream, first_element, four);
    values.copy_(staged);
    return;
  }
  float* data = values.data_ptr<float>();
  const int64_t last_element = first_element + values.numel();
  const int64_t first_group = first_element / 4;
  at::parallel_for(first_group, (last_element + 3) / 4, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group) {
      const std::array<double, 4> made =
          four(four_uniforms(static_cast<uint64_t>(group), stream, seed));
      for (int64_t lane = 0; lane < 4; ++lane) {
        const int64_t element = 4 * group + lane;
        if (element >= first_element && element < last_element) {
          data[element - first_element] = static_cast<float>(made[lane]);
        }
      }
    }
  });
}

} // namespace

void normal_fill(
    const at::Tensor& values,
    double std,
    uint64_t seed,
    uint64_t stream,
    int64_t first_element) {
  fill(values, seed, stream, first_element, [std](const std::array<double, 4>& uniforms) {
    std::array<double, 4> normals = four_normals(uniforms);
    for (double& normal : normals) {
      normal *= std;
    }
    return normals;
  });
}

void uniform_fill(
    const at::Tensor& values,
    double bound,
    uint64_t seed,
    uint64_t stream,
    int64_t first_element) {
  fill(values, seed, stream, first_element, [bound](std::array<double, 4> uniforms) {
    for (double& uniform : uniforms) {
      uniform = bound * (2 * uniform - 1);
    }
    return uniforms;
  });
}

} // namespace palimpsest::kernels

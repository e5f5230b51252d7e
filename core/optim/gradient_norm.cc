#include <palimpsest/core/optim/gradient_norm.h>

#include <palimpsest/core/base/error.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace palimpsest {

namespace {

using kernels::ChunkReduction;

ChunkReduction reduction_of(double p) {
  if (p == 1) {
    return ChunkReduction::kSumOfAbs;
  }
  if (p == 2) {
    return ChunkReduction::kSumOfSquares;
  }
  if (p == std::numeric_limits<double>::infinity()) {
    return ChunkReduction::kMaxAbs;
  }
  throw UserError("optimizer.norm_type: {} is not supported; give 1, 2 or inf", p);
}

double exponent_of(std::string_view norm_type) {
  if (norm_type == "1") {
    return 1;
  }
  if (norm_type == "2") {
    return 2;
  }
  if (norm_type == "inf") {
    return std::numeric_limits<double>::infinity();
  }
  throw UserError("optimizer.norm_type: \"{}\" is not supported; give 1, 2 or inf", norm_type);
}

} // namespace

FoldedNorm::FoldedNorm(double p) : reduction_(reduction_of(p)) {}

FoldedNorm::FoldedNorm(std::string_view norm_type) : FoldedNorm(exponent_of(norm_type)) {}

std::vector<double> FoldedNorm::measure(const at::Tensor& gradient) const {
  std::vector<double> parts(static_cast<size_t>(kernels::chunk_count(gradient.numel())));
  kernels::chunk_reduce(gradient, reduction_, parts);
  return parts;
}

double FoldedNorm::fold(const std::vector<double>& parts) const {
  double total = 0;
  for (const double part : parts) {
    if (reduction_ != ChunkReduction::kMaxAbs) {
      total += part;
    } else if (!(part <= total)) { // so that NaN wins and stays
      total = std::isnan(total) ? total : part;
    }
  }
  return reduction_ == ChunkReduction::kSumOfSquares ? std::sqrt(total) : total;
}

double clip_factor(double norm, double max_norm) {
  check(std::isfinite(norm) && max_norm > 0, "clipping a norm of {} to {}", norm, max_norm);
  return std::min(1.0, max_norm / (norm + 1e-6));
}

} // namespace palimpsest

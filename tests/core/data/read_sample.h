#pragma once

// A sample of token ids as two vectors.

#include <palimpsest/core/data/sample_source.h>

#include <vector>

namespace palimpsest {

using Ids = std::vector<int64_t>;

struct TokenSample {
  Ids inputs;
  Ids labels;
};

inline TokenSample read_sample(const SampleSource& source, int64_t sample) {
  TokenSample out{
      Ids(static_cast<size_t>(source.input_size())), Ids(static_cast<size_t>(source.label_size()))};
  source.read(sample, out.inputs.data(), out.labels.data());
  return out;
}

} // namespace palimpsest

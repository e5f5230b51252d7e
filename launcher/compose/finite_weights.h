#pragma once

// No model folder with numbers that are not finite: nobody could use it, and it would take the place
// of one that can be used.
//
//   write_hf_folder(out, layout, only_finite(fill, out, trained), Existing::kReplace);

#include <palimpsest/core/io/hf_folder.h>

#include <filesystem>
#include <functional>

namespace palimpsest {

/// Fills as `fill` does. EnvironmentError naming `out` and the tensor where one that was `trained`
/// then holds NaN or infinity, be it by training or since its dtype in the file has a smaller range.
/// What was not trained is handed on as it came.
TensorFiller only_finite(
    TensorFiller fill,
    const std::filesystem::path& out,
    std::function<bool(const StoredTensor& tensor)> trained);

} // namespace palimpsest

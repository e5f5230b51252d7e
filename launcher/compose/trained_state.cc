#include <palimpsest/launcher/compose/trained_state.h>

#include <palimpsest/core/io/checkpoint_folder.h>
#include <palimpsest/core/io/peft_folder.h>

namespace palimpsest {

namespace fs = std::filesystem;

bool holds_model(const fs::path& folder) {
  return fs::exists(folder / "config.json") || fs::exists(folder / kPeftConfigName);
}

std::optional<TrainedState> newest_state(const fs::path& output) {
  std::optional<TrainedState> newest;
  for (const char* name : {"model", "adapter"}) {
    const fs::path folder = output / name;
    if (holds_model(folder) &&
        (!newest || fs::last_write_time(newest->folder) < fs::last_write_time(folder))) {
      newest = TrainedState{.folder = folder};
    }
  }
  const auto checkpoints = list_checkpoints(output);
  if (checkpoints.empty()) {
    return newest;
  }
  const bool newer = !newest ||
      fs::last_write_time(newest->folder) < fs::last_write_time(checkpoints.back().folder);
  return newer ? TrainedState{.folder = find_checkpoint(output),
                              .is_checkpoint = true,
                              .passed_over = newest ? newest->folder : fs::path()}
               : newest;
}

} // namespace palimpsest

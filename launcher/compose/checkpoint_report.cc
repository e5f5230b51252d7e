#include <palimpsest/launcher/compose/checkpoint_report.h>

#include <palimpsest/core/base/bytes.h>
#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/words.h>
#include <palimpsest/core/io/checkpoint_folder.h>
#include <palimpsest/core/io/checkpoint_reader.h>

#include <fmt/ranges.h>

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace palimpsest {
namespace {

namespace fs = std::filesystem;

struct Sum {
  int64_t tensors = 0;
  int64_t elements = 0;
  int64_t bytes = 0;
};

int64_t bytes_of(const StateDeclaration& state) {
  return state.elements() * bits_per_element(state.dtype) / 8;
}

int64_t total_bytes(const CheckpointManifest& manifest) {
  int64_t bytes = 0;
  for (const auto& file : manifest.files()) {
    bytes += file.bytes();
  }
  return bytes;
}

/// What the numbers of a checkpoint are.
constexpr auto kNumbers = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"evaluation.samples", "held-out samples"},
    {"evaluation.best_loss", "lowest held-out loss"},
    {"evaluation.best_step", "lowest after step"},
    {"evaluation.not_lower", "evaluations since without a lower one"},
    {"evaluation.counted_loss", "the loss that patience compares with"},
    {"evaluation.updates", "updates before the last evaluation"},
    {"evaluation.dropped", "evaluations dropped, due when the run goes on"},
    {"scaler.scale", "loss scale"},
    {"scaler.good_steps", "finite steps since it changed"},
    {"scaler.hysteresis_left", "overflows until it is lowered"},
});

/// "4 ranks: 2 replicas x 2 shards, zero 2".
std::string describe_layout(const CheckpointInfo::Layout& layout) {
  std::vector<std::string> axes;
  const auto add = [&](int64_t size, const char* noun) {
    if (size > 1) {
      axes.push_back(fmt::format("{} {}", size, noun));
    }
  };
  add(layout.stages(), "stages");
  add(layout.replicate(), "replicas");
  add(layout.shard(), "shards");
  return fmt::format(
      "{}{}{}, zero {}",
      counted(layout.ranks(), "rank"),
      axes.empty() ? "" : ": ",
      fmt::join(axes, " x "),
      layout.zero());
}

/// Those that have no name here by their own.
std::string describe_numbers(std::map<std::string, double> numbers) {
  std::string text;
  for (const auto& [name, meaning] : kNumbers) {
    if (const auto found = numbers.find(std::string(name)); found != numbers.end()) {
      text += fmt::format("{}: {}\n", meaning, found->second);
      numbers.erase(found);
    }
  }
  for (const auto& [name, value] : numbers) {
    text += fmt::format("{}: {}\n", name, value);
  }
  return text;
}

std::string describe_info(const CheckpointReader& reader) {
  const CheckpointInfo& info = reader.info();
  const auto& data = info.data();
  return fmt::format(
             "{}: run {}, step {}, {}\n"
             "written by: {}\n"
             "data: epoch {}, {} of its {}, {} since the run began; seed {}\n",
             reader.folder().string(),
             info.run_id(),
             info.step(),
             counted(info.updates(), "update"),
             describe_layout(info.layout()),
             data.epoch(),
             data.position(),
             counted(data.samples(), "sample"),
             data.consumed(),
             info.seed()) +
      describe_numbers({info.numbers().begin(), info.numbers().end()});
}

std::string describe_states(const CheckpointManifest& manifest) {
  std::map<std::tuple<std::string, std::string, bool>, Sum> sums;
  for (const auto& tensor : manifest.tensors()) {
    const StateDeclaration state = declaration_of(tensor);
    Sum& sum = sums[{tensor.state(), tensor.dtype(), tensor.trainable()}];
    ++sum.tensors;
    sum.elements += state.elements();
    sum.bytes += bytes_of(state);
  }
  std::string text = fmt::format(
      "\n{:<14}{:<7}{:>8}{:>16}{:>12}\n", "state", "dtype", "tensors", "elements", "size");
  for (const auto& [key, sum] : sums) {
    const auto& [state, dtype, trainable] = key;
    text += fmt::format(
        "{:<14}{:<7}{:>8}{:>16}{:>12}{}\n",
        state,
        dtype,
        sum.tensors,
        sum.elements,
        format_bytes(sum.bytes),
        trainable ? "" : "  frozen");
  }
  return text;
}

std::string describe_tensors(const CheckpointManifest& manifest) {
  std::string text = "\n";
  for (const auto& tensor : manifest.tensors()) {
    const StateDeclaration state = declaration_of(tensor);
    text += fmt::format(
        "{}  {} {}  {} in {}\n",
        describe_state(state.name, state.state),
        name_of(state.dtype),
        format_shape(state.shape),
        format_bytes(bytes_of(state)),
        counted(tensor.pieces_size(), "piece"));
  }
  return text;
}

std::string describe_files(const CheckpointManifest& manifest) {
  std::string text = "\n";
  for (const auto& file : manifest.files()) {
    text += fmt::format("{:<30}{:>12}\n", file.name(), format_bytes(file.bytes()));
  }
  for (const auto& side : manifest.side_files()) {
    text += fmt::format("{:<30}{:>12}\n", side.name(), format_bytes(side.bytes()));
  }
  return text;
}

void inspect_checkpoint(const fs::path& folder, const InspectOptions& options, std::ostream& out) {
  const CheckpointReader reader(folder);
  out << describe_info(reader) << describe_states(reader.manifest())
      << (options.tensors ? describe_tensors(reader.manifest()) : "")
      << describe_files(reader.manifest());
  if (options.verify) {
    reader.verify();
    out << "\nverified: all bytes match their checksums\n";
  }
}

/// One line for each; damage is an error only where it was asked for.
void inspect_output(const fs::path& folder, const InspectOptions& options, std::ostream& out) {
  int64_t damaged = 0;
  const auto all = list_checkpoints(folder);
  for (const NumberedCheckpoint& found : all) {
    try {
      const CheckpointReader reader(found.folder);
      if (options.verify) {
        reader.verify();
      }
      out << fmt::format(
          "{}: run {}, {}, {}{}\n",
          found.folder.string(),
          reader.info().run_id(),
          counted(reader.info().layout().ranks(), "rank"),
          format_bytes(total_bytes(reader.manifest())),
          options.verify ? ", verified" : "");
    } catch (const Error& error) {
      out << fmt::format("{}: damaged: {}\n", found.folder.string(), error.what());
      ++damaged;
    }
  }
  if (options.verify && damaged > 0) {
    throw UserError(
        "{}: {} of {} damaged; remove them, or resume with checkpoint.resume=auto, "
        "which skips them",
        folder.string(),
        damaged,
        counted(std::ssize(all), "checkpoint") + (damaged == 1 ? " is" : " are"));
  }
}

} // namespace

void inspect(const fs::path& folder, const InspectOptions& options, std::ostream& out) {
  std::error_code error;
  require_checkpoints(folder);
  if (fs::exists(folder / kManifestName, error) || list_checkpoints(folder).empty()) {
    inspect_checkpoint(folder, options, out);
  } else {
    inspect_output(folder, options, out);
  }
}

} // namespace palimpsest

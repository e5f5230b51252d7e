#include <palimpsest/core/io/checkpoint_manifest.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/core/io/json.h>

#include <fmt/ranges.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>
#include <xxhash.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

namespace palimpsest {
namespace {

using google::protobuf::TextFormat;

constexpr int64_t kMaxManifestBytes = int64_t{1} << 30;
constexpr int kMaxNesting = 16;

std::span<const int64_t> shape_of(const CheckpointManifest::Tensor& tensor) {
  return {tensor.shape().data(), static_cast<size_t>(tensor.shape_size())};
}

/// Keeps the first error; the parser's own default prints all of them.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    if (text_.empty()) {
      text_ = fmt::format("line {}, column {}: {}", line + 1, column + 1, message);
    }
  }
  const std::string& text() const {
    return text_;
  }

 private:
  std::string text_;
};

/// What is wrong with a manifest, collected while it is walked.
class Checker {
 public:
  explicit Checker(const CheckpointManifest& manifest) : manifest_(manifest) {}

  std::vector<std::string> run() {
    check_info();
    for (const auto& file : manifest_.files()) {
      check_file(file);
    }
    for (const auto& side : manifest_.side_files()) {
      check_side_file(side);
    }
    for (const auto& tensor : manifest_.tensors()) {
      check_tensor(tensor);
    }
    check_model();
    return std::move(faults_);
  }

 private:
  template <typename... Args>
  void fault(fmt::format_string<Args...> format, Args&&... args) {
    faults_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  void check_info() {
    const CheckpointInfo& info = manifest_.info();
    const auto& data = info.data();
    const auto& layout = info.layout();
    const std::pair<const char*, bool> present[] = {
        {"info.run_id", info.has_run_id() && !info.run_id().empty()},
        {"info.step", info.has_step() && info.step() >= 0},
        {"info.updates", info.has_updates() && info.updates() >= 0},
        {"info.seed", info.has_seed()},
        {"info.data.epoch", data.has_epoch() && data.epoch() >= 0},
        {"info.data.position", data.has_position() && data.position() >= 0},
        {"info.data.consumed", data.has_consumed() && data.consumed() >= 0},
        {"info.data.samples", data.has_samples() && data.samples() >= 0},
        {"info.layout.ranks", layout.has_ranks() && layout.ranks() >= 1},
        {"info.layout.stages", layout.has_stages() && layout.stages() >= 1},
        {"info.layout.replicate", layout.has_replicate() && layout.replicate() >= 1},
        {"info.layout.shard", layout.has_shard() && layout.shard() >= 1},
        {"info.layout.zero", layout.has_zero() && layout.zero() >= 0},
    };
    for (const auto& [name, ok] : present) {
      if (!ok) {
        fault("{} is missing or out of range", name);
      }
    }
    if (manifest_.has_not_finite()) {
      fault("not_finite is set: this is a part of a save that was not completed");
    }
  }

  void check_file(const CheckpointManifest::File& file) {
    const std::string& name = file.name();
    if (name.empty() || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos || name == "." || name == "..") {
      fault("{} is no plain file name", quote(name));
    }
    if (!file.has_rank() || file.rank() < 0 || !file.has_bytes() || file.header_bytes() < 0 ||
        file.header_bytes() > file.bytes() || !file.has_header_checksum()) {
      fault("file {}: rank, bytes or header are missing or out of range", quote(name));
    }
    if (!bytes_.emplace(name, file.bytes()).second) {
      fault("file {} is listed twice", quote(name));
    }
  }

  void check_side_file(const CheckpointManifest::SideFile& side) {
    const std::filesystem::path path(side.name());
    const bool climbs = std::ranges::find(path, std::filesystem::path("..")) != path.end();
    if (side.name().empty() || path.is_absolute() || climbs ||
        side.name().find('\0') != std::string::npos) {
      fault("side file {} lies outside of the checkpoint", quote(side.name()));
    }
    if (!side.has_bytes() || side.bytes() < 0 || !side.has_checksum()) {
      fault("side file {}: bytes or checksum are missing", quote(side.name()));
    }
    if (!sides_.insert(side.name()).second) {
      fault("side file {} is listed twice", quote(side.name()));
    }
  }

  void check_tensor(const CheckpointManifest::Tensor& tensor) {
    const std::string where = describe_state(tensor.name(), tensor.state());
    if (tensor.name().empty() || tensor.state().empty() || !tensor.has_trainable()) {
      fault("{}: name, state or trainable is missing", where);
    }
    if (const std::pair key(tensor.name(), tensor.state()); key <= last_) {
      fault("{} is out of order or listed twice", where);
    } else {
      last_ = key;
    }
    const std::optional<StoredDtype> dtype = parse_stored_dtype(tensor.dtype());
    if (!dtype || bits_per_element(*dtype) % 8 != 0) {
      fault("{}: unknown dtype {}", where, quote(tensor.dtype()));
      return;
    }
    const int64_t width = bits_per_element(*dtype) / 8;
    int64_t elements = 1;
    int64_t bytes = 0;
    for (const int64_t size : tensor.shape()) {
      if (size < 0 || __builtin_mul_overflow(elements, size, &elements)) {
        fault("{}: shape {} is negative or too large", where, format_shape(shape_of(tensor)));
        return;
      }
    }
    if (__builtin_mul_overflow(elements, width, &bytes)) {
      fault("{}: shape {} is too large", where, format_shape(shape_of(tensor)));
      return;
    }
    int64_t covered = 0;
    for (const auto& piece : tensor.pieces()) {
      if (piece.begin() != covered || piece.count() < 0 || piece.count() > elements - covered) {
        fault(
            "{}: elements {} to {} {}",
            where,
            std::min(covered, piece.begin()),
            std::max(covered, piece.begin()),
            piece.begin() > covered ? "are in no piece" : "are in two pieces or out of range");
        return;
      }
      covered += piece.count();
      check_piece(piece, width, where);
    }
    if (covered != elements) {
      fault("{}: elements {} to {} are in no piece", where, covered, elements);
    }
  }

  void check_piece(
      const CheckpointManifest::Piece& piece,
      int64_t width,
      const std::string& where) {
    const auto file = bytes_.find(piece.file());
    if (file == bytes_.end()) {
      fault("{}: file {} is not listed", where, quote(piece.file()));
      return;
    }
    if (piece.bytes() != piece.count() * width) {
      fault("{}: {} elements cannot take {} bytes", where, piece.count(), piece.bytes());
      return;
    }
    if (piece.offset() < 0 || piece.offset() > file->second ||
        piece.bytes() > file->second - piece.offset()) {
      fault("{}: a piece lies outside of file {}", where, quote(piece.file()));
    }
    const int64_t blocks =
        piece.bytes() / kChecksumBlock + (piece.bytes() % kChecksumBlock != 0 ? 1 : 0);
    if (piece.checksums_size() != blocks) {
      fault("{}: {} checksums for {} blocks", where, piece.checksums_size(), blocks);
    }
  }

  void check_model() {
    std::set<std::string> names;
    for (const auto& file : manifest_.model().files()) {
      if (file.name().empty() || file.name().find('/') != std::string::npos ||
          file.name().find('\0') != std::string::npos || !names.insert(file.name()).second) {
        fault("model: {} is no file name, or listed twice", quote(file.name()));
      }
      for (const auto& tensor : file.tensors()) {
        int64_t elements = 1;
        bool ok = parse_stored_dtype(tensor.dtype()).has_value();
        for (const int64_t size : tensor.shape()) {
          ok = ok && size >= 0 && !__builtin_mul_overflow(elements, size, &elements);
        }
        if (!ok || elements > std::numeric_limits<int64_t>::max() / 64) {
          fault("model: tensor {} has no dtype and shape", quote(tensor.name()));
        }
        if (!model_tensors_.insert(tensor.name()).second) {
          fault("model: tensor {} is listed twice", quote(tensor.name()));
        }
      }
    }
  }

  const CheckpointManifest& manifest_;
  std::vector<std::string> faults_;
  std::map<std::string, int64_t> bytes_; // of each file
  std::set<std::string> sides_;
  std::set<std::string> model_tensors_;
  std::pair<std::string, std::string> last_; // tensor and state
};

bool parse_text(
    std::string_view text,
    bool allow_unknown,
    CheckpointManifest& manifest,
    FirstError& error) {
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  parser.SetRecursionLimit(kMaxNesting);
  parser.AllowUnknownField(allow_unknown);
  return parser.ParseFromString(std::string(text), &manifest);
}

template <typename... Args>
[[noreturn]] void broken(fmt::format_string<Args...> format, Args&&... args) {
  throw InternalError(fmt::format(format, std::forward<Args>(args)...));
}

void add_part(CheckpointManifest& all, const CheckpointManifest& part, size_t rank) {
  const CheckpointInfo& first = all.info();
  if (part.info().run_id() != first.run_id() || part.info().step() != first.step()) {
    broken(
        "the ranks save different things: rank 0 step {} of run {}, rank {} step {} of run {}",
        first.step(),
        quote(first.run_id()),
        rank,
        part.info().step(),
        quote(part.info().run_id()));
  }
  all.mutable_files()->MergeFrom(part.files());
  all.mutable_tensors()->MergeFrom(part.tensors());
}

/// Pieces of the same state become one entry, in order of their elements.
void join_tensors(CheckpointManifest& all) {
  std::map<std::pair<std::string, std::string>, CheckpointManifest::Tensor> joined;
  for (auto& tensor : *all.mutable_tensors()) {
    const std::pair key(tensor.name(), tensor.state());
    const auto found = joined.find(key);
    if (found == joined.end()) {
      joined.emplace(key, std::move(tensor));
    } else if (declaration_of(found->second) != declaration_of(tensor)) {
      broken(
          "the ranks differ in shape, dtype or training of {}",
          describe_state(key.first, key.second));
    } else {
      found->second.mutable_pieces()->MergeFrom(tensor.pieces());
    }
  }
  all.clear_tensors();
  for (auto& [key, tensor] : joined) {
    std::stable_sort(
        tensor.mutable_pieces()->begin(),
        tensor.mutable_pieces()->end(),
        [](const auto& left, const auto& right) {
          return std::pair(left.begin(), left.count()) < std::pair(right.begin(), right.count());
        });
    *all.add_tensors() = std::move(tensor);
  }
}

std::string list(const std::string& what, const std::vector<std::string>& faults) {
  const size_t printed = std::min<size_t>(20, faults.size());
  return fmt::format(
      "{} ({} faults)\n  {}",
      what,
      faults.size(),
      fmt::join(faults.begin(), faults.begin() + static_cast<ptrdiff_t>(printed), "\n  "));
}

/// The last line of a file: what the lines before it must hash to.
std::string seal(std::string_view text) {
  return fmt::format("# checksum: {:016x}\n", checksum(std::as_bytes(std::span(text))));
}

/// The text before the last line, which must be its seal.
std::string read_sealed(const std::filesystem::path& file) {
  std::string text = read_file(file, kMaxManifestBytes);
  const size_t length = seal("").size();
  const size_t body = text.size() - std::min(length, text.size());
  if (text.substr(body) != seal(std::string_view(text).substr(0, body))) {
    throw UserError(
        "{}: the text does not match the checksum in its last line; the file is damaged",
        file.string());
  }
  text.resize(body);
  return text;
}

CheckpointManifest parse(std::string_view text, const std::string& name) {
  CheckpointManifest manifest;
  FirstError error;
  if (!parse_text(text, false, manifest, error)) {
    // A newer version may have fields that this one does not know.
    CheckpointManifest newer;
    FirstError ignored;
    parse_text(text, true, newer, ignored);
    if (newer.format_version() <= kManifestVersion) {
      throw UserError("{}: {}; the file is damaged or no manifest", name, error.text());
    }
    manifest.set_format_version(newer.format_version());
  }
  if (manifest.format_version() != kManifestVersion) {
    throw UserError(
        "{}: format version {}, but this program reads version {}; use the program that wrote it",
        name,
        manifest.format_version(),
        kManifestVersion);
  }
  return manifest;
}

} // namespace

std::string moment_state(size_t index) {
  return fmt::format("moment.{}", index);
}

std::string describe_state(std::string_view tensor, std::string_view state) {
  const auto plain = [](std::string_view text) {
    const std::string quoted = quote(text);
    return quoted.size() == text.size() + 2 ? std::string(text) : quoted;
  };
  return fmt::format("{} ({})", plain(tensor), plain(state));
}

StateDeclaration declaration_of(const CheckpointManifest::Tensor& tensor) {
  const std::optional<StoredDtype> dtype = parse_stored_dtype(tensor.dtype());
  check(dtype.has_value(), "no dtype {}", tensor.dtype());
  return {
      {tensor.name(), *dtype, {tensor.shape().begin(), tensor.shape().end()}},
      tensor.state(),
      tensor.trainable()};
}

CheckpointManifest parse_manifest(std::string_view text, const std::string& name) {
  CheckpointManifest manifest = parse(text, name);
  if (const auto faults = Checker(manifest).run(); !faults.empty()) {
    throw UserError(
        "{}", list(name + ": the manifest contradicts itself; the file is damaged", faults));
  }
  return manifest;
}

CheckpointManifest read_manifest(const std::filesystem::path& file) {
  return parse_manifest(read_sealed(file), file.string());
}

CheckpointManifest read_part(const std::filesystem::path& file) {
  return parse(read_sealed(file), file.string());
}

void write_manifest(const std::filesystem::path& file, const CheckpointManifest& manifest) {
  const std::string text = manifest_text(manifest);
  write_file_atomically(file, text + seal(text));
}

std::string manifest_text(const CheckpointManifest& manifest) {
  TextFormat::Printer printer;
  printer.SetUseShortRepeatedPrimitives(true);
  printer.SetUseUtf8StringEscaping(true);
  std::string text;
  check(printer.PrintToString(manifest, &text), "a manifest does not print");
  return text;
}

CheckpointManifest merge_parts(std::span<const CheckpointManifest> parts) {
  check(!parts.empty(), "a checkpoint has at least one part");
  CheckpointManifest all = parts.front();
  for (size_t rank = 1; rank < parts.size(); ++rank) {
    add_part(all, parts[rank], rank);
  }
  join_tensors(all);
  if (const auto faults = Checker(all).run(); !faults.empty()) {
    broken("{}", list("the ranks' pieces do not make up a checkpoint", faults));
  }
  return all;
}

const CheckpointManifest::Tensor* find_state(
    const CheckpointManifest& manifest,
    std::string_view tensor,
    std::string_view state) {
  const auto& all = manifest.tensors();
  const auto found = std::lower_bound(
      all.begin(), all.end(), std::pair(tensor, state), [](const auto& entry, const auto& key) {
        return std::pair<std::string_view, std::string_view>(entry.name(), entry.state()) < key;
      });
  return found != all.end() && found->name() == tensor && found->state() == state ? &*found
                                                                                  : nullptr;
}

uint64_t checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

} // namespace palimpsest

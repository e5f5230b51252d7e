#pragma once

// The safetensors format: an 8-byte little-endian header length, a JSON header, then the tensors'
// bytes without a gap.
//
//   SafetensorsFile file("model.safetensors");
//   const StoredTensor& weight = file.at("lm_head.weight");
//   std::memcpy(buffer, file.bytes(weight).data(), weight.bytes());
//
//   SafetensorsWriter writer("out.safetensors", {{"x", StoredDtype::F32, {2, 3}}});
//   writer.write("x", bytes);   // tensors in the order of writer.tensors(), each in pieces if wished
//   writer.commit();
//
// Format and limits: https://github.com/huggingface/safetensors (README.md and
// safetensors/src/tensor.rs). A file that breaks any of its rules is a UserError naming file and
// tensor.

#include <palimpsest/core/base/files.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {

/// Every element type of the format, in its order: the writer places a later one before an earlier
/// one, as the reference implementation does.
enum class StoredDtype : uint8_t {
  BOOL,
  F4,
  F6_E2M3,
  F6_E3M2,
  U8,
  I8,
  F8_E5M2,
  F8_E4M3,
  F8_E8M0,
  F8_E4M3FNUZ,
  F8_E5M2FNUZ,
  I16,
  U16,
  F16,
  BF16,
  I32,
  U32,
  F32,
  C64,
  F64,
  I64,
  U64,
};

/// As the format spells it: "F32".
std::string_view name_of(StoredDtype dtype);
std::optional<StoredDtype> parse_stored_dtype(std::string_view name);
/// 4 for F4, 32 for F32.
int bits_per_element(StoredDtype dtype);

/// "[2, 3]", for messages.
std::string format_shape(std::span<const int64_t> shape);

/// A tensor to be written.
struct TensorDeclaration {
  std::string name;
  StoredDtype dtype = StoredDtype::F32;
  std::vector<int64_t> shape;
  bool operator==(const TensorDeclaration&) const = default;

  int64_t elements() const;
};

/// A tensor of a file. `begin` and `end` count bytes from the start of the data, behind the header.
struct StoredTensor : TensorDeclaration {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const StoredTensor&) const = default;

  int64_t bytes() const {
    return end - begin;
  }
};

/// What the header says. Tensors are in the order of their bytes.
struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;
  std::map<std::string, std::string> metadata;
  int64_t data_offset = 0; // of the first tensor's byte in the file
};

/// Parses and checks a whole file in memory; `name` stands for it in messages. Touches only the
/// header's bytes.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file, const std::string& name);

/// A file, mapped: tensors are read from disk when their bytes are touched.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const {
    return file_.path();
  }
  const std::vector<StoredTensor>& tensors() const {
    return header_.tensors;
  }
  const std::map<std::string, std::string>& metadata() const {
    return header_.metadata;
  }
  /// Null where there is no such tensor.
  const StoredTensor* find(std::string_view name) const;
  /// UserError listing the file's tensors where there is no such tensor.
  const StoredTensor& at(std::string_view name) const;
  /// Not aligned to the element type in every file: copy with memcpy.
  std::span<const std::byte> bytes(const StoredTensor& tensor) const;
  /// The same bytes will not be needed soon.
  void forget(const StoredTensor& tensor) const;

 private:
  MappedFile file_;
  SafetensorsHeader header_;
  std::map<std::string, size_t, std::less<>> index_;
};

/// Writes a file as a stream, under a temporary name until commit(). Header and tensors are laid
/// out as the reference implementation lays them out (wider element types first, then by name;
/// header padded to 8 bytes), so that equal tensors give equal files.
class SafetensorsWriter {
 public:
  /// A duplicate name, a negative size or a product beyond int64 is an InternalError: declarations
  /// are ours.
  SafetensorsWriter(
      std::filesystem::path path,
      std::vector<TensorDeclaration> tensors,
      const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

  /// In the order in which they are to be written.
  const std::vector<StoredTensor>& tensors() const {
    return tensors_;
  }
  /// The next bytes of tensor `name`: all of them, or a piece that continues the one before.
  void write(std::string_view name, std::span<const std::byte> bytes);
  void commit();

 private:
  std::vector<StoredTensor> tensors_;
  AtomicFile file_;
  size_t next_ = 0; // tensor being written
  int64_t written_ = 0; // bytes of it
};

} // namespace palimpsest

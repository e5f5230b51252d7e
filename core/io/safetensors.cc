#include <palimpsest/core/io/safetensors.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/io/json.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <set>
#include <tuple>
#include <unordered_set>
#include <utility>

namespace palimpsest {
namespace {

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaxHeaderBytes = 100'000'000; // the reference implementation's limit
constexpr std::string_view kMetadataKey = "__metadata__";

struct DtypeTraits {
  std::string_view name;
  int bits;
};

constexpr std::array<DtypeTraits, 22> kDtypes = {{
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64},
}};
static_assert(kDtypes.size() == static_cast<size_t>(StoredDtype::U64) + 1);

/// Bytes of a tensor, empty where elements or bits exceed int64 or the last byte is not full.
std::optional<int64_t> bytes_of(const TensorDeclaration& tensor) {
  int64_t bits = bits_per_element(tensor.dtype);
  int64_t elements = 1;
  for (const int64_t size : tensor.shape) {
    if (size < 0 || __builtin_mul_overflow(elements, size, &elements)) {
      return std::nullopt;
    }
  }
  if (__builtin_mul_overflow(bits, elements, &bits) || bits % 8 != 0) {
    return std::nullopt;
  }
  return bits / 8;
}

/// Takes the header's JSON as a stream of events, so that duplicate names are seen and nesting
/// costs no stack. Anything out of place throws.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(const std::string& file, SafetensorsHeader& header) : file_(file), header_(header) {}

  bool start_object(size_t) override {
    if (place_ == Level::kStart) {
      place_ = Level::kTop;
    } else if (place_ == Level::kTop) {
      place_ = name_ == kMetadataKey ? Level::kMetadata : Level::kTensor;
      tensor_ = {};
      tensor_.name = name_;
      seen_.clear();
    } else {
      refuse_value("an object");
    }
    return true;
  }

  bool key(string_t& text) override {
    if (place_ == Level::kTop) {
      if (!names_.insert(text).second) {
        throw UserError("{}: the name {} occurs twice in the header", file_, quote(text));
      }
      name_ = text;
      return true;
    }
    if (!seen_.insert(text).second) {
      throw UserError("{}: the key {} occurs twice", where(), quote(text));
    }
    if (place_ == Level::kTensor && text != "dtype" && text != "shape" && text != "data_offsets") {
      throw UserError(
          "{}: unknown key {}; allowed are dtype, shape, data_offsets", where(), quote(text));
    }
    key_ = text;
    return true;
  }

  bool end_object() override {
    if (place_ == Level::kTensor) {
      for (const char* required : {"dtype", "shape", "data_offsets"}) {
        if (!seen_.contains(required)) {
          throw UserError("{}: {} is missing", where(), required);
        }
      }
      if (offsets_.size() != 2) {
        throw UserError("{}: data_offsets must be [begin, end]", where());
      }
      std::tie(tensor_.begin, tensor_.end) = std::pair(offsets_[0], offsets_[1]);
      header_.tensors.push_back(std::move(tensor_));
    }
    place_ = place_ == Level::kTop ? Level::kEnd : Level::kTop;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ != Level::kTensor || key_ == "dtype") {
      refuse_value("an array");
    }
    place_ = key_ == "shape" ? Level::kShape : Level::kOffsets;
    if (place_ == Level::kOffsets) {
      offsets_.clear();
    }
    return true;
  }

  bool end_array() override {
    place_ = Level::kTensor;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Level::kShape && place_ != Level::kOffsets) {
      refuse_value("a number");
    }
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      refuse_value(std::to_string(value));
    }
    (place_ == Level::kShape ? tensor_.shape : offsets_).push_back(static_cast<int64_t>(value));
    return true;
  }

  bool string(string_t& text) override {
    if (place_ == Level::kMetadata) {
      header_.metadata.emplace(key_, text);
    } else if (place_ == Level::kTensor && key_ == "dtype") {
      const std::optional<StoredDtype> dtype = parse_stored_dtype(text);
      if (!dtype) {
        throw UserError("{}: unknown dtype {}", where(), quote(text));
      }
      tensor_.dtype = *dtype;
    } else {
      refuse_value("a string");
    }
    return true;
  }

  bool number_integer(number_integer_t value) override {
    refuse_value(std::to_string(value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    refuse_value(text.substr(0, 40));
  }
  bool null() override {
    refuse_value("null");
  }
  bool boolean(bool) override {
    refuse_value("a boolean");
  }
  bool binary(binary_t&) override {
    refuse_value("binary");
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    throw UserError("{}: the header is not valid JSON at its byte {}", file_, position);
  }

 private:
  enum class Level { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };

  std::string where() const {
    return fmt::format("{}: tensor {}", file_, quote(name_));
  }

  [[noreturn]] void refuse_value(const std::string& what) const {
    switch (place_) {
      case Level::kShape:
        throw UserError("{}: shape must hold non-negative integers, not {}", where(), what);
      case Level::kOffsets:
        throw UserError("{}: data_offsets must hold non-negative integers, not {}", where(), what);
      case Level::kTensor:
        throw UserError("{}: {} cannot be {}", where(), key_, what);
      case Level::kMetadata:
        throw UserError("{}: __metadata__ {} must be a string, not {}", file_, quote(key_), what);
      case Level::kTop:
        throw UserError("{}: {} must be an object, not {}", file_, quote(name_), what);
      default:
        throw UserError("{}: the header must be a JSON object, not {}", file_, what);
    }
  }

  const std::string& file_;
  SafetensorsHeader& header_;
  Level place_ = Level::kStart;
  std::unordered_set<std::string> names_;
  std::set<std::string> seen_; // keys of the object that is open
  std::string name_;
  std::string key_;
  StoredTensor tensor_;
  std::vector<int64_t> offsets_;
};

/// Each tensor by itself, then all together: they must cover the data without overlap, hole or
/// rest.
void check_layout(std::vector<StoredTensor>& tensors, int64_t data_bytes, const std::string& file) {
  for (const StoredTensor& tensor : tensors) {
    const std::string where = fmt::format("{}: tensor {}", file, quote(tensor.name));
    if (tensor.begin > tensor.end) {
      throw UserError("{}: begins at {} behind its end {}", where, tensor.begin, tensor.end);
    }
    if (tensor.end > data_bytes) {
      throw UserError(
          "{}: ends at {}, past the file's {} bytes of data; the file is cut short or damaged",
          where,
          tensor.end,
          data_bytes);
    }
    const std::optional<int64_t> bytes = bytes_of(tensor);
    if (!bytes) {
      throw UserError(
          "{}: shape {} of {} is too large or does not fill whole bytes",
          where,
          format_shape(tensor.shape),
          name_of(tensor.dtype));
    }
    if (*bytes != tensor.bytes()) {
      throw UserError(
          "{}: shape {} of {} takes {} bytes, but data_offsets hold {}",
          where,
          format_shape(tensor.shape),
          name_of(tensor.dtype),
          *bytes,
          tensor.bytes());
    }
  }
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& left, const auto& right) {
    return std::pair(left.begin, left.end) < std::pair(right.begin, right.end);
  });
  int64_t covered = 0;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.begin != covered) {
      throw UserError(
          "{}: tensor {} begins at byte {} of the data, but {} byte {}",
          file,
          quote(tensor.name),
          tensor.begin,
          tensor.begin < covered ? "overlaps another that ends at" : "nothing covers",
          covered);
    }
    covered = tensor.end;
  }
  if (covered != data_bytes) {
    throw UserError(
        "{}: {} bytes behind the last tensor {} belong to no tensor",
        file,
        data_bytes - covered,
        tensors.empty() ? "(there is none)" : quote(tensors.back().name));
  }
}

std::string encode_header(
    std::span<const StoredTensor> tensors,
    const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  if (!metadata.empty()) {
    text += fmt::format("\"{}\":{}", kMetadataKey, nlohmann::json(metadata).dump());
  }
  for (const StoredTensor& tensor : tensors) {
    text += fmt::format(
        "{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
        text.size() > 1 ? "," : "",
        nlohmann::json(tensor.name).dump(),
        name_of(tensor.dtype),
        fmt::join(tensor.shape, ","),
        tensor.begin,
        tensor.end);
  }
  text += "}";
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  return text;
}

/// The order and the offsets of the reference implementation.
std::vector<StoredTensor> lay_out(std::vector<TensorDeclaration> declarations) {
  std::sort(declarations.begin(), declarations.end(), [](const auto& left, const auto& right) {
    return left.dtype != right.dtype ? left.dtype > right.dtype : left.name < right.name;
  });
  std::vector<StoredTensor> tensors;
  std::set<std::string_view> names;
  int64_t offset = 0;
  for (TensorDeclaration& declaration : declarations) {
    check(names.insert(declaration.name).second, "tensor {} is declared twice", declaration.name);
    const std::optional<int64_t> bytes = bytes_of(declaration);
    check(bytes.has_value(), "tensor {} has no whole number of bytes", declaration.name);
    const int64_t begin = offset;
    offset += *bytes;
    tensors.push_back({declaration, begin, offset});
  }
  return tensors;
}

} // namespace

std::string_view name_of(StoredDtype dtype) {
  return kDtypes[static_cast<size_t>(dtype)].name;
}

std::optional<StoredDtype> parse_stored_dtype(std::string_view name) {
  for (size_t i = 0; i < kDtypes.size(); ++i) {
    if (kDtypes[i].name == name) {
      return static_cast<StoredDtype>(i);
    }
  }
  return std::nullopt;
}

int bits_per_element(StoredDtype dtype) {
  return kDtypes[static_cast<size_t>(dtype)].bits;
}

std::string format_shape(std::span<const int64_t> shape) {
  constexpr size_t kMaxDimensions = 16;
  const std::string more = shape.size() > kMaxDimensions ? ", ..." : "";
  return fmt::format(
      "[{}{}]", fmt::join(shape.first(std::min(shape.size(), kMaxDimensions)), ", "), more);
}

int64_t TensorDeclaration::elements() const {
  int64_t product = 1;
  for (const int64_t size : shape) {
    check(!__builtin_mul_overflow(product, size, &product), "tensor {} is too large", name);
  }
  return product;
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, const std::string& name) {
  const auto size = static_cast<int64_t>(file.size());
  if (size < kLengthBytes) {
    throw UserError("{}: {} bytes are too few for a safetensors file", name, size);
  }
  uint64_t length = 0; // little-endian, as every machine that this program runs on
  std::memcpy(&length, file.data(), sizeof(length));
  if (length > static_cast<uint64_t>(kMaxHeaderBytes)) {
    throw UserError(
        "{}: a header of {} bytes is over the format's limit of {}; is this a safetensors file?",
        name,
        length,
        kMaxHeaderBytes);
  }
  const auto header_bytes = static_cast<int64_t>(length);
  if (header_bytes > size - kLengthBytes) {
    throw UserError(
        "{}: the header should have {} bytes, but the file ends after {}; it is cut short",
        name,
        header_bytes,
        size - kLengthBytes);
  }
  const std::string_view text(
      reinterpret_cast<const char*>(file.data()) + kLengthBytes, static_cast<size_t>(length));
  if (!text.starts_with('{')) {
    throw UserError("{}: the header must be a JSON object and begin with {{", name);
  }
  SafetensorsHeader header;
  header.data_offset = kLengthBytes + header_bytes;
  HeaderReader reader(name, header);
  nlohmann::json::sax_parse(text, &reader);
  check_layout(header.tensors, size - header.data_offset, name);
  return header;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path), header_(parse_safetensors(file_.bytes(), path.string())) {
  for (size_t i = 0; i < header_.tensors.size(); ++i) {
    index_.emplace(header_.tensors[i].name, i);
  }
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.tensors[found->second];
}

const StoredTensor& SafetensorsFile::at(std::string_view name) const {
  const StoredTensor* tensor = find(name);
  if (tensor == nullptr) {
    std::string all;
    for (const auto& entry : index_) {
      all += (all.empty() ? "" : ", ") + entry.first;
    }
    throw UserError("{}: there is no tensor {}; it holds: {}", path().string(), quote(name), all);
  }
  return *tensor;
}

std::span<const std::byte> SafetensorsFile::bytes(const StoredTensor& tensor) const {
  return file_.bytes().subspan(
      static_cast<size_t>(header_.data_offset + tensor.begin), static_cast<size_t>(tensor.bytes()));
}

void SafetensorsFile::forget(const StoredTensor& tensor) const {
  file_.forget(bytes(tensor));
}

SafetensorsWriter::SafetensorsWriter(
    std::filesystem::path path,
    std::vector<TensorDeclaration> tensors,
    const std::map<std::string, std::string>& metadata)
    : tensors_(lay_out(std::move(tensors))), file_(std::move(path)) {
  const std::string header = encode_header(tensors_, metadata);
  const uint64_t length = header.size();
  file_.write(std::as_bytes(std::span(&length, 1)));
  file_.write(header);
}

void SafetensorsWriter::write(std::string_view name, std::span<const std::byte> bytes) {
  while (next_ < tensors_.size() && tensors_[next_].name != name &&
         written_ == tensors_[next_].bytes()) {
    ++next_;
    written_ = 0;
  }
  check(
      next_ < tensors_.size() && tensors_[next_].name == name,
      "{}: tensor {} is written out of turn",
      file_.path().string(),
      name);
  written_ += static_cast<int64_t>(bytes.size());
  check(written_ <= tensors_[next_].bytes(), "too many bytes for tensor {}", name);
  file_.write(bytes);
}

void SafetensorsWriter::commit() {
  while (next_ < tensors_.size() && written_ == tensors_[next_].bytes()) {
    ++next_;
    written_ = 0;
  }
  check(
      next_ == tensors_.size(),
      "{}: tensor {} lacks bytes",
      file_.path().string(),
      next_ < tensors_.size() ? tensors_[next_].name : "");
  file_.commit();
}

} // namespace palimpsest

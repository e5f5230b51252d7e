#pragma once

// Errors about a file of data, told by the option that named the file.
//
//   throw DataFileError("{} is empty", path.string());                       // by who reads it
//   return from_option("data.files", [&] { return RecordFile(path); });      // by who was given it:
//                                                                            // "data.files: a.jsonl is empty"

#include <palimpsest/core/base/error.h>

#include <string_view>

namespace palimpsest {

/// A file that is not what it is read as. The sentence begins with its path.
class DataFileError : public UserError {
 public:
  using UserError::UserError;
};

/// What `open` returns; a DataFileError from it becomes a UserError with the option in front.
template <typename Open>
auto from_option(std::string_view option, Open open) {
  try {
    return open();
  } catch (const DataFileError& error) {
    throw UserError("{}: {}", option, error.what());
  }
}

} // namespace palimpsest

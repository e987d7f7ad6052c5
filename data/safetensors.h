#pragma once
// safetensors, the file format of model weights (github.com/huggingface/safetensors): the header's length (8 bytes,
// little-endian), the header (JSON: name -> dtype, shape, data_offsets), then the data, row-major, without gaps. Every
// rule is checked on opening, before anything is allocated, and nothing in a file is ever executed.
#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace lockstep::data {

class MappedFile;

/// The header's __metadata__: strings by key.
using Metadata = std::map<std::string, std::string>;

/// One tensor of a file.
struct SafeTensorsEntry {
  std::string name;
  DType dtype = f32;
  Shape shape;
  int64_t offset = 0;  ///< offset of the data, from the start of the file
  int64_t bytes = 0;
};

/// A parsed header.
struct SafeTensorsHeader {
  std::vector<SafeTensorsEntry> entries;  ///< in the order of their data
  Metadata metadata;
};

/// Checks and parses the header of a whole file in memory. Errors begin with `origin`.
SafeTensorsHeader parse_safetensors(std::span<const std::byte> file, const std::string& origin);

/// An open file. Its tensors share the mapped pages, which are read when touched and live as long as any of the
/// tensors. Writing to a tensor never reaches the file. A file replaced by save_safetensors() stays readable here.
class SafeTensors {
 public:
  /// Maps a file and checks its header.
  static SafeTensors open(const std::string& path);

  const std::vector<SafeTensorsEntry>& entries() const { return header_.entries; }  ///< in the order of their data
  const Metadata& metadata() const { return header_.metadata; }                     ///< strings by key
  std::vector<std::string> names() const;                                           ///< in the order of their data
  bool contains(const std::string& name) const { return find(name) != nullptr; }    ///< true if there is such a tensor
  /// The tensor of this name or entry: a view of the file, or a copy if the tensor's address in the file is unaligned
  /// for its dtype. Error for an unknown name; it lists the first names in the file.
  Tensor tensor(const std::string& name) const;
  Tensor tensor(const SafeTensorsEntry& entry) const;

 private:
  const SafeTensorsEntry* find(const std::string& name) const;

  std::string path_;
  std::shared_ptr<MappedFile> file_;
  SafeTensorsHeader header_;
  std::vector<uint32_t> by_name_;  // entries sorted by name
};

/// The start of a file (length and header) for tensors of these names, dtypes and shapes; their data follow it. Sorts
/// the entries into data order and sets their offsets. Larger element types come first, so every tensor is aligned.
std::string safetensors_start(std::vector<SafeTensorsEntry>& entries, const Metadata& metadata,
                              const std::string& origin);

/// Writes CPU tensors of any strides with write_atomically().
void save_safetensors(const std::string& path, const std::vector<std::pair<std::string, Tensor>>& tensors,
                      const Metadata& metadata = {});

}  // namespace lockstep::data

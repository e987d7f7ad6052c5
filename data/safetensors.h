#pragma once
// safetensors: the file format of model weights (github.com/huggingface/safetensors). 8 bytes little-endian length of
// the header, the header (JSON: name -> dtype, shape, data_offsets), then the data, row-major, without gaps. Every rule
// is checked on opening, before anything is allocated; a file never makes code run.
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/files.h"
#include "tensor/tensor.h"

namespace lockstep::data {

using Metadata = std::map<std::string, std::string>;

struct SafeTensorsEntry {
  std::string name;
  DType dtype = f32;
  Shape shape;
  int64_t offset = 0;  ///< of the data, from the start of the file
  int64_t bytes = 0;
};

struct SafeTensorsHeader {
  std::vector<SafeTensorsEntry> entries;  ///< in the order of their data
  Metadata metadata;
};

/// Checks and reads the header of a whole file in memory; `origin` opens the Errors.
SafeTensorsHeader parse_safetensors(Bytes file, const std::string& origin);

/// An open file. Tensors share its mapped pages (they are read when touched), which live as long as any of them;
/// writing to such a tensor never reaches the file. A file replaced by save_safetensors() stays readable here.
class SafeTensors {
 public:
  static SafeTensors open(const std::string& path);

  const std::vector<SafeTensorsEntry>& entries() const { return header_.entries; }
  const Metadata& metadata() const { return header_.metadata; }
  std::vector<std::string> names() const;
  bool contains(const std::string& name) const { return find(name) != nullptr; }
  /// Without a copy, unless the file holds the tensor at an odd address. Error lists names when there is no such
  /// tensor.
  Tensor tensor(const std::string& name) const;
  Tensor tensor(const SafeTensorsEntry& entry) const;

 private:
  const SafeTensorsEntry* find(const std::string& name) const;

  std::string path_;
  std::shared_ptr<MappedFile> file_;
  SafeTensorsHeader header_;
  std::vector<uint32_t> by_name_;  // entries sorted by name
};

/// The start of a file (length and header) that holds tensors of these names, dtypes and shapes; their data follow.
/// Puts the entries into the order of the data and sets their places: larger element types come first, so that every
/// tensor is aligned.
std::string safetensors_start(std::vector<SafeTensorsEntry>& entries, const Metadata& metadata,
                              const std::string& origin);

/// Writes tensors (on the CPU, any strides) atomically: see write_atomically().
void save_safetensors(const std::string& path, const std::vector<std::pair<std::string, Tensor>>& tensors,
                      const Metadata& metadata = {});

}  // namespace lockstep::data
